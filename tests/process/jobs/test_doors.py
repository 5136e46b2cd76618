"""Entries behind doors start at once, and their producers find what the other program's own worker would have left."""

import contextlib
import os
import random
import signal
import time

import pytest
from watched import FULL

#: A supervisor that nothing wakes leases after ten seconds. An idle machine needs a second at most.
AT_ONCE_S = 5.0
JOBS, ROUNDS = (100_000, 100) if FULL else (2000, 8)


@pytest.fixture
def foreign(server, namespace):
    """A prefix of keys of another program, which go with the test."""
    yield f"foreign-{namespace}"
    for key in server.redis.scan_iter(f"*foreign-{namespace}*", count=1000):
        server.redis.unlink(key)


def add_item(redis, prefix, number):
    """As redis-work-queue does."""
    if redis.setnx(f"{prefix}:item:{number}", f"data of {number}"):
        redis.lpush(f"{prefix}:queue", number)


def test_item_of_redis_work_queue_starts_at_once_and_leaves_nothing(stage, measured, foreign):
    redis, prefix = stage.server.redis, foreign
    stage.client.doors.add("orders", format="rwq", source=prefix, queue="default", klass="good.noop")
    pool = stage.start(processes=1).wait_ready()
    waits_s = []
    for number in range(3):
        stage.wait_until_idle(1)
        pushed_unix = time.time()
        add_item(redis, prefix, number)
        stage.wait_until(lambda n=number: len(stage.ledger.starts()) > n, "its start")
        waits_s.append(stage.ledger.starts()[-1].unix - pushed_unix)
        stage.wait_until(lambda: not redis.keys(f"{prefix}:*"), "the keys of the item to go")
    measured(f"add_item -> started: {', '.join(f'{1000 * s:.0f}' for s in waits_s)} ms")
    assert max(waits_s) <= AT_ONCE_S
    stage.client.doors.remove("orders")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_doors_added_and_removed_meanwhile_are_followed(stage, foreign):
    redis = stage.server.redis
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    stage.client.doors.add("tasks", format="hworker", source=foreign, queue="default", klass="good.noop")
    redis.lpush(f"hworker-jobs-{foreign}", '["first",null]')
    stage.wait_for_starts("first")
    stage.client.doors.remove("tasks")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_entries_behind_a_door_run_once_each_while_all_is_killed(stage, foreign):
    redis = stage.server.redis
    stage.config(heartbeat=1, grace=0.5)
    stage.client.doors.add("orders", format="rwq", source=foreign, queue="default", klass="good.noop")
    killed = []
    pools = [stage.start(processes=2, jobs_per_child=0) for _ in range(2)]
    ids = [f"{number:06}" for number in range(JOBS)]
    draw = random.Random(7)
    for first in range(0, JOBS, JOBS // ROUNDS):
        for id in ids[first : first + JOBS // ROUNDS]:
            add_item(redis, foreign, id)
        target = draw.choice(pools).wait_ready()
        for pid in target.child_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if draw.random() < 0.5:
            pools.remove(target)
            target.send(signal.SIGKILL)
            target.wait()
            killed.append(target)
            pools.append(stage.start(processes=2, jobs_per_child=0))
    stage.wait_until_counted(lambda: not redis.keys(f"{foreign}:*"), timeout_s=30 + JOBS / 100)
    assert set(stage.states(ids)) == {"complete"}
    assert stage.queue.stats().run.count == JOBS
    stage.client.doors.remove("orders")
    assert [pool.drain() for pool in pools] == [0, 0]
    for pool in killed:
        stage.forget(pool)
    stage.assert_nothing_left(directories=True)
