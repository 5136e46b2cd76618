"""Statistics of a queue and a UTC day: waits, runs and outcomes."""

import datetime
import statistics

import pytest

DAY = 86_400
MIDNIGHT = 1_000_080_000.0 - 1_000_080_000.0 % DAY


@pytest.fixture(autouse=True)
def midnight(clock):
    """Every test starts at midnight UTC."""
    clock.now = MIDNIGHT


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def live_through(q, clock):
    """Run a job that waits and runs for so many seconds."""

    def one(wait_s, run_s):
        q.put("k")
        clock.tick(wait_s)
        (held,) = q.lease("w", ttl=10 * DAY * DAY)
        clock.tick(run_s)
        held.complete()

    return one


def cells(spread):
    return {cell: n for cell, n in enumerate(spread.histogram) if n}


# Wait and run.


def test_wait_and_run_times_have_mean_and_deviation(q, live_through):
    waits, runs = [0.5, 3, 10], [1, 2.25, 30]
    for wait_s, run_s in zip(waits, runs, strict=True):
        live_through(wait_s, run_s)
    for spread, values in ((q.stats().wait, waits), (q.stats().run, runs)):
        assert (spread.count, spread.total) == (3, 3)
        assert spread.mean == pytest.approx(statistics.mean(values))
        assert spread.variance == pytest.approx(statistics.variance(values))
        assert spread.std == pytest.approx(statistics.stdev(values))


def test_one_call_adds_up_like_many(client, q, clock):
    values = [1, 5, 5, 7, 200]
    for i, wait_s in enumerate(values):
        clock.now = MIDNIGHT + 200 - wait_s
        q.put("k", jid=f"j{i}")
    clock.now = MIDNIGHT + 200
    q.lease("w", 2)
    q.lease("w", 3)
    spread = q.stats().wait
    assert (spread.count, spread.mean) == (5, pytest.approx(statistics.mean(values)))
    assert spread.variance == pytest.approx(statistics.variance(values))


def test_a_day_without_jobs_is_all_zeros(q):
    stats = q.stats()
    assert (stats.queue, stats.date) == ("q", datetime.datetime.fromtimestamp(MIDNIGHT, datetime.UTC).date())
    assert (stats.wait.count, stats.wait.mean, stats.wait.variance, stats.wait.std) == (0, 0, 0, 0)
    assert (stats.failures, stats.failed, stats.retries, stats.deaths, stats.interruptions) == (0, 0, 0, 0, 0)
    assert len(stats.run.histogram) == 287


def test_retried_job_waits_again(client, q, clock):
    q.put("k")
    clock.tick(10)
    (held,) = q.lease("w")
    clock.tick(100)
    held.retry()
    clock.tick(20)
    q.lease("w")
    assert cells(q.stats().wait) == {10: 1, 20: 1}


def test_a_delay_counts_as_wait(client, q, clock):
    q.put("k", delay=60)
    clock.tick(70)
    (held,) = q.lease("w")
    held.retry(delay=100)
    clock.tick(107)
    q.lease("w")
    assert q.stats().wait.mean == (70 + 107) / 2


def test_each_stage_is_counted_in_its_own_queue(client, q, clock):
    q.put("k")
    clock.tick(10)
    (held,) = q.lease("w")
    clock.tick(5)
    held.complete(next="second")
    clock.tick(20)
    (held,) = client.queue("second").lease("w")
    clock.tick(7)
    held.complete()
    assert (cells(q.stats().wait), cells(q.stats().run)) == ({10: 1}, {5: 1})
    assert (cells(client.queue("second").stats().wait), cells(client.queue("second").stats().run)) == ({20: 1}, {7: 1})


def test_times_count_on_the_day_of_their_end(q, clock):
    clock.now = MIDNIGHT + DAY - 10
    q.put("k")
    clock.tick(9)
    (held,) = q.lease("w")
    clock.tick(2)
    held.complete()
    first, second = q.stats(MIDNIGHT), q.stats(MIDNIGHT + DAY)
    assert (first.wait.count, first.run.count, second.wait.count, second.run.count) == (1, 0, 0, 1)


def test_day_may_be_a_datetime_with_a_time_zone(q, clock):
    clock.now = MIDNIGHT + DAY - 10
    q.put("k")
    q.lease("w")
    # Behind UTC, where the day at Greenwich is the next one already.
    late = datetime.datetime.fromtimestamp(MIDNIGHT + DAY, datetime.timezone(-datetime.timedelta(hours=5)))
    before = late - datetime.timedelta(seconds=1)
    assert before.date() == late.date()
    assert [q.stats(moment).wait.count for moment in (before, late)] == [1, 0]


# Counts.


def test_failures_retries_deaths_and_interruptions_are_counted(q):
    q.put("k", jid="x", retries=1, max_deaths=2)
    q.lease("w")[0].retry()
    q.lease("w")[0].release()
    q.lease("w")[0].release(started=False)
    q.lease("w")[0].died("oom")
    q.lease("w")[0].retry()
    stats = q.stats()
    assert (stats.retries, stats.interruptions, stats.deaths, stats.failures, stats.failed) == (1, 1, 1, 1, 1)


def test_a_lost_worker_is_a_death(client, q, clock):
    q.put("k")
    q.lease("w")
    clock.tick(35)
    client.sweep()
    assert q.stats().deaths == 1


@pytest.mark.parametrize(
    "leave", [lambda c: c.unfail("g"), lambda c: c.cancel("x"), lambda c: c.job("x").move("other")]
)
def test_failed_count_follows_the_job_on_its_day_and_queue(client, q, clock, leave):
    q.put("k", jid="x")
    q.lease("w")[0].fail("g", "m")
    clock.tick(2 * DAY)
    leave(client)
    stats = q.stats(MIDNIGHT)
    assert (stats.failures, stats.failed) == (1, 0)
    assert (q.stats().failed, client.queue("other").stats(MIDNIGHT).failed) == (0, 0)


# Retention.


def test_days_older_than_the_history_are_dropped_for_real(client, q, clock, live_through, keys):
    client.config.set("stats-history", 5)
    for day in range(9):
        clock.now = MIDNIGHT + day * DAY
        live_through(1, 1)
        client.sweep()
    assert [day for day in range(9) if q.stats(MIDNIGHT + day * DAY).run.count] == [4, 5, 6, 7, 8]
    assert len([key for key in keys() if key.startswith("stats:")]) == 5


def test_histograms_expire_after_their_history(client, server, namespace, live_through, keys):
    client.config.set("histogram-history", 2)
    live_through(1, 1)
    (day,), (lately,) = ([key for key in keys() if key.startswith(family)] for family in ("bins:", "recent:"))
    assert 3 * DAY - 60 < server.redis.ttl(f"{{{namespace}}}:{day}") <= 3 * DAY
    assert DAY + 3600 - 60 < server.redis.ttl(f"{{{namespace}}}:{lately}") <= DAY + 3600


def of_the_release_before(server, namespace, day, **cells):
    name = f"{int(MIDNIGHT + day * DAY)}:q"
    server.redis.hset(f"{{{namespace}}}:histogram:{name}", mapping=cells)
    server.redis.zadd(f"{{{namespace}}}:histograms", {name: MIDNIGHT + day * DAY})


def test_a_histogram_has_what_the_release_before_counted(server, namespace, q, live_through):
    live_through(5, 70)
    of_the_release_before(server, namespace, 0, w5=2, r0=1)
    assert (cells(q.stats().wait), cells(q.stats().run)) == ({5: 3}, {0: 1, 60: 1})


def test_histograms_of_the_release_before_are_dropped_over_several_sweeps(client, server, namespace, clock, keys):
    client.queue("q").put("k")
    for day in range(4):
        of_the_release_before(server, namespace, day, w5=2)
    clock.now = MIDNIGHT + 33 * DAY + 1
    for _ in range(3):
        client.sweep(1)
    assert [key for key in keys() if key.startswith("histogram:")] == [f"histogram:{int(MIDNIGHT + 3 * DAY)}:q"]


def test_with_a_history_of_no_days_nothing_is_written(client, q, live_through, keys):
    client.config.set("stats-history", 0)
    live_through(1, 1)
    assert not {key for key in keys() if key.startswith(("stats", "bins", "recent", "days"))}


def test_without_histograms_the_rest_is_there(client, q, live_through, keys):
    client.config.set("histogram-history", 0)
    live_through(1, 1)
    assert (q.stats().run.mean, cells(q.stats().run)) == (1, {})
    assert not {key for key in keys() if key.startswith(("bins", "recent"))}
