"""A played master speaks to a real server, about the right things at the right time."""

import errno

import pytest

from supervisor import clock
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, mailbox
from supervisor.engine.model import scripts
from supervisor.engine.model.outcomes import Completed, Released
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.wait import WaitsFor
from supervisor.master.model.held_lease import HeldLease
from supervisor.messages import HandlerSettings
from tests.lengths import PATIENCE
from tests.parts import held_of, honest, refused, until

JIDS = ("a",)


def running(master):
    """Turn until the child runs a job. Return its lease."""
    (child,) = master.desk.slots
    master.turn_until(lambda: child.sent)
    return child.running.lease


def test_job_is_leased_with_the_wakeup(played, live):
    master = played()
    live.queue("q").put("k", jid="a")
    assert running(master).jid == "a"
    assert (live.job("a").state, live.job("a").worker) == ("running", master.session.worker)


def know_queue(live):
    """A new queue is announced by mail. From then on a put wakes the master by the wake-up key."""
    live.cancel(live.queue("q").put("k"))


def reported(master, monkeypatch):
    """Return a list to which each report of starts adds its jids, and whether the child had the job by then."""
    (child,) = master.desk.slots
    reports, send_aside = [], master.session.pipeline.send_aside

    def spy(command):
        if command.script is scripts.RENEW:
            reports.append((*[part for part in command.args if part in JIDS], bool(child.sent)))
        send_aside(command)

    monkeypatch.setattr(master.session.pipeline, "send_aside", spy)
    return reports


def test_start_of_a_returned_job_is_reported_before_the_child_gets_the_job(played, live, monkeypatch):
    know_queue(live)
    live.queue("q").put("k", jid="a")
    assert calls_of(live).run(leasing.lease("other", ["q"], starting=0)).leases
    master = played()
    reports = reported(master, monkeypatch)
    live.deregister("other")
    running(master)
    assert reports == [("a", False)]


def test_start_of_a_put_is_reported_once_the_child_has_the_job(played, live, monkeypatch):
    know_queue(live)
    master = played()
    reports = reported(master, monkeypatch)
    live.queue("q").put("k", jid="a")
    running(master)
    assert reports == [("a", True)]
    until(lambda: live.job("a").started)


def test_start_of_an_at_most_once_job_is_reported_first(played, live, monkeypatch):
    master = played()
    reports = reported(master, monkeypatch)
    live.queue("q").put("k", jid="a", at_most_once=True)
    running(master)
    assert reports == [("a", False)]


@pytest.mark.parametrize("end", ["died", "interrupted"])
def test_start_after_a_death_or_interruption_is_reported_first(played, live, monkeypatch, end):
    live.queue("q").put("k", jid="a")
    (lease,) = live.queue("q").lease("other")
    master = played()
    reports = reported(master, monkeypatch)
    lease.died("SIGKILL") if end == "died" else live.settle([Released(lease, started=True)])
    running(master)
    assert reports == [("a", False)]


def test_start_of_a_lost_workers_job_is_reported_first(played, live, server, namespace, monkeypatch):
    """Redis may not know of the job's first start, because the worker was lost at that moment."""
    live.config.set("grace", 0.2)
    live.queue("q").put("k", jid="a")
    calls_of(live).call(leasing.lease, "other", ["q"], 1, starting=0, ttl_s=0.5 * PATIENCE)
    server.redis.delete(f"{{{namespace}}}:bell:q")  # no key calls for the job
    master = played(is_started=False)
    reports = reported(master, monkeypatch)
    master.start()
    running(master)
    assert (live.job("a").worker, live.job("a").deaths) == (master.session.worker, 0)
    assert reports == [("a", False)]


def test_start_whose_report_was_lost_is_reported_by_the_next_connection(played, live, monkeypatch):
    know_queue(live)
    master = played()
    lost = []

    def lose(command):
        lost.append(command)
        raise LinkLost("gone")

    monkeypatch.setattr(master.session.pipeline, "send_aside", lose)
    live.queue("q").put("k", jid="a")
    running(master)
    (child,) = master.desk.slots
    assert (len(lost), len(child.sent), live.job("a").started) == (1, 1, False)
    monkeypatch.undo()
    master.lose_connection()
    master.turn_until(lambda: master.session.idle and live.job("a").started)


@pytest.fixture
def cut_off(played, live):
    """Return a master that has lost Redis, with a job that is ready in its ledger."""

    def make(**options):
        live.queue("other").put("k", jid="a", **options)
        master = played(dispatch_ahead="1m")
        grant = calls_of(live).call(leasing.lease, master.session.worker, ["other"], 1, starting=0)
        master.desk.intake.accept(grant, {"k": HandlerSettings()})
        master.connection.on_lost(LinkLost("cut"))
        return master

    return make


def place(master):
    """Place what is ready. Return how many jobs the child has then."""
    (child,) = master.desk.slots
    master.desk.placing.place(reports_starts=True)
    master.desk.starts.finish()
    return len(child.sent)


@pytest.mark.parametrize("options", [{}, {"at_most_once": True}])
def test_start_before_the_answer_to_resume_is_reported(cut_off, live, options):
    master = cut_off(**options)
    master.desk.timers.run_due(clock.monotonic() + 10.0)
    master.turn_until(lambda: master.session.pipeline.parts)
    assert (master.session.connected, place(master)) == (False, 1)
    master.turn_until(lambda: master.session.idle and live.job("a").started)


def test_start_that_failed_in_an_outage_is_reported_when_it_happens(cut_off, live, monkeypatch):
    master = cut_off(at_most_once=True)
    (child,) = master.desk.slots
    with monkeypatch.context() as refusing:
        refusing.setattr(child.jobs, "send", refused(1, errno.ENOMEM, child.jobs.send))
        assert place(master) == 0
    master.lose_connection()
    assert not live.job("a").started
    reports = reported(master, monkeypatch)
    assert place(master) == 1
    assert reports == [("a", False)]
    master.turn_until(lambda: master.session.idle and live.job("a").started)


def test_completed_job_is_settled_and_the_next_leased(played, live):
    master = played(honest)
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
    master.turn_until(lambda: len(master.desk.events("job.completed")) == 3 and master.demand.is_settled)
    assert [live.job(jid).state for jid in "abc"] == ["complete"] * 3


def test_lease_is_renewed_every_third_of_its_ttl(played, live):
    master = played()
    live.queue("q").put("k")
    running(master)
    master.turn_until(lambda: master.session.idle)
    now_at, third_s = clock.monotonic(), master.session.times.ttl_s / 3
    assert now_at < master.renewing.deadline_at() <= now_at + third_s
    assert master.desk.counts.renewed == 0
    master.pump.step(now_at + third_s)
    master.turn_until(lambda: master.session.idle)
    assert master.desk.counts.renewed == 1


def test_mail_of_a_cancelled_job_renews_at_once(played, live):
    master = played()
    live.queue("q").put("k", jid="a")
    running(master)
    live.cancel("a", by="kim@web-1")
    master.turn_until(lambda: master.desk.events("lease.lost"))
    assert [event["reason"] for event in master.desk.events("lease.lost")] == ["cancelled"]
    assert [(event["jid"], event["by"]) for event in master.desk.events("job.cancelled")] == [("a", "kim@web-1")]
    assert master.demand.is_settled


def test_job_that_foreign_bytes_have_cancelled_is_lost(played, live, server, namespace):
    master = played()
    live.queue("q").put("k", jid="a")
    running(master)
    live.cancel("a", by="kim@web-1")
    server.redis.hset(f"{{{namespace}}}:cancelled-by", "a", b"\xff")
    master.turn_until(lambda: master.desk.events("job.cancelled"))


def test_mail_of_one_cancelled_job_renews_no_other_lease(played, live):
    master = played(processes=3)
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
    master.turn_until(lambda: all(child.sent for child in master.desk.slots))
    live.cancel("a")
    master.turn_until(lambda: master.desk.events("lease.lost"))
    assert master.desk.counts.renewed == 0
    live.cancel("b", "c")
    master.turn_until(lambda: len(master.desk.events("lease.lost")) == 3)


def test_renewal_finds_a_cancelled_job_whose_mail_was_lost(played, live, server, namespace):
    master = played()
    live.queue("q").put("k", jid="a")
    running(master)
    master.turn_until(lambda: master.session.idle)
    live.cancel("a")
    server.redis.delete(f"{{{namespace}}}:mail:{master.session.worker}")
    master.pump.step(clock.monotonic() + master.session.times.ttl_s / 3)
    master.turn_until(lambda: master.desk.events("lease.lost"))


def test_deregistered_worker_goes_on_under_another_name(played, live):
    master = played()
    old = master.session.worker
    live.deregister(old)
    master.turn_until(lambda: master.desk.events("worker.deregistered"))
    (event,) = master.desk.events("worker.deregistered")
    assert (event["old"], event["new"]) == (old, master.session.worker)
    live.queue("q").put("k", jid="a")
    running(master)
    assert live.job("a").worker == master.session.worker != old


@pytest.mark.parametrize(("call", "has_new_name"), [("send_aside", False), ("exchange", True)])
def test_new_name_is_told_once_though_the_connection_is_lost_meanwhile(played, live, monkeypatch, call, has_new_name):
    master = played()
    old = master.session.worker
    send, losses = getattr(master.session.pipeline, call), []

    def lose_once(*given):
        if not losses and (master.session.worker != old) == has_new_name:
            losses.append(call)
            raise LinkLost("cut")
        send(*given)

    monkeypatch.setattr(master.session.pipeline, call, lose_once)
    live.deregister(old)
    master.turn_until(lambda: losses)
    master.lose_connection()
    master.turn_until(lambda: master.is_waiting)
    (event,) = master.desk.events("worker.deregistered")
    assert (event["old"], event["new"]) == (old, master.session.worker)


def test_idle_worker_retires(played, live):
    master = played(idle_s=0.01)
    master.turn_until(lambda: master.session.has_left)
    assert live.workers() == []


def test_worker_with_a_job_does_not_retire(played, live):
    master = played(idle_s=3600.0)
    live.queue("q").put("k")
    running(master)
    master.pump.step(clock.monotonic() + 7200)
    master.turn_until(lambda: master.session.idle)
    assert not master.session.has_left


def test_paused_master_leaves_jobs_and_their_wakeup(played, live, server, namespace):
    master = played()
    master.desk.placing.pause()
    master.turn_until(lambda: not master.session.wakeups.waiting or master.session.wakeups.waits_for is WaitsFor.MAIL)
    live.queue("q").put("k", jid="a")
    master.turn_until(lambda: master.session.wakeups.waiting)  # for mail alone
    assert (live.job("a").state, server.redis.llen(f"{{{namespace}}}:bell:q")) == ("waiting", 1)
    master.desk.placing.resume()
    master.leasing.lease_soon()
    assert running(master).jid == "a"


def test_outcome_refused_by_a_full_redis_is_sent_again(played, live, server):
    master = played()
    live.queue("q").put("k", jid="a")
    held = master.desk.ledger.find(running(master).token)
    master.turn_until(lambda: master.session.idle)
    server.redis.config_set("maxmemory", 1)
    try:
        held.weight_bytes = 2**20
        master.desk.ledger.end(held, Completed(held.lease, data="x" * 2**20))
        master.turn_until(lambda: master.desk.events("redis.failed"))
        assert live.job("a").state == "running"
    finally:
        server.redis.config_set("maxmemory", 0)
    master.turn_until(lambda: master.demand.is_settled)
    assert live.job("a").state == "complete"


def test_outcomes_with_too_much_work_for_one_exchange_go_with_two(played, live):
    master = played()
    live.queue("parents").put_many({"klass": "k", "jid": f"p{i}"} for i in range(1_000))
    known = [{"klass": "k", "jid": f"c{i}", "depends": [f"p{j}" for j in range(1_000)]} for i in range(6)]
    live.queue("children").put_many(known)
    then = [{"queue": "children", "klass": "k", "jid": f"c{i}"} for i in range(6)]
    live.queue("q").put("k", jid="a")
    first = master.desk.ledger.find(running(master).token)
    master.turn_until(lambda: master.session.idle)
    live.queue("other").put("k", jid="b")
    second = HeldLease(live.queue("other").lease(master.session.worker)[0], HandlerSettings(), 60.0, None, True)
    master.desk.ledger.add(second)
    master.desk.ledger.end(first, Completed(first.lease, then=then[:3]))
    master.desk.ledger.end(second, Completed(second.lease, then=then[3:]))
    master.turn_until(lambda: master.demand.is_settled)
    assert [job.state for job in live.jobs("a", "b", "c0", "c5")] == ["complete", "complete", "depends", "depends"]
    assert len(master.desk.events("job.completed")) == 2
    assert not master.desk.events("redis.lost")


def test_outcome_whose_answer_was_lost_counts_once(played, live):
    master = played()
    live.queue("q").put("k", jid="a")
    held = master.desk.ledger.find(running(master).token)
    master.turn_until(lambda: master.session.idle)
    master.desk.ledger.end(held, Completed(held.lease))
    master.pump.step(clock.monotonic())  # sends it
    assert not master.session.idle
    master.lose_connection()
    master.turn_until(lambda: master.demand.is_settled)
    assert live.job("a").state == "complete"
    assert len(master.desk.events("job.completed")) == 1
    assert master.desk.events("job.stale") == []


def test_request_is_answered(played, live):
    master = played()
    live.ask(master.session.worker, "status", timeout=0)
    master.turn_until(lambda: master.session.idle and not calls_of(live).call(mailbox.requests, master.session.worker))


def test_freed_slots_of_limits_are_refilled_while_others_wait(played):
    master = played()
    demand, ledger, ready = master.demand, master.desk.ledger, master.desk.ledgers.ready
    first, second = held_of(1), held_of(2)
    first.lease.limited = True
    for held in (first, second):
        ledger.add(held)
    ready.append(second)
    assert demand.for_freed_slots(ledger) is None
    ledger.end(first, Completed(first.lease))
    wanted = demand.for_freed_slots(ledger)
    assert (wanted.count, wanted.ahead) == (1, True)
    ready.clear()
    assert demand.for_freed_slots(ledger) is None  # the usual lease asks for them
