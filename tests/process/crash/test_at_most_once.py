"""An at-most-once job never starts twice, whichever process is killed when, and no job is lost."""

import os
import signal
from collections import Counter

import pytest
from watched import FULL, Killer

KILLS = 200 if FULL else 30


def finish(stage, *pools, **left):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(**left)


def put_once(stage, **options):
    """Put a job that is at-most-once by its own option, for an ordinary handler."""
    return stage.queue.put("good.nap", 30, at_most_once=True, **options)


@pytest.mark.parametrize("by_handler", [False, True])
def test_job_of_a_dead_child_fails(stage, by_handler):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("watch.once", 30) if by_handler else put_once(stage)
    (start,) = stage.wait_for_starts(jid)
    os.kill(start.pid, signal.SIGKILL)
    pool.wait_for("job.died", jid=jid, state="failed")
    job = stage.client.job(jid)
    assert (job.state, job.failure["group"], job.at_most_once) == ("failed", "died:SIGKILL", True)
    finish(stage, pool)


def test_raising_job_fails_whatever_its_retries(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("watch.once_and_raise", retries=5)
    pool.wait_for("job.failed", jid=jid)
    assert stage.client.job(jid).failure["group"] == "RuntimeError"
    assert len(stage.ledger.starts(jid)) == 1
    finish(stage, pool)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGQUIT])
def test_drained_job_fails_as_interrupted(stage, signo):
    pool = stage.start(processes=1, drain_timeout="0s").wait_ready()
    jid = put_once(stage)
    stage.wait_for_starts(jid)
    pool.send(signo)
    assert pool.wait() == 0
    assert stage.client.job(jid).failure["group"] == "interrupted"
    assert [event["group"] for event in pool.find("job.failed", jid=jid)] == ["interrupted"]
    assert pool.find("job.released") == [] and pool.find("master.stopped")[0]["failed"] == 1
    second = stage.start(processes=1).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert len(stage.ledger.starts(jid)) == 1
    finish(stage, second)


def test_job_of_a_killed_zygote_fails(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = put_once(stage)
    stage.wait_for_starts(jid)
    os.kill(pool.zygote_pid, signal.SIGKILL)
    stage.wait_until_settled([jid])
    assert stage.client.job(jid).failure["group"] == "interrupted"
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert len(stage.ledger.starts(jid)) == 1
    finish(stage, pool)


def test_job_of_a_killed_master_fails_as_lost(stage):
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="1s").wait_ready()
    jid = put_once(stage)
    stage.wait_for_starts(jid)
    first.send(signal.SIGKILL)
    first.wait()
    second = stage.start(processes=1, lease_ttl="1s").wait_ready()
    stage.wait_until_settled([jid])
    assert stage.client.job(jid).failure["group"] == "died:lost"
    assert len(stage.ledger.starts(jid)) == 1
    stage.client.deregister(first.worker)
    finish(stage, second)


def test_unstarted_job_is_handed_back_in_a_drain(stage):
    first = stage.start(processes=1, jobs_per_child=0, drain_timeout="10s").wait_ready()
    gate = stage.gate("gate")
    stage.wait_for_starts(stage.queue.put("good.hold", gate))
    jids = [stage.queue.put("watch.once", 0) for _ in range(20)]
    first.send(signal.SIGTERM)
    first.wait_for("master.draining")
    second = stage.start(processes=1, jobs_per_child=0).wait_ready()
    stage.wait_until_ended(jids)
    assert stage.states(jids) == ["complete"] * 20
    stage.open_gate(gate)
    assert first.wait() == 0
    finish(stage, second)


def test_jobs_are_not_leased_ahead(stage, measured):
    """A job never waits at a busy child, and the master does not lease jobs again and again to hand them back."""
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop") for _ in range(20)])
    jids = [stage.queue.put("watch.once", 0.02) for _ in range(60)]
    stage.wait_until_ended(jids)
    assert stage.states(jids) == ["complete"] * 60
    handed_back = sum(event["count"] for event in pool.find("lease.returned"))
    measured(f"60 at-most-once jobs after short ones: {handed_back} handed back")
    assert handed_back < 60  # at most the first lease, before their kind was known
    finish(stage, pool)


@pytest.mark.slow
@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_job_never_starts_twice_under_random_kills(stage, jobs_per_child, measured):
    """Kills of children, zygotes and masters, in drains, at any moment of a start. TEST_FULL=1: 200 kills."""
    stage.config(grace=0.3)

    def start():
        return stage.start(processes=2, lease_ttl="1s", jobs_per_child=jobs_per_child, drain_timeout="0s")

    killer = Killer(stage, start, seed=7 + jobs_per_child).fill(2)
    for pool in killer.pools:
        pool.wait_ready()
    jids, drains = [], 0
    while len(killer.killed) + drains < KILLS:
        for _ in range(12 - stage.queue.length()):
            jids.append(stage.queue.put("watch.once", killer.draw.choice((0, 0, 0.005, 0.02))))
        stage.let_time_pass(killer.draw.uniform(0.0, 0.06))
        what = killer.draw.choices(("last", "child", "zygote", "master", "drain"), (50, 30, 6, 6, 8))[0]
        if what == "last":
            started = stage.ledger.starts()[-1:]
            killer.kill_running(started[0].pid if started else 0)
            continue
        if what != "drain":
            killer.kill(what)
            continue
        pool = killer.draw.choice(killer.pools)
        if pool.find("child.ready"):
            pool.send(signal.SIGTERM)
            stage.let_time_pass(killer.draw.uniform(0.0, 0.02))
            if killer.draw.random() < 0.3:
                killer.kill("child", pool)
            pool.wait()
            killer.pools[killer.pools.index(pool)] = start()
            drains += 1
    stage.wait_until_settled(jids, 60)
    states = Counter(stage.states(jids))
    groups = Counter(job.failure["group"] for job in stage.client.jobs(*jids[:1000]) if job.state == "failed")
    starts = Counter(start.jid for start in stage.ledger.starts())
    measured(f"{killer.counts()} killed, {drains} drained; {dict(states)}, {dict(groups)}")
    assert {jid: n for jid, n in starts.items() if n > 1} == {}
    assert set(states) <= {"complete", "failed"}
    assert states["complete"] <= len(starts) <= len(jids)
    assert set(groups) <= {"interrupted", "died:SIGKILL", "died:lost"}
    killer.forget_dead()
    finish(stage, *killer.pools, directories=True)
