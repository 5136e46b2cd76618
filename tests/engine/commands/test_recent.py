"""Percentiles of a queue's waits and runs in the last hour, day and 30 days."""

import random
import statistics

import pytest

from supervisor.engine.commands.recent import Percentiles
from supervisor.engine.model.bins import BINS, percentile_s
from supervisor.engine.model.outcomes import Completed, Failed

MINUTE, HOUR, DAY = 60, 3600, 86_400
NOON = 20_000 * DAY + 12 * HOUR
NOTHING = Percentiles(0, None, None)


@pytest.fixture(autouse=True)
def noon(clock):
    clock.now = float(NOON)


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def live_through(client, q, clock):
    """Run so many jobs at once, which wait and run for so many seconds."""

    def some(wait_s, run_s, number=1):
        q.put_many({"klass": "k"} for _ in range(number))
        clock.tick(wait_s)
        held = q.lease("w", number, ttl=DAY * DAY)
        clock.tick(run_s)
        client.settle([Completed(lease) for lease in held])

    return some


def test_a_queue_without_jobs_has_no_figures(q):
    recent = q.recent()
    assert recent.queue == "q"
    for period in (recent.hour, recent.day, recent.month):
        assert (period.since_unix, period.failures, period.wait, period.run) == (None, 0, NOTHING, NOTHING)


def test_half_of_the_jobs_and_95_of_a_hundred_lie_within_the_percentiles(q, live_through):
    live_through(0.1, 2, 60)
    live_through(10, 0.02, 40)
    hour = q.recent().hour
    assert (hour.wait.count, hour.run.count) == (100, 100)
    assert hour.wait.p50 == pytest.approx(0.1, rel=0.25) and hour.wait.p95 == pytest.approx(10, abs=1)
    assert hour.run.p50 == pytest.approx(2, abs=0.25) and hour.run.p95 == pytest.approx(2, abs=0.25)


@pytest.mark.parametrize(
    ("ago_s", "counted"),
    [
        (0, (1, 1, 1)), (59 * MINUTE, (1, 1, 1)), (71 * MINUTE, (0, 1, 1)), (DAY - MINUTE, (0, 1, 1)),
        (DAY + 11 * MINUTE, (0, 0, 1)), (29 * DAY, (0, 0, 1)), (30 * DAY, (0, 0, 0)),
    ],
)  # fmt: skip
def test_a_job_counts_until_its_period_is_over(q, clock, live_through, ago_s, counted):
    live_through(1, 1)
    clock.tick(ago_s)
    recent = q.recent()
    assert (recent.hour.run.count, recent.day.run.count, recent.month.run.count) == counted
    assert (recent.hour.wait.count, recent.day.wait.count, recent.month.wait.count) == counted


def test_a_period_names_the_time_of_its_first_figures(q, clock, live_through):
    live_through(1, 1)
    clock.tick(5 * HOUR)
    live_through(1, 1)
    recent = q.recent()
    assert (recent.hour.since_unix, recent.day.since_unix) == (NOON + 5 * HOUR, NOON)
    assert recent.month.since_unix == 20_000 * DAY


def test_failures_are_counted_at_their_time(client, q, clock):
    q.put("k")
    client.settle([Failed(q.lease("w")[0], "g", "m")])
    clock.tick(2 * HOUR)
    client.unfail("g")
    client.settle([Failed(q.lease("w")[0], "g", "m")])
    recent = q.recent()
    assert (recent.hour.failures, recent.day.failures, recent.month.failures) == (1, 2, 2)


def test_queues_are_counted_apart(client, q, live_through):
    live_through(1, 1)
    assert client.queue("r").recent().day.run == NOTHING


def test_a_key_of_another_type_stops_no_job_and_no_reader(server, namespace, q, live_through):
    for name in (f"bins:{20_000 * DAY}:q", f"recent:{NOON}:q"):
        server.redis.rpush(f"{{{namespace}}}:{name}", "x")
    live_through(1, 1)
    live_through(1, 1)
    assert (q.recent().hour.run, q.recent().month.run, q.counts().total) == (NOTHING, NOTHING, 0)


def test_percentiles_are_as_exact_as_the_bins():
    """Compare with percentiles of the times themselves, below four seconds and up to some hours."""
    choose = random.Random(7)
    for longest_s, share in ((4, 0.25), (4 * HOUR, 0.34)):
        times = [longest_s * choose.random() ** 4 for _ in range(2000)]
        bins = [0] * len(BINS)
        for time_s in times:
            bins[max(at for at, least_ms in enumerate(BINS) if least_ms <= time_s * 1000)] += 1
        cuts = statistics.quantiles(times, n=20)
        assert percentile_s(bins, 0.5) == pytest.approx(cuts[9], rel=share, abs=0.001)
        assert percentile_s(bins, 0.95) == pytest.approx(cuts[18], rel=share)


def test_each_time_falls_into_its_bin(client, clock, server, namespace):
    """Compare the bins of the script with those of the reader, at each bound and just below."""
    for number, least_ms in enumerate(BINS):
        if least_ms >= DAY * 1000:
            break
        queue = client.queue(f"q{number}")
        for ms in {least_ms, max(least_ms - 1, 0)}:
            clock.now = float(NOON)
            queue.put("k")
            clock.now = round(NOON + ms / 1000, 3)
            queue.lease("w", ttl=DAY * DAY)
        clock.now = float(NOON)
        raw = server.redis.mget(server.redis.keys(f"{{{namespace}}}:bins:*:q{number}"))
        waits = [at for text in raw for at in range(len(text) // 8) if any(text[8 * at + 4 : 8 * at + 8])]
        assert set(waits) == {number, max(number - 1, 0)}


def test_one_lease_counts_times_of_all_bins(q, clock):
    for least_ms in reversed(BINS):
        clock.now = NOON - least_ms / 1000
        q.put("k")
    clock.now = float(NOON)
    assert len(q.lease("w", len(BINS))) == len(BINS)
    recent = q.recent()
    assert [period.wait.count for period in (recent.hour, recent.day, recent.month)] == [len(BINS)] * 3
    assert sum(q.stats().wait.histogram) == len(BINS)
