"""A supervisor that is cut off from Redis while a peer is not: which of them has the job, and which stops it."""

import signal

import pytest
from servers import stopped
from watched import Lock

from tests.lengths import PATIENCE

TIMES = {"lease_ttl": f"{2 * PATIENCE:g}s", "term_grace": "0.5s", "drain_timeout": "2s"}
GRACE_S = 1.5 * PATIENCE


@pytest.fixture
def lock(stage):
    made = Lock(str(stage.directory / "lock"))
    yield made
    made.close()


@pytest.fixture
def cut(stage, proxies):
    """A supervisor behind a proxy, and its proxy."""
    stage.config(grace=GRACE_S)

    def start(**flags):
        line = proxies(0)
        return stage.start(processes=1, redis_url=line.url, **{**TIMES, **flags}).wait_ready(), line

    return start


def hold(stage, lock, pool, klass):
    gate = stage.gate("gate")
    jid = stage.queue.put(klass, {"lock": lock.path, "gate": gate}, persistent=True)
    stage.wait_until_counted(lambda: lock.holder() in pool.child_pids())
    return jid


def finish(stage, *pools):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


@pytest.mark.parametrize("klass", ["watch.for_ever", "cut.deaf"])
@pytest.mark.parametrize("how", ["silent", "refused"])
def test_persistent_job_never_has_two_holders(stage, cut, lock, klass, how):
    pool, line = cut()
    jid = hold(stage, lock, pool, klass)
    peer = stage.start(processes=1, **TIMES).wait_ready()
    with stopped(line.process):
        if how == "refused":
            line.process.kill()
        stage.wait_until_counted(lambda: lock.holder() in peer.child_pids())
    assert lock.overlaps() == []
    if how == "silent":
        stale = pool.wait_for("job.stale", jid=jid)
        assert (stale["verb"], stale["reason"]) == ("released", "cut-off")
        assert "was cut off from Redis" in stale["message"]
    stage.client.cancel(jid)
    stage.open_gate("gate")
    stage.wait_until_counted(lambda: stage.queue.counts().running == 0)
    assert peer.drain() == 0
    assert pool.drain() == (0 if how == "silent" else 75)
    if how == "refused":
        stage.client.deregister(pool.worker)
    stage.assert_nothing_left()


@pytest.mark.parametrize(
    ("klass", "flags", "stops"),
    [
        ("good.count_interrupted", {}, False),
        ("good.count_interrupted", {"on_cut_off": "stop"}, True),
        ("cut.stops", {}, True),
        ("cut.goes_on", {"on_cut_off": "stop"}, False),
    ],
)
def test_job_that_a_peer_has_stops_or_goes_on(stage, cut, klass, flags, stops):
    pool, line = cut(**flags)
    jid = stage.queue.put(klass, stage.gate("gate"))
    stage.wait_for_starts(jid)
    with stopped(line.process):
        peer = stage.start(processes=1, **TIMES).wait_ready()
        stage.wait_for_starts(jid, 2)
        assert bool(pool.find("job.printed", line="cleaning up after Interrupted cut-off")) == stops
    pool.wait_for("job.stale", jid=jid, reason="cut-off" if stops else "lease-lost")
    stage.open_gate("gate")
    peer.wait_for("job.completed", jid=jid)
    finish(stage, pool, peer)


@pytest.mark.parametrize(("klass", "state"), [("cut.stops", "complete"), ("cut.stops_once", "failed")])
def test_stopped_job_that_is_still_ours_was_interrupted(stage, cut, klass, state):
    pool, line = cut()
    jid = stage.queue.put(klass, stage.gate("gate"))
    stage.wait_for_starts(jid)
    with stopped(line.process):
        pool.wait_for("job.printed", line="cleaning up after Interrupted cut-off")
    if state == "complete":
        released = pool.wait_for("job.released", jid=jid)
        assert released["reason"] == "cut-off"
        stage.wait_for_starts(jid, 2)
        stage.open_gate("gate")
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths, job.failures) == (state, 1, 0, 0)
    assert state == "complete" or job.failure["group"] == "interrupted"
    finish(stage, pool)


def test_short_outage_stops_nothing(stage, cut, lock):
    pool, line = cut(lease_ttl="6s")
    jid = hold(stage, lock, pool, "watch.for_ever")
    holder = lock.holder()
    with stopped(line.process):
        pool.wait_for("redis.lost")
    pool.wait_for("redis.connected")
    assert lock.holder() == holder
    stage.client.cancel(jid)
    pool.wait_for("lease.lost", jid=jid)
    finish(stage, pool)


def test_lease_behind_a_long_wait_is_renewed_at_once(stage, lock):
    """The lease counts from the start of the wait. Without a renewal the job would be stopped soon."""
    stage.config(grace=0.5)
    pool = stage.start(processes=1, lease_ttl="4s", term_grace="0.1s").wait_ready()
    stage.wait_until_idle(1)
    stage.let_time_pass(3.0)  # of the wait
    jid = hold(stage, lock, pool, "watch.for_ever")
    holder = lock.holder()
    stage.let_time_pass(2.5)  # beyond the end of a lease from the beginning of the wait
    assert lock.holder() == holder
    assert pool.find("job.released") == []
    stage.client.cancel(jid)
    stage.wait_until_counted(lambda: stage.queue.counts().running == 0)
    finish(stage, pool)


def test_master_stopped_for_too_long_stops_its_job(stage, lock):
    stage.config(grace=0.5)
    pool = stage.start(processes=1, lease_ttl="1s", term_grace="0.3s").wait_ready()
    jid = hold(stage, lock, pool, "watch.for_ever")
    holder = lock.holder()
    pool.send(signal.SIGSTOP)
    stage.let_time_pass(2.5)
    pool.send(signal.SIGCONT)
    assert pool.wait_for("job.released", jid=jid)["reason"] == "cut-off"
    stage.wait_until_counted(lambda: lock.holder() != holder)
    assert lock.overlaps() == []
    stage.client.cancel(jid)
    stage.wait_until_counted(lambda: stage.queue.counts().running == 0)
    finish(stage, pool)


def test_job_that_ended_while_the_master_was_stopped_is_kept(stage):
    stage.config(grace=0.5)
    pool = stage.start(processes=1, lease_ttl="1s", on_cut_off="stop").wait_ready()
    jid = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(jid)
    pool.send(signal.SIGSTOP)
    stage.open_gate("gate")
    stage.let_time_pass(2.5)
    pool.send(signal.SIGCONT)
    pool.wait_for("job.completed", jid=jid)
    assert pool.find("child.killed") == []
    finish(stage, pool)
