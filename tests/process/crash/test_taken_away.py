"""What a supervisor holds is taken from it: its child is stopped at once, and its word on the job does not count."""

import signal
import time

import pytest
from supervised import await_ends

from supervisor.engine.commands import writes

#: From the call to the end of the handler. The next renewal of a default lease would be ten seconds away.
AT_ONCE_S = 5.0


def hold(stage, **options):
    """A running job that waits at a gate of its own, which stays closed."""
    jid = stage.queue.put("good.count_interrupted", stage.gate(f"gate-{len(stage.ledger.starts())}"), **options)
    (start,) = stage.wait_for_starts(jid)
    stage.wait_until_heard(len(stage.pools))
    return jid, start


def wait_until_stopped(pool, jid, began_unix, reason):
    """Answers how long it took."""
    lost = pool.wait_for("lease.lost", jid=jid)
    assert lost["reason"] == reason
    said = pool.wait_for("job.printed", jid=jid)
    assert said["line"] == f"cleaning up after Interrupted {reason}"
    assert said["time"] - began_unix <= AT_ONCE_S
    pool.wait_for("job.stale", jid=jid, verb="released")
    return said["time"] - began_unix


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_a_job_that_is_put_anew_while_it_runs_is_stopped_at_once_and_runs_as_it_is_now(stage, measured, jobs_per_child):
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


def test_a_job_that_is_moved_away_is_stopped_here_and_runs_at_the_peer_that_serves_its_queue(stage):
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


def test_a_cancelled_job_is_stopped_at_once_with_that_reason_and_is_gone(stage, measured):
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


def test_a_job_that_an_operator_fails_or_releases_is_stopped_at_once(stage):
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


def test_a_handler_that_is_deaf_to_its_cancellation_is_killed_after_the_grace(stage):
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


def test_all_running_jobs_are_cancelled_by_one_call(stage):
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
        stage.client._store.run(writes.tell(pool.worker, b"lost"))
    began_unix = time.time()
    stage.client.cancel(jid)
    pool.send(signal.SIGCONT)
    wait_until_stopped(pool, jid, began_unix, "cancelled")
    stage.wait_until_heard(1)
    assert proxy.counts()["exchanges"] - asked <= 8
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_job_that_is_cancelled_while_its_supervisor_drains_does_not_hold_it_up(stage):
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


def test_what_a_deregistered_supervisor_ran_is_stopped_and_runs_anew_and_it_goes_on_under_another_name(stage, measured):
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


def test_a_peer_gets_what_a_deregistered_supervisor_held_at_once(stage):
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


def test_an_idle_supervisor_that_is_deregistered_takes_the_next_job_all_the_same(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    stage.client.deregister(pool.worker)
    jid = stage.queue.put("good.noop")
    stage.wait_until_ended([jid])
    pool.wait_for("worker.deregistered")
    assert len(stage.ledger.starts(jid)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_supervisor_that_was_deregistered_while_redis_was_away_learns_it_when_it_comes_back(own_stage):
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


def test_a_supervisor_that_is_deregistered_again_and_again_under_load_completes_every_job(stage):
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


def test_jobs_that_run_for_longer_than_a_worker_is_remembered_are_not_taken_from_their_supervisor(stage):
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


def test_jobs_that_are_cancelled_as_they_start_are_interrupted_and_nobody_is_killed(stage):
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
