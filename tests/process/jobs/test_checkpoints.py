"""Checkpoints: a job resumes at its last checkpoint, however its last run ended, and repeats no stored step."""

import contextlib
import os
import random
import signal
import time

import psutil
import pytest
from supervised import quantiles
from watched import FULL

from supervisor.linux import kernel

#: A way down in which nothing may finish. For a third of the grace a step is waited for.
QUICK = {"drain_timeout": "0s", "reload_timeout": "0.01s", "term_grace": "12s"}


class Steps:
    """The steps that handlers of steps.py have done, read from the file that they write."""

    def __init__(self, stage):
        self.stage = stage
        self.path = stage.directory / "steps"
        self.path.touch()

    def done(self):
        return [int(line) for line in self.path.read_text().splitlines()]

    def wait_for(self, count):
        self.stage.wait_until_counted(lambda: len(self.done()) >= count)

    def put(self, klass, steps, nap_s, **more):
        return self.stage.queue.put(klass, {"file": str(self.path), "steps": steps, "nap_s": nap_s, **more})


@pytest.fixture
def steps(stage):
    return Steps(stage)


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def drain(stage, pool):
    """Drain the supervisor. Another one resumes the job."""
    assert pool.drain() == 0
    return stage.start(**QUICK)


def reload(stage, pool):
    """Reload the supervisor, which resumes the job with a new zygote."""
    done = len(pool.find("job.released"))
    pool.send(signal.SIGHUP)
    pool.wait_for("job.released", nth=done + 1)
    return pool


WAYS = {"drain": drain, "reload": reload}


@pytest.mark.parametrize(
    ("klass", "way"),
    [
        ("steps.march", "drain"),
        ("steps.march", "reload"),
        ("steps.march_async", "drain"),
        ("steps.march_in_thread", "drain"),
    ],
)
def test_job_with_checkpoints_does_each_step_once(stage, steps, klass, way, measured):
    """TEST_FULL=1: a thousand steps, stopped twenty times."""
    count, stops = (1000, 20) if FULL else (150, 3)
    enough = stage.directory / "enough"
    pool = stage.start(**QUICK)
    jid = steps.put(klass, count, 0.002, until=str(enough))
    for _ in range(stops):
        steps.wait_for(len(steps.done()) + 2 + random.randrange(20))  # the first is stored by then
        pool = WAYS[way](stage, pool)
    enough.touch()
    stage.wait_until_ended([jid])
    done = steps.done()
    assert len(done) >= count
    assert done == list(range(len(done)))
    job = stage.client.job(jid)
    assert (job.state, job.result, job.saved) == ("complete", stops + 1, None)
    assert (job.interruptions, job.deaths, job.failures) == (stops, 0, 0)
    released = [event["reason"] for event in stage.find("job.released", jid=jid)]
    assert released == [way] * stops
    finish(stage, pool)


def test_random_kill_costs_at_most_one_unstored_step(stage, steps):
    """TEST_FULL=1: forty kills."""
    kills = 40 if FULL else 8
    pool = stage.start(processes=2).wait_ready()
    marched = []
    for number in range(kills):
        begun = len(steps.done())
        enough = stage.directory / f"enough-{number}"  # it goes on until it has been killed
        jid = steps.put("steps.march", begun + 40, 0.001, until=str(enough))
        start = stage.wait_for_starts(jid)[0]
        steps.wait_for(begun + 1 + random.randrange(20))
        stage.let_time_pass(random.uniform(0, 0.002))
        os.kill(start.pid, signal.SIGKILL)
        enough.touch()
        stage.wait_until_ended([jid])
        done = steps.done()[begun:]
        repeated = len(done) - len(set(done))
        assert sorted(set(done)) == list(range(max(done) + 1)) and max(done) >= begun + 39, number
        assert repeated <= 1, number
        assert stage.client.job(jid).deaths == 1
        marched.append(jid)
        steps.path.write_text("")
    finish(stage, pool)


@pytest.mark.parametrize("how", ["retry", "exit", "next"])
def test_checkpoint_lasts_for_its_stage_only(stage, how):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("steps.once", {"state": {"n": 5}, "times": 1, "how": how})
    stage.wait_until_settled([jid])
    pool.wait_for("job.completed", jid=jid, nth=1 if how != "next" else 2)
    again = how != "next"
    assert stage.client.job(jid).result == ([{"n": 5}, 1] if again else None)
    pool.wait_for("job.printed", jid=jid, nth=2)
    printed = [event["line"] for event in pool.find("job.printed", jid=jid)]
    assert [line for line in printed if line.startswith("found")] == [
        "found None", "found [{'n': 5}, 1]" if again else "found None"
    ]  # fmt: skip
    assert stage.client.job(jid).saved is None
    finish(stage, pool)


def test_failed_job_keeps_its_checkpoint_for_unfail(stage):
    pool = stage.start(processes=1, on_error="fail").wait_ready()
    jid = stage.queue.put("steps.once", {"state": "x" * 60_000, "times": 1, "how": "retry"})
    pool.wait_for("job.failed", jid=jid)
    assert stage.client.job(jid).saved == ["x" * 60_000, 1]
    stage.client.job(jid).unfail()
    pool.wait_for("job.started", jid=jid, nth=2)
    pool.wait_for("job.failed", jid=jid, nth=2)  # it begins to count anew
    # So long a line may come in several pieces.
    assert any(event["line"].startswith("found ['xxx") for event in pool.find("job.printed", jid=jid))
    assert stage.client.cancel(jid) == [jid]
    assert not list(stage.server.redis.scan_iter(f"{stage.prefix}saved:*"))
    finish(stage, pool)


def test_large_checkpoint_arrives_with_a_large_payload(stage):
    pool = stage.start(processes=1).wait_ready()
    data = {"state": "x" * 50_000, "times": 1, "how": "retry", "load": "y" * 300_000}
    jid = stage.queue.put("steps.once", data)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == ["x" * 50_000, 1]
    finish(stage, pool)


def test_unstorable_checkpoint_raises_and_forks_store_none(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("steps.refused")
    stage.wait_until_ended([jid])
    *refused, of_a_fork = stage.client.job(jid).result
    assert [said.partition(" must ")[0] for said in refused] == [
        "TypeError: state",
        "ValueError: state",
        "TypeError: state",
    ]
    assert of_a_fork == 7
    finish(stage, pool)


def test_checkpoints_of_many_threads_are_answered_despite_signals(stage):
    threads, each = (8, 200) if FULL else (4, 60)
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("steps.crowd", {"threads": threads, "each": each})
    pid = stage.wait_for_starts(jid)[0].pid
    while jid not in stage.ended():
        try:
            for _ in range(20):
                os.kill(pid, kernel.NOTICE_SIGNAL)
        except ProcessLookupError:
            break
        stage.let_time_pass(0.001)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).result == list(range(threads + 1))
    finish(stage, pool)


def test_checkpoint_after_a_lost_lease_raises(stage):
    pool = stage.start(processes=1, term_grace="10s").wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("steps.after_gate", {"gate": gate, "catch": True})
    stage.wait_for_starts(jid)
    stage.client.job(jid).move("elsewhere")
    pool.wait_for("job.stale", jid=jid)
    pool.wait_for("job.printed", jid=jid, nth=3)
    printed = [event["line"] for event in pool.find("job.printed", jid=jid)]
    lost = "the lease of this job is not"
    assert printed == ["interrupted: lease-lost", f"lost: first {lost}", f"lost: second {lost}"]
    job = stage.client.job(jid)
    assert (job.state, job.queue, job.saved) == ("waiting", "elsewhere", None)
    finish(stage, pool, waiting=["elsewhere"])


def test_checkpoint_of_a_taken_over_job_is_refused(stage):
    """The job's master is stopped and does not know yet."""
    pool = stage.start(processes=1, term_grace="10s").wait_ready()
    gate = stage.gate("gate")
    passed = stage.directory / "passed"
    jid = stage.queue.put("steps.after_gate", {"gate": gate, "passed": str(passed)})
    child = psutil.Process(stage.wait_for_starts(jid)[0].pid)
    pool.send(signal.SIGSTOP)
    stage.client.job(jid).release()
    (lease,) = stage.queue.lease("other")
    stage.open_gate(gate)
    stage.wait_until_counted(lambda: passed.exists() and child.status() == psutil.STATUS_SLEEPING)  # for its answer
    pool.send(signal.SIGCONT)
    pool.wait_for("job.stale", jid=jid)
    pool.wait_for("job.printed", jid=jid, nth=2)
    printed = [event["line"].partition(" the")[0] for event in pool.find("job.printed", jid=jid)]
    assert printed == ["lost: first", "lost: second"]
    assert stage.client.job(jid).saved is None
    assert lease.complete()
    stage.client.deregister("other")
    finish(stage, pool)


#: Steps of a job. An outage that begins after the first twenty comes before the last one.
MANY = 500


def marching(stage, count=MANY, **flags):
    """Start a job of so many steps, and return it with its supervisor after some steps."""
    stage.config(grace=0.3)
    steps = Steps(stage)
    pool = stage.start(lease_ttl="2s", **flags).wait_ready()
    jid = steps.put("steps.march", count, 0.001)
    steps.wait_for(20)
    return pool, steps, jid


@contextlib.contextmanager
def away(server, how):
    """Make an outage of the server, by its end or by its silence, for the block."""
    if how == "stopped":
        server.process.send_signal(signal.SIGSTOP)
    else:
        server.kill()
    yield
    if how == "stopped":
        server.process.send_signal(signal.SIGCONT)
    else:
        server.start()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_checkpoint_waits_out_an_outage(own_stage, own_server, how):
    stage = own_stage
    pool, steps, jid = marching(stage)
    with away(own_server, how):
        pool.wait_for("redis.lost")
        stage.let_time_pass(0.3)
        assert len(steps.done()) < MANY
    stage.wait_until_ended([jid])
    assert steps.done() == list(range(MANY))
    assert len(stage.ledger.starts(jid)) == 1
    finish(stage, pool)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_received_checkpoint_survives_its_child_and_an_outage(own_stage, own_server, how):
    stage = own_stage
    pool, steps, jid = marching(stage)
    with away(own_server, how):
        pool.wait_for("redis.lost")
        stage.let_time_pass(1.0)  # by then it waits for the answer to its last one
        os.kill(stage.ledger.starts(jid)[0].pid, signal.SIGKILL)
        pool.wait_for("child.reaped", status="SIGKILL")
    stage.wait_until_ended([jid])
    assert steps.done() == list(range(MANY))
    assert stage.client.job(jid).deaths == 1
    finish(stage, pool)


@pytest.mark.sampled(2)
def test_drain_interrupts_a_checkpoint_that_waits_for_redis(own_stage, own_server):
    stage = own_stage
    pool, steps, jid = marching(stage, drain_timeout="0s", term_grace="10s")
    own_server.kill()
    pool.wait_for("redis.lost")
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 75
    assert not pool.find("child.killed")
    assert time.monotonic() - began_at < 20
    own_server.start()
    second = stage.start(lease_ttl="2s")
    stage.wait_until_ended([jid])
    done = steps.done()
    assert sorted(set(done)) == list(range(MANY))
    assert len(done) <= MANY + 1  # Redis could not be told of the last one
    stage.client.deregister(pool.worker)
    finish(stage, second)


def test_lost_replies_lose_no_checkpoint(stage, proxies, steps):
    stage.config(grace=0.2)
    proxy = proxies(10)
    pool = stage.start(redis_url=proxy.url, processes=1).wait_ready()
    for _ in range(3):
        jid = steps.put("steps.march", 20, 0)
        stage.wait_until_ended([jid])
        assert steps.done() == list(range(20))
        steps.path.write_text("")
    assert proxy.counts()["dropped"] >= 5
    finish(stage, pool)


def test_should_stop_is_true_from_the_start_of_a_drain(stage, steps):
    pool = stage.start(processes=1, drain_timeout="20s").wait_ready()
    jid = steps.put("steps.listen", 0, 0)
    stage.wait_for_starts(jid)
    stage.let_time_pass(0.05)
    began_at = pool.send(signal.SIGTERM)
    steps.wait_for(1)
    assert time.monotonic() - began_at < 12
    assert pool.wait() == 0
    assert stage.client.job(jid).result == "in peace"
    stage.assert_nothing_left()


def test_checkpoint_takes_little_time(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    count = 5000 if FULL else 500
    jid = stage.queue.put("steps.speed", count)
    stage.wait_until_ended([jid], 60)
    took_s = stage.client.job(jid).result
    measured(f"one checkpoint of {count}: {quantiles(took_s)}")
    finish(stage, pool)


def test_large_checkpoints_take_turns(stage, measured):
    """A job that stores one after another sends Redis 1.3 MB/s, less than the connection could carry."""
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("steps.large", 50)
    stage.wait_until_ended([jid])
    took_s = stage.client.job(jid).result
    measured(f"50 checkpoints of 64 KiB: {took_s:.2f} s")
    assert took_s >= (50 - 11) * 0.05
    finish(stage, pool)
