"""A supervisor that exits when idle leaves no job behind, whenever a job comes."""

import random
import signal
import time

import pytest
from watched import FULL

IDLE_S = 0.3
#: Idle time of supervisors that must not end before a test has come to its next line.
PATIENCE_S = 2.0


def test_supervisor_exits_after_its_idle_time_and_not_before(stage):
    jids = [stage.queue.put("good.noop") for _ in range(3)]
    pool = stage.start(processes=2, exit_when_idle=f"{IDLE_S * 1000:.0f}ms")
    stage.wait_until_ended(jids)
    assert pool.wait() == 0
    idle = pool.wait_for("master.idle")
    assert idle["idle_s"] == IDLE_S
    assert idle["time"] - pool.find("job.started")[-1]["time"] >= IDLE_S
    assert pool.find("master.stopped")[0]["exit_code"] == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_put_around_an_idle_exit_runs_at_once(stage, measured):
    chance, here, after_s, left = random.Random(3), 0, 0.17, None
    trials = 200 if FULL else 8
    for _ in range(trials):
        pool = stage.start(processes=1, exit_when_idle="200ms")
        pool.wait_for("child.ready")
        if left:
            pool.wait_for("job.completed", jid=left)
        time.sleep(max(0.0, after_s + chance.uniform(-0.005, 0.005)))  # the exit comes about now
        jid = stage.queue.put("good.noop")
        assert pool.wait() == 0
        assert pool.find("master.idle")
        if pool.find("job.completed", jid=jid):
            here, after_s, left = here + 1, after_s + 0.01, None
            continue
        assert pool.find("job.started", jid=jid) == []
        assert stage.states([jid]) == ["waiting"]
        assert stage.server.redis.llen(f"{stage.prefix}bell:default") == 1
        after_s, left = after_s - 0.01, jid
    measured(f"{trials} puts around the exit: {here} run by the one that was about to end, {trials - here} by the next")
    if left:
        stage.start(processes=1, exit_when_idle="200ms").wait()
        assert stage.states([left]) == ["complete"]
    stage.assert_nothing_left()


def delayed(stage):
    stage.queue.put("good.noop", delay=1.75 * PATIENCE_S)


def running_for_long(stage):
    stage.queue.put("good.nap", 1.5 * PATIENCE_S)


def lost_by_another(stage):
    stage.config(grace=0.2)
    stage.queue.put("good.noop")
    stage.queue.lease("another", ttl=1.5 * PATIENCE_S)


@pytest.mark.parametrize("happen", [delayed, running_for_long, lost_by_another], ids=lambda each: each.__name__)
def test_due_running_or_lost_jobs_prevent_the_idle_exit(stage, happen):
    happen(stage)
    pool = stage.start(processes=1, exit_when_idle=f"{PATIENCE_S:g}s")
    assert pool.wait() == 0
    assert len(pool.find("job.completed")) == 1
    stage.client.deregister("another")
    stage.assert_nothing_left()


def test_pause_and_outage_prevent_the_idle_exit(own_stage):
    stage = own_stage
    jid = stage.queue.put("good.hold", stage.gate("gate"))
    pool = stage.start(processes=1, exit_when_idle="400ms")
    stage.wait_for_starts(jid)
    pool.send(signal.SIGUSR2)
    pool.wait_for("master.paused")
    stage.open_gate("gate")
    pool.wait_for("job.completed", jid=jid)
    stage.let_time_pass(0.8)
    assert pool.find("master.idle") == []
    stage.server.kill()
    pool.send(signal.SIGCONT)
    pool.wait_for("redis.lost")
    stage.let_time_pass(0.8)
    assert pool.find("master.idle") == []
    stage.server.start()
    pool.wait_for("redis.connected")
    assert pool.wait() == 0
    assert pool.find("master.idle")


def test_refused_idle_exit_is_retried_after_a_second(stage):
    pool = stage.start(processes=1, exit_when_idle=f"{PATIENCE_S:g}s").wait_ready()
    stage.server.redis.set(f"{stage.prefix}lanes:default", "of another program")
    pool.wait_for("redis.failed")
    stage.let_time_pass(PATIENCE_S)
    assert len(pool.find("redis.failed")) < 5
    stage.server.redis.delete(f"{stage.prefix}lanes:default")
    assert pool.wait() == 0
    assert pool.find("master.idle")
    stage.assert_nothing_left()
