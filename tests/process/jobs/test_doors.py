"""Entries behind doors start at once, and their producers find what the other program's own worker would have left."""

import time

import producers
import pytest
from watched import FULL, Killer

#: A supervisor that nothing wakes leases after ten seconds. An idle machine needs a second at most.
AT_ONCE_S = 5.0
#: The pause between two looks for lists of clients.
LOOK_S = 5.0
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


def test_message_of_a_new_client_is_found_and_the_next_one_starts_at_once(stage, measured, foreign):
    producer = producers.Clients(stage.server.redis, foreign)
    stage.client.doors.add("mail", source=producer.source, queue="default", **producer.door)
    pool = stage.start(processes=1).wait_ready()
    waits_s = []
    for started, number in enumerate((0, 20, 1)):  # the first two are of one client
        stage.wait_until_idle(1)
        pushed_unix = time.time()
        producer.put(number)
        stage.wait_until(lambda n=started: len(stage.ledger.starts()) > n, "its start")
        waits_s.append(stage.ledger.starts()[-1].unix - pushed_unix)
    measured(f"pushed -> started: {', '.join(f'{1000 * s:.0f}' for s in waits_s)} ms")
    assert waits_s[1] <= LOOK_S / 2 and max(waits_s) <= LOOK_S + AT_ONCE_S
    stage.client.doors.remove("mail")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_idle_pool_looks_behind_doors_every_five_seconds(stage, proxies, measured, foreign):
    for program in (producers.Clients, producers.Rq):
        producer = program(stage.server.redis, f"{foreign}-{program.__name__}")
        stage.client.doors.add(program.__name__, source=producer.source, queue="default", **producer.door)
    proxy = proxies(0)
    pool = stage.start(redis_url=proxy.url, processes=1).wait_ready()
    stage.wait_until_idle(1)
    asked, began_at = proxy.wait_until_quiet(), time.monotonic()
    stage.let_time_pass(3 * LOOK_S)
    asked, took_s = proxy.counts()["batches"] - asked, time.monotonic() - began_at
    measured(f"{asked} round trips of an idle pool in {took_s:.1f} s")
    assert asked <= took_s / LOOK_S + 2, "looks, and a sweep"
    for program in (producers.Clients, producers.Rq):
        stage.client.doors.remove(program.__name__)
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.fixture
def producer(request, server, foreign):
    """A producer, which puts by redis-cli if its documents show that."""
    program = request.param
    if program not in producers.BY_CLI or producers.CLI is None:
        yield program(server.redis, foreign)
        return
    cli = producers.Cli(server.socket)
    yield program(server.redis, foreign, cli)
    cli.close()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("producer", producers.ALL, ids=lambda program: program.__name__, indirect=True)
def test_entries_behind_a_door_run_once_each_while_all_is_killed(stage, measured, producer):
    stage.config(heartbeat=1, grace=0.5, max_deaths=0)  # one job may be at many of the kills
    stage.client.doors.add("d", source=producer.source, queue="default", **producer.door)
    killer = Killer(stage, lambda: stage.start(processes=2, jobs_per_child=0), seed=7).fill(2)
    for pool in killer.pools:
        pool.wait_ready()
    began_at = time.monotonic()
    every = JOBS // ROUNDS

    def completed():
        return stage.queue.stats().run.count

    def kill():
        killer.kill(killer.draw.choice(("child", "child", "master")))

    for number in range(JOBS):
        producer.put(number)
        if number % every == every // 2:
            # A producer may be faster than the pool, and would be done before most kills: these wait for jobs to run.
            stage.wait_until_counted(lambda least=number: completed() >= least - 2 * every, timeout_s=120)
            killed = len(killer.killed)
            while len(killer.killed) == killed:
                kill()
                stage.let_time_pass(0.02)  # no event tells that there is a child again
    for number in range(every // 2, JOBS, every):  # what puts faster than jobs run meets too few kills
        stage.wait_until_counted(lambda least=number: completed() >= least, timeout_s=60 + JOBS / 100)
        if completed() < min(number + every, JOBS):
            kill()
    stage.wait_until_counted(lambda: completed() >= JOBS, timeout_s=60 + JOBS / 100)
    measured(f"{JOBS} jobs, {killer.counts()}, {time.monotonic() - began_at:.0f} s")
    for pool in killer.pools:
        pool.wait_ready()
    stage.client.doors.remove("d")
    assert [pool.drain() for pool in killer.pools] == [0, 0]
    assert completed() == JOBS
    assert stage.client.failed() == {}
    producer.assert_done(JOBS)
    killer.forget_dead()
    stage.assert_nothing_left(directories=True)
