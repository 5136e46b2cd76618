"""Limits: never more jobs at once or in a time, whichever process dies, and a slot is free with its job's end."""

import os
import signal
import time

import pytest
from supervised import quantiles
from watched import FULL, Killer, Lock

KILLS = 500 if FULL else 30
RATE_S = 20 if FULL else 6
KEYS, PAIRS = 6, 3


@pytest.fixture
def locks(stage):
    made = [Lock(str(stage.directory / f"lock-{number}")) for number in range(KEYS + PAIRS)]
    yield made
    for lock in made:
        lock.close()


def finish(stage, *pools, **left):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(**left)


def drop_what_waits(stage):
    """Cancel waiting jobs while nothing runs: a cancelled job has no slot, though its handler ends a moment later."""
    stage.queue.pause()
    stage.wait_until_counted(lambda: stage.queue.counts().running + stage.queue.counts().stalled == 0, 40)
    for state in ("waiting", "scheduled", "parked"):
        while left := [job.jid for job in stage.queue.jobs(state, count=1000)]:
            stage.client.cancel(*left)
    stage.queue.unpause()


def put_held(stage, lock, seconds, key, **options):
    return stage.queue.put("watch.held", {"lock": lock.path, "s": seconds}, limit=key, max_deaths=0, **options)


def test_killed_child_frees_its_jobs_slot(stage, locks, measured):
    stage.client.limit("one", running=1)
    pool = stage.start(processes=2).wait_ready()
    waits_s = []
    for _ in range(5):
        held = stage.queue.put("watch.held", {"lock": locks[0].path, "s": 60}, limit="one", max_deaths=1)
        stage.wait_until_counted(lambda: locks[0].holder() > 0)
        second = put_held(stage, locks[0], 0, "one")
        stage.wait_until_counted(lambda: stage.client.limit("one").parked == 1)
        killed_at = time.monotonic()
        os.kill(locks[0].holder(), signal.SIGKILL)
        pool.wait_for("job.completed", jid=second)
        started_at = next(at for what, jid, _pid, at in locks[0].log() if (what, jid) == ("start", second))
        waits_s.append(started_at - killed_at)
        assert stage.client.job(held).state == "failed"
    measured(f"child killed -> the next one of its limit started: {quantiles(waits_s)}")
    assert max(waits_s) <= 5
    assert locks[0].overlaps() == []
    assert stage.client.limit("one").in_use == 0
    stage.client.unlimit("one")
    finish(stage, pool)


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_limit_of_one_holds_under_random_kills(stage, locks, measured):
    """Each key lets one job run, and each job holds a lock of the kernel; some have two. TEST_FULL=1: 500 kills."""
    stage.config(grace=0.5)
    keys = [f"api-{number}" for number in range(KEYS)]
    limits = [(key,) for key in keys] + [(f"pair-{number}", *keys[number::PAIRS]) for number in range(PAIRS)]
    for key in {one for several in limits for one in several}:
        stage.client.limit(key, running=1)

    def start():
        return stage.start(processes=3, lease_ttl="3s", jobs_per_child=4)

    killer = Killer(stage, start, seed=4).fill(3)
    for pool in killer.pools:
        pool.wait_ready()
    put = 0
    began_at = time.monotonic()
    while len(killer.killed) < KILLS:
        counts = stage.queue.counts()
        if counts.waiting + counts.parked < 60:
            for lock, several in zip(locks, limits, strict=True):
                for _ in range(7):
                    put_held(stage, lock, 0.03, several)
                    put += 1
        what = killer.draw.choices(("holder", "child", "zygote", "master"), (60, 30, 6, 4))[0]
        if what == "holder":
            killer.kill_running(killer.draw.choice(locks).holder())
        else:
            killer.kill(what)
        stage.let_time_pass(killer.draw.uniform(0.0, 0.1))
    took_s = time.monotonic() - began_at
    for lock in locks:
        assert lock.overlaps() == []
    # Whatever was killed: with its job the slot is free again, and what waits for it runs.
    drop_what_waits(stage)
    last = [put_held(stage, lock, 0, several) for lock, several in zip(locks, limits, strict=True)]
    stage.wait_until_settled(last, 30)
    stage.wait_until_counted(lambda: stage.queue.counts().running + stage.queue.counts().stalled == 0, 30)
    assert {limit.in_use for limit in stage.client.limits().values()} == {0}
    assert {limit.parked for limit in stage.client.limits().values()} == {0}
    starts = sum(1 for lock in locks for line in lock.log() if line[0] == "start")
    assert [lock.overlaps() for lock in locks] == [[]] * len(locks)
    measured(f"{killer.counts()} killed in {took_s:.0f} s, {starts} starts of {put} jobs, never two of a key at once")
    assert starts >= KILLS
    drop_what_waits(stage)
    killer.forget_dead()
    for key in stage.client.limits():
        stage.client.unlimit(key)
    finish(stage, *killer.pools, directories=True)


@pytest.mark.sampled(3)
def test_rate_of_ten_a_second_holds_over_four_supervisors(stage, measured):
    """TEST_FULL=1: for 20 s."""
    log = stage.directory / "times"
    stage.client.limit("api", rate="10/s")
    # Nothing ahead: what is handed back because its child was late has been counted as a start.
    pools = [stage.start(processes=2, jobs_per_child=0, dispatch_ahead="0s").wait_ready() for _ in range(4)]
    stage.wait_until_idle(4)
    count = 10 * (RATE_S + 2)
    stage.queue.put_many([{"klass": "watch.log_time", "data": str(log), "limit": "api"} for _ in range(count)])
    stage.wait_until(lambda: len(stage.find("job.completed")) >= 10 * (RATE_S + 1) + 1, "enough of them", RATE_S + 20)
    times = sorted(float(line) for line in log.read_text().split())
    began = times[0]
    buckets = [0] * RATE_S
    for at in times:
        if 0.5 <= at - began < 0.5 + RATE_S:
            buckets[int(at - began - 0.5)] += 1
    first = [at for at in times if at - began < 0.5]
    measured(f"starts in each second: {buckets}; in the first half second: {len(first)}")
    # Jobs come ten at a time, and the delays of each ten on a busy machine add up.
    assert (9 if FULL else 5) <= sum(buckets) / RATE_S <= 11
    assert all(n <= (11 if FULL else 15) for n in buckets)
    # No second has more than ten starts. Eleven starts lie a second apart, but for the time that a start takes.
    assert min(later - earlier for earlier, later in zip(times, times[10:], strict=False)) > (0.9 if FULL else 0.5)
    drop_what_waits(stage)
    stage.wait_until_counted(lambda: stage.queue.counts().running == 0)
    stage.client.unlimit("api")
    stage.server.redis.delete(f"{stage.prefix}starts:api")
    finish(stage, *pools)


def test_widened_limit_starts_parked_jobs_at_once(stage):
    stage.client.limit("k", running=1)
    pool = stage.start(processes=3).wait_ready()
    gate = stage.gate("gate")
    jids = [stage.queue.put("good.hold", gate, limit="k") for _ in range(3)]
    stage.wait_until(lambda: len(stage.ledger.starts()) == 1, "the first")
    stage.wait_until_counted(lambda: stage.client.limit("k").parked == 2)
    widened_unix = time.time()
    stage.client.limit("k", running=3)
    stage.wait_until(lambda: len(stage.ledger.starts()) == 3, "the others")
    assert stage.ledger.starts()[-1].unix - widened_unix <= 5
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    stage.client.unlimit("k")
    finish(stage, pool)
