"""A job is taken from its supervisor: the child is stopped at once, and its outcome does not count."""

import signal
import time

import pytest
from supervised import await_ends

from supervisor.engine.commands import mailbox

#: Longest time from the call to the end of the handler. The next renewal would be ten seconds away.
AT_ONCE_S = 5.0


def hold(stage, **options):
    """A running job that waits at a gate of its own, which stays closed."""
    jid = stage.queue.put("good.count_interrupted", stage.gate(f"gate-{len(stage.ledger.starts())}"), **options)
    (start,) = stage.wait_for_starts(jid)
    stage.wait_until_heard(len(stage.pools))
    return jid, start


def wait_until_stopped(pool, jid, began_unix, reason):
    """Return how long it took."""
    lost = pool.wait_for("lease.lost", jid=jid)
    assert lost["reason"] == reason
    said = pool.wait_for("job.printed", jid=jid)
    assert said["line"] == f"cleaning up after Interrupted {reason}"
    assert said["time"] - began_unix <= AT_ONCE_S
    pool.wait_for("job.stale", jid=jid, verb="released")
    return said["time"] - began_unix


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_running_job_put_again_restarts_with_new_data(stage, measured, jobs_per_child):
    pool = stage.start(queue=["default", "other"], jobs_per_child=jobs_per_child).wait_ready()
    jid, _start = hold(stage)
    began_unix = time.time()
    stage.client.queue("other").put("good.echo", "moved", jid=jid)
    stopped_s = wait_until_stopped(pool, jid, began_unix, "lease-lost")
    measured(f"put of a running job -> its handler is interrupted: {1000 * stopped_s:.1f} ms")
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.queue, job.result, job.interruptions, job.deaths) == ("complete", "other", "moved", 0, 0)
    assert [start.attempt for start in stage.ledger.starts(jid)] == [1, 1]
    assert pool.find("child.killed") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_moved_job_stops_here_and_runs_at_the_peer(stage):
    here = stage.start().wait_ready()
    jid, _start = hold(stage)
    there = stage.start(queue="other").wait_ready()
    stage.wait_until_heard(2)
    began_unix = time.time()
    stage.client.job(jid).move("other")
    wait_until_stopped(here, jid, began_unix, "lease-lost")
    again = stage.wait_for_starts(jid, 2)[1]
    assert again.unix - began_unix <= AT_ONCE_S
    stage.open_gate("gate-0")
    there.wait_for("job.completed", jid=jid)
    assert here.find("job.completed") == []
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


def test_cancelled_job_is_stopped_at_once_and_gone(stage, measured):
    pool = stage.start(processes=2).wait_ready()
    jid, _start = hold(stage)
    neighbour, _start = hold(stage)
    began_unix = time.time()
    assert stage.client.cancel(jid, by="kim@web-1") == [jid]
    stopped_s = wait_until_stopped(pool, jid, began_unix, "cancelled")
    assert pool.find("lease.lost", jid=jid)[0]["by"] == "kim@web-1"
    measured(f"cancel of a running job -> its handler is interrupted: {1000 * stopped_s:.1f} ms")
    assert stage.client.job(jid) is None
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([after])
    assert stage.client.job(neighbour).state == "running"
    stage.open_gate("gate-1")
    stage.wait_until_ended([neighbour])
    assert len(stage.ledger.starts(neighbour)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_failed_or_released_by_an_operator_stops_at_once(stage):
    pool = stage.start(processes=1).wait_ready()
    failed, _start = hold(stage)
    began_unix = time.time()
    stage.client.job(failed).fail("no-more", "not wanted")
    wait_until_stopped(pool, failed, began_unix, "lease-lost")
    assert stage.client.job(failed).failure["group"] == "no-more"
    released, _start = hold(stage)
    began_unix = time.time()
    assert stage.client.job(released).release() is True
    wait_until_stopped(pool, released, began_unix, "lease-lost")
    stage.wait_for_starts(released, 2)
    stage.open_gate("gate-1")
    stage.wait_until_ended([released])
    assert len(stage.ledger.starts(failed)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_deaf_cancelled_handler_is_killed_after_the_grace(stage):
    pool = stage.start(processes=1, term_grace="300ms").wait_ready()
    jid = stage.queue.put("bad.swallow", stage.gate("gate"))
    (start,) = stage.wait_for_starts(jid)
    stage.wait_until_heard(1)
    stage.client.cancel(jid)
    assert pool.wait_for("child.killed", jid=jid)["reason"] == "cancelled"
    assert await_ends([start.pid], 10.0) == []
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([after])
    assert pool.find("job.died") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_one_call_cancels_all_running_jobs(stage):
    pool = stage.start(processes=6).wait_ready()
    gate = stage.gate("gate")
    held = stage.queue.put_many([{"klass": "good.count_interrupted", "data": gate} for _ in range(6)])
    for jid in held:
        stage.wait_for_starts(jid)
    stage.wait_until_heard(1)
    began_unix = time.time()
    assert sorted(stage.client.cancel(*held)) == sorted(held)
    for jid in held:
        wait_until_stopped(pool, jid, began_unix, "cancelled")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_many_hints_make_one_renewal(stage, proxies):
    proxy = proxies(0)
    pool = stage.start(redis_url=proxy.url).wait_ready()
    jid, _start = hold(stage)
    pool.send(signal.SIGSTOP)
    asked = proxy.counts()["exchanges"]
    for _ in range(90):
        stage.client._store.run(mailbox.tell(pool.worker, b"lost"))
    began_unix = time.time()
    stage.client.cancel(jid)
    pool.send(signal.SIGCONT)
    wait_until_stopped(pool, jid, began_unix, "cancelled")
    stage.wait_until_heard(1)
    assert proxy.counts()["exchanges"] - asked <= 8
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_cancelled_job_does_not_delay_a_drain(stage):
    pool = stage.start(processes=1, drain_timeout="20s").wait_ready()
    jid, _start = hold(stage)
    pool.send(signal.SIGTERM)
    pool.wait_for("master.draining")
    stage.wait_until_heard(1)
    began_at = time.monotonic()
    stage.client.cancel(jid)
    assert pool.wait() == 0
    assert time.monotonic() - began_at < 10
    assert pool.find("lease.lost", reason="cancelled")
    stage.assert_nothing_left()


def test_deregistered_supervisor_stops_its_jobs_and_changes_its_name(stage, measured):
    pool = stage.start(processes=3).wait_ready()
    old = pool.worker
    gate = stage.gate("gate")
    held = [stage.queue.put("good.count_interrupted", gate) for _ in range(3)]
    children = [stage.wait_for_starts(jid)[0].pid for jid in held]
    stage.wait_until_heard(1)
    began_unix = time.time()
    assert stage.client.deregister(old) == 3
    said = pool.wait_for("worker.deregistered", old=old)
    for jid in held:
        wait_until_stopped(pool, jid, began_unix, "lease-lost")
        stage.wait_for_starts(jid, 2)
    assert await_ends(children, 10.0) == []
    stage.open_gate(gate)
    stage.wait_until_ended(held)
    measured(f"deregister -> it goes on under another name: {1000 * (said['time'] - began_unix):.1f} ms")
    assert said["new"] != old and said["new"].startswith(old.rpartition("-")[0])
    assert [worker.name for worker in stage.client.workers()] == [said["new"]]
    for jid in held:
        job = stage.client.job(jid)
        assert (job.state, job.deaths, job.interruptions) == ("complete", 0, 0)
    assert len(pool.find("worker.deregistered")) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_peer_gets_jobs_of_a_deregistered_supervisor_at_once(stage):
    busy = stage.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    held = [stage.queue.put("good.count_interrupted", gate) for _ in range(2)]
    for jid in held:
        stage.wait_for_starts(jid)
    idle = stage.start(processes=2).wait_ready()
    stage.wait_until_heard(2)
    began_unix = time.time()
    stage.client.deregister(busy.worker)
    for jid in held:
        assert stage.wait_for_starts(jid, 2)[1].unix - began_unix <= AT_ONCE_S
    busy.wait_for("worker.deregistered")
    stage.open_gate(gate)
    stage.wait_until_ended(held)
    after = stage.queue.put_many([{"klass": "good.noop"} for _ in range(20)])
    stage.wait_until_ended(after)
    assert idle.find("worker.deregistered") == []
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


def test_deregistered_idle_supervisor_takes_the_next_job(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    stage.client.deregister(pool.worker)
    jid = stage.queue.put("good.noop")
    stage.wait_until_ended([jid])
    pool.wait_for("worker.deregistered")
    assert len(stage.ledger.starts(jid)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_supervisor_learns_of_its_deregistration_after_an_outage(own_stage):
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    jid, _start = hold(stage)
    pool.send(signal.SIGSTOP)
    assert stage.client.deregister(pool.worker) == 1
    stage.server.kill()
    stage.server.start()
    pool.send(signal.SIGCONT)
    pool.wait_for("redis.lost")
    pool.wait_for("worker.deregistered")
    stage.wait_for_starts(jid, 2)
    stage.open_gate("gate-0")
    stage.wait_until_ended([jid])
    assert pool.find("lease.lost", jid=jid, reason="lease-lost")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_supervisor_deregistered_under_load_completes_every_job(stage):
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()
    jids = stage.queue.put_many([{"klass": "good.nap", "data": 0.002} for _ in range(600)])
    for number in range(5):
        stage.wait_until(lambda number=number: len(stage.ended()) >= 80 * (number + 1), "some more")
        name = ([pool.worker, *(said["new"] for said in pool.find("worker.deregistered"))])[-1]
        stage.client.deregister(name)
        pool.wait_for("worker.deregistered", old=name)
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    completed = [said["jid"] for said in pool.find("job.completed")]
    assert sorted(completed) == sorted(jids)
    assert all(job.deaths == 0 for job in stage.client.jobs(*jids))
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_jobs_longer_than_a_workers_record_stay_with_it(stage):
    stage.client.config.set("max-worker-age", 4)
    pool = stage.start(processes=2, lease_ttl="2s").wait_ready()
    gates = [stage.gate("short"), stage.gate("long")]
    short, long = [stage.queue.put("good.hold", gate) for gate in gates]
    for jid in (short, long):
        stage.wait_for_starts(jid)
    stage.let_time_pass(6.0)
    stage.open_gate("short")
    stage.wait_until_ended([short])
    stage.wait_until_ended([stage.queue.put("good.noop")])
    stage.open_gate("long")
    stage.wait_until_ended([long])
    assert len(stage.ledger.starts(long)) == 1
    assert pool.find("worker.deregistered") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_jobs_cancelled_at_their_start_need_no_kill(stage):
    pool = stage.start(processes=2).wait_ready()
    gate, left = stage.gate("closed"), 40
    with stage.client.events() as stream:
        stage.queue.put_many({"klass": "good.count_interrupted", "data": gate} for _ in range(left))
        while left:
            event = stream.get(30)
            assert event is not None
            if event.name == "lease.granted":
                left -= len(stage.client.cancel(event.jid))
    assert pool.drain() == 0
    assert pool.find("child.killed") == []
    stage.assert_nothing_left()
