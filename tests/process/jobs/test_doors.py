"""Entries behind doors start at once, and their producers find what the other program's own worker would have left."""

import time

import producers
import pytest
from watched import FULL, Killer

#: A supervisor that nothing wakes leases after ten seconds. An idle machine needs a second at most.
AT_ONCE_S = 5.0
JOBS, ROUNDS = (100_000, 200) if FULL else (800, 4)


@pytest.fixture
def foreign(server, namespace):
    """A prefix of keys of another program, which go with the test."""
    yield f"foreign-{namespace}"
    for key in server.redis.scan_iter(f"*foreign-{namespace}*", count=1000):
        server.redis.unlink(key)


def test_item_of_redis_work_queue_starts_at_once_and_leaves_nothing(stage, measured, foreign):
    redis = stage.server.redis
    producer = producers.RedisWorkQueue(redis, foreign)
    stage.client.doors.add("orders", source=producer.source, queue="default", **producer.door)
    pool = stage.start(processes=1).wait_ready()
    waits_s = []
    for number in range(3):
        stage.wait_until_idle(1)
        pushed_unix = time.time()
        producer.put(number)
        stage.wait_until(lambda n=number: len(stage.ledger.starts()) > n, "its start")
        waits_s.append(stage.ledger.starts()[-1].unix - pushed_unix)
        stage.wait_until(lambda: not redis.keys(f"{foreign}:*"), "the keys of the item to go")
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


def test_task_of_a_lower_priority_starts_at_once(stage, foreign):
    producer = producers.Celery(stage.server.redis, foreign)
    stage.client.doors.add("tasks", source=producer.source, queue="default", **producer.door)
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    pushed_unix = time.time()
    producer.put(1)
    (start,) = stage.wait_for_starts(f"{foreign}-1")
    assert start.unix - pushed_unix <= AT_ONCE_S
    stage.client.doors.remove("tasks")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("program", producers.ALL, ids=lambda program: program.__name__)
def test_entries_behind_a_door_run_once_each_while_all_is_killed(stage, foreign, program):
    stage.config(heartbeat=1, grace=0.5, max_deaths=0)  # one job may be at many of the kills
    producer = program(stage.server.redis, foreign)
    stage.client.doors.add("d", source=producer.source, queue="default", **producer.door)
    killer = Killer(stage, lambda: stage.start(processes=2, jobs_per_child=0), seed=7).fill(2)
    for pool in killer.pools:
        pool.wait_ready()
    every = JOBS // ROUNDS
    for number in range(JOBS):
        producer.put(number)
        if number % every == every // 2:
            killer.kill(killer.draw.choice(("child", "child", "master")))
    stage.wait_until_counted(lambda: stage.queue.stats().run.count >= JOBS, timeout_s=60 + JOBS / 100)
    stage.client.doors.remove("d")
    assert [pool.drain() for pool in killer.pools] == [0, 0]
    assert stage.queue.stats().run.count == JOBS
    assert stage.client.failed() == {}
    producer.assert_done(JOBS)
    killer.forget_dead()
    stage.assert_nothing_left(directories=True)
