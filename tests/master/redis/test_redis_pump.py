"""When the master speaks to Redis, and about what: a played master against a real server."""

from supervisor import clock
from supervisor.engine.commands import queries
from supervisor.engine.model.outcomes import Completed
from supervisor.master.model.held_lease import HeldLease
from supervisor.messages import HandlerSettings
from tests.parts import held_of, honest


def running(pump):
    """Turns until the child runs a job. Its lease."""
    (child,) = pump.desk.slots
    pump.turn_until(lambda: child.sent)
    return child.running.lease


def test_job_is_leased_with_the_wakeup(played, live):
    pump = played()
    live.queue("q").put("k", jid="a")
    assert running(pump).jid == "a"
    assert (live.job("a").state, live.job("a").worker) == ("running", pump.session.worker)


def test_completed_job_is_settled_and_the_next_leased(played, live):
    pump = played(honest)
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
    pump.turn_until(lambda: len(pump.desk.events("job.completed")) == 3 and pump.demand.is_settled)
    assert [live.job(jid).state for jid in "abc"] == ["complete"] * 3


def test_lease_is_renewed_every_third_of_its_ttl(played, live):
    pump = played()
    live.queue("q").put("k")
    running(pump)
    pump.turn_until(lambda: pump.session.idle)
    now_at, third_s = clock.monotonic(), pump.session.times.ttl_s / 3
    assert now_at < pump.renewing.deadline_at() <= now_at + third_s
    assert pump.desk.counts.renewed == 0
    pump.pump.step(now_at + third_s)
    pump.turn_until(lambda: pump.session.idle)
    assert pump.desk.counts.renewed == 1


def test_mail_of_a_cancelled_job_renews_at_once(played, live):
    pump = played()
    live.queue("q").put("k", jid="a")
    running(pump)
    live.cancel("a")
    pump.turn_until(lambda: pump.desk.events("lease.lost"))
    assert [event["reason"] for event in pump.desk.events("lease.lost")] == ["cancelled"]
    assert pump.demand.is_settled


def test_renewal_finds_a_cancelled_job_whose_mail_was_lost(played, live, server, namespace):
    pump = played()
    live.queue("q").put("k", jid="a")
    running(pump)
    pump.turn_until(lambda: pump.session.idle)
    live.cancel("a")
    server.redis.delete(f"{{{namespace}}}:mail:{pump.session.worker}")
    pump.pump.step(clock.monotonic() + pump.session.times.ttl_s / 3)
    pump.turn_until(lambda: pump.desk.events("lease.lost"))


def test_deregistered_worker_goes_on_under_another_name(played, live):
    pump = played()
    old = pump.session.worker
    live.deregister(old)
    pump.turn_until(lambda: pump.desk.events("worker.deregistered"))
    (event,) = pump.desk.events("worker.deregistered")
    assert (event["old"], event["new"]) == (old, pump.session.worker)
    live.queue("q").put("k", jid="a")
    running(pump)
    assert live.job("a").worker == pump.session.worker != old


def test_idle_worker_retires(played, live):
    pump = played(idle_s=0.01)
    pump.turn_until(lambda: pump.session.has_left)
    assert live.workers() == []


def test_worker_with_a_job_does_not_retire(played, live):
    pump = played(idle_s=3600.0)
    live.queue("q").put("k")
    running(pump)
    pump.pump.step(clock.monotonic() + 7200)
    pump.turn_until(lambda: pump.session.idle)
    assert not pump.session.has_left


def test_paused_master_leaves_jobs_and_their_wakeup(played, live, server, namespace):
    pump = played()
    pump.desk.placing.pause()
    pump.turn_until(lambda: not pump.session.wakeups.waiting or not pump.session.wakeups.waits_for_queues)
    live.queue("q").put("k", jid="a")
    pump.turn_until(lambda: pump.session.wakeups.waiting)  # for mail alone
    assert (live.job("a").state, server.redis.llen(f"{{{namespace}}}:bell:q")) == ("waiting", 1)
    pump.desk.placing.resume()
    pump.leasing.ask()
    assert running(pump).jid == "a"


def test_outcome_refused_by_a_full_redis_is_sent_again(played, live, server):
    pump = played()
    live.queue("q").put("k", jid="a")
    held = pump.desk.ledger.find(running(pump).token)
    pump.turn_until(lambda: pump.session.idle)
    server.redis.config_set("maxmemory", 1)
    try:
        held.weight_bytes = 2**20
        pump.desk.ledger.end(held, Completed(held.lease, data="x" * 2**20))
        pump.turn_until(lambda: pump.desk.events("redis.failed"))
        assert live.job("a").state == "running"
    finally:
        server.redis.config_set("maxmemory", 0)
    pump.turn_until(lambda: pump.demand.is_settled)
    assert live.job("a").state == "complete"


def test_outcomes_with_too_much_work_for_one_exchange_go_with_two(played, live):
    pump = played()
    live.queue("parents").put_many({"klass": "k", "jid": f"p{i}"} for i in range(1_000))
    known = [{"klass": "k", "jid": f"c{i}", "depends": [f"p{j}" for j in range(1_000)]} for i in range(6)]
    live.queue("children").put_many(known)
    then = [{"queue": "children", "klass": "k", "jid": f"c{i}"} for i in range(6)]
    live.queue("q").put("k", jid="a")
    first = pump.desk.ledger.find(running(pump).token)
    pump.turn_until(lambda: pump.session.idle)
    live.queue("other").put("k", jid="b")
    second = HeldLease(live.queue("other").lease(pump.session.worker)[0], HandlerSettings(), 60.0, None, True)
    pump.desk.ledger.add(second)
    pump.desk.ledger.end(first, Completed(first.lease, then=then[:3]))
    pump.desk.ledger.end(second, Completed(second.lease, then=then[3:]))
    pump.turn_until(lambda: pump.demand.is_settled)
    assert [job.state for job in live.jobs("a", "b", "c0", "c5")] == ["complete", "complete", "depends", "depends"]
    assert len(pump.desk.events("job.completed")) == 2
    assert not pump.desk.events("redis.lost")


def test_outcome_whose_answer_was_lost_counts_once(played, live):
    pump = played()
    live.queue("q").put("k", jid="a")
    held = pump.desk.ledger.find(running(pump).token)
    pump.turn_until(lambda: pump.session.idle)
    pump.desk.ledger.end(held, Completed(held.lease))
    pump.pump.step(clock.monotonic())  # sends it
    assert not pump.session.idle
    pump.lose_connection()
    pump.turn_until(lambda: pump.demand.is_settled)
    assert live.job("a").state == "complete"
    assert len(pump.desk.events("job.completed")) == 1
    assert pump.desk.events("job.stale") == []


def test_request_is_answered(played, live):
    pump = played()
    live.ask(pump.session.worker, "status", timeout=0)
    pump.turn_until(lambda: pump.session.idle and not live.call(queries.requests, pump.session.worker))


def test_freed_slots_of_limits_are_refilled_while_others_wait(played):
    pump = played()
    demand, ledger = pump.demand, pump.desk.ledger
    first, second = held_of(1), held_of(2)
    first.lease.limited = True
    for held in (first, second):
        ledger.add(held)
    ledger.ready.append(second)
    assert demand.for_freed_slots() is None
    ledger.end(first, Completed(first.lease))
    wanted = demand.for_freed_slots()
    assert (wanted.count, wanted.ahead) == (1, True)
    ledger.ready.clear()
    assert demand.for_freed_slots() is None  # the usual lease asks for them
