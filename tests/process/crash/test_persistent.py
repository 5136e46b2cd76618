"""Persistent jobs have no end: one child at a time holds each, and hardly ever none."""

import itertools
import os
import signal
import time

import pytest
from watched import FULL, Killed, Killer, Lock

from tests.lengths import PATIENCE

#: A job that was held for a shorter time comes back after a delay.
SHORT_HOLD_S = 10.0
RUN_S = 30.0 if FULL else 15.0
TTL_S, GRACE_S = 2.0, 1.0
#: On a loaded machine a master may be killed before it knows of the child's death.
CHILD_S = 0.1 if FULL else TTL_S + GRACE_S + 1.0
LONG_UNHELD_S = TTL_S + GRACE_S + 5.0 * PATIENCE


@pytest.fixture
def locks(stage):
    made = [Lock(str(stage.directory / f"lock-{number}")) for number in range(20)]
    yield made
    for lock in made:
        lock.close()


def put(stage, lock, klass="watch.for_ever", **data):
    return stage.queue.put(klass, {"lock": lock.path, **data}, persistent=True)


def finish(stage, *pools, **left):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(**left)


def wait_until_held(stage, *locks, timeout_s=20.0):
    stage.wait_until_counted(lambda: all(lock.holder() for lock in locks), timeout_s)


def end(stage, *jids):
    stage.client.cancel(*jids)
    stage.wait_until_counted(lambda: stage.queue.counts().running == 0)


def test_returning_persistent_job_comes_back_and_never_completes(stage, locks):
    pool = stage.start(processes=1, jobs_per_child=2).wait_ready()
    jid = put(stage, locks[0], "watch.hold_and_return", s=0.01)
    returned = pool.wait_for("job.returned", jid=jid, nth=2)
    assert (returned["klass"], returned["attempt"]) == ("watch.hold_and_return", 1)
    stage.wait_for_starts(jid, 3)
    assert pool.find("job.completed") == []
    assert stage.client.job(jid).state in ("running", "waiting", "scheduled")
    # The limit of jobs per child counts.
    stage.wait_until(lambda: len({start.pid for start in stage.ledger.starts(jid)}) >= 2, "another child")
    assert pool.drain() == 0
    assert pool.find("master.stopped")[0]["returned"] >= 2
    stage.client.cancel(jid)
    stage.assert_nothing_left()


def test_raising_persistent_job_always_comes_back(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("bad.raises", persistent=True, retries=0)
    retried = pool.wait_for("job.retried", jid=jid)
    assert (retried["group"], retried["delay_s"]) == ("LookupError", 0)
    stage.wait_for_starts(jid, 3)  # delayed, because it is held for a short time
    assert pool.find("job.failed") == []
    assert pool.drain() == 0
    stage.client.cancel(jid)
    stage.assert_nothing_left()


def test_only_the_jobs_own_time_limit_applies(stage, locks):
    pool = stage.start(processes=2, job_timeout="0.3s").wait_ready()
    jid = put(stage, locks[0])
    own = stage.queue.put("watch.for_ever", {"lock": locks[1].path}, persistent=True, timeout=0.3)
    pool.wait_for("job.retried", jid=own, group="timeout")
    wait_until_held(stage, locks[0])
    assert pool.find("job.died", jid=jid) == pool.find("job.retried", jid=jid) == []
    end(stage, jid, own)
    finish(stage, pool)


def test_nothing_can_follow_a_persistent_job(stage, locks):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("watch.refused", {"s": 0}, persistent=True)
    line = pool.wait_for("job.printed", jid=jid)["line"]
    assert line.startswith("refused: job.put: a persistent job never completes")
    stage.wait_until_counted(lambda: bool(stage.client.cancel(jid)) or True)
    finish(stage, pool)


def test_drain_hands_a_persistent_job_over_at_once(stage, locks, measured):
    first = stage.start(processes=3, drain_timeout="20s").wait_ready()
    jids = [put(stage, lock) for lock in locks[:2]]
    gate = stage.gate("gate")
    patient = stage.queue.put("good.hold", gate)
    wait_until_held(stage, *locks[:2])
    stage.wait_for_starts(patient)
    second = stage.start(processes=3).wait_ready()
    stage.wait_until_idle(1)
    before = {lock.holder() for lock in locks[:2]}
    drained_at = first.send(signal.SIGTERM)
    stage.wait_until_counted(lambda: all(lock.holder() not in {0, *before} for lock in locks[:2]))
    measured(f"drain -> held by another supervisor: {1000 * (time.monotonic() - drained_at):.0f} ms")
    assert time.monotonic() - drained_at <= 10
    first.wait_for("job.released", nth=2, reason="drain")
    assert first.find("job.released", jid=patient) == []  # the other job keeps its patience
    stage.open_gate(gate)
    first.wait_for("job.completed", jid=patient)
    assert first.wait() == 0
    assert [lock.overlaps() for lock in locks[:2]] == [[], []]
    assert {job.interruptions for job in stage.client.jobs(*jids)} == {1}
    end(stage, *jids)
    finish(stage, second)


def test_deaf_persistent_job_is_killed_after_the_grace(stage):
    pool = stage.start(processes=1, drain_timeout="25s", term_grace="0.3s").wait_ready()
    jid = stage.queue.put("bad.swallow", stage.gate("gate"), persistent=True)
    stage.wait_for_starts(jid)
    began_at = time.monotonic()
    assert pool.drain() == 0
    assert time.monotonic() - began_at <= 15
    assert stage.client.job(jid).interruptions == 1
    stage.client.cancel(jid)
    stage.assert_nothing_left()


def test_cancelled_persistent_job_ends(stage, locks):
    pool = stage.start(processes=1).wait_ready()
    jid = put(stage, locks[0])
    wait_until_held(stage, locks[0])
    assert stage.client.cancel(jid) == [jid]
    pool.wait_for("lease.lost", jid=jid, reason="cancelled")
    stage.wait_until_counted(lambda: not locks[0].holder())
    after = stage.queue.put("good.noop")
    pool.wait_for("job.completed", jid=after)
    finish(stage, pool)


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_persistent_jobs_have_one_holder_under_random_kills(stage, locks, measured):
    """Three supervisors and 20 jobs. A kill hits only jobs held for 10 s (TEST_FULL=1: 30 s): others would come back
    later.
    """
    stage.config(grace=GRACE_S)

    def start():
        return stage.start(processes=11, lease_ttl=f"{TTL_S:g}s")

    killer = Killer(stage, start, seed=11).fill(3)
    for pool in killer.pools:
        pool.wait_ready()
    jids = [put(stage, lock) for lock in locks]
    wait_until_held(stage, *locks)
    now_at = time.monotonic()
    held_since = {lock: (lock.holder(), now_at) for lock in locks}
    unheld_since = {}
    gaps = {"child": [], "other": []}
    deaths = {}  # pid -> what was killed
    kill_at = now_at + SHORT_HOLD_S + 0.5
    end_at = kill_at + RUN_S - SHORT_HOLD_S
    kinds = itertools.cycle(["child", "master", "child", "child", "zygote", "child"])
    kind = next(kinds)
    while now_at < end_at or unheld_since:
        now_at = time.monotonic()
        for lock in locks:
            pid = lock.holder()
            old, _since = held_since[lock]
            if pid == old:
                continue
            if not pid:
                unheld_since.setdefault(lock, now_at)
                continue
            # The kernel's lock shows a second holder, which writes so.
            gap_s = now_at - unheld_since.pop(lock, now_at)
            gaps["child" if deaths.get(old) == "child" else "other"].append(gap_s)
            held_since[lock] = (pid, now_at)
        assert not any(now_at - since > LONG_UNHELD_S for since in unheld_since.values()), killer.killed[-5:]
        if kill_at <= now_at < end_at and not unheld_since:
            killed = _kill_one(killer, held_since, kind, now_at, deaths)
            kind = next(kinds) if killed else kind
            killed = killed or _kill_one(killer, held_since, "child", now_at, deaths)
            kill_at = now_at + (killer.draw.uniform(0.05, 0.4) if killed else 0.05)
        stage.let_time_pass(0.002)
    assert [lock.overlaps() for lock in locks] == [[]] * len(locks)
    assert gaps["child"] and (gaps["other"] or not FULL)
    measured(
        f"{killer.counts()} killed; unheld after the death of a child: {_shown(gaps['child'])}, of a zygote or master:"
        f" {_shown(gaps['other'])}"
    )
    assert max(gaps["child"]) <= CHILD_S * PATIENCE
    assert max(gaps["other"], default=0) <= TTL_S + GRACE_S + (1 if FULL else 3) * PATIENCE
    end(stage, *jids)
    killer.forget_dead()
    finish(stage, *killer.pools, directories=True)


def _kill_one(killer, held_since, what, now_at, deaths):
    """Kill a supervisor whose jobs have all been held for long enough."""
    ripe = {pid for pid, since in held_since.values() if now_at - since > SHORT_HOLD_S + 0.2}
    green = {pid for pid, _since in held_since.values()} - ripe
    if what == "child":
        if not ripe:
            return False
        pid = killer.draw.choice(sorted(ripe))
        deaths[pid] = "child"
        os.kill(pid, signal.SIGKILL)
        killer.killed.append(Killed("child", pid, now_at))
        return True
    for pool in killer.pools:
        children = set(pool.child_pids())
        if children & ripe and not children & green:
            return killer.kill(what, pool) is not None
    return False


def _shown(gaps):
    return f"{len(gaps)} times, at most {1000 * max(gaps, default=0):.0f} ms" if gaps else "never"
