"""Recurring jobs: each time gives exactly one job, however many supervisors run and whichever of them dies."""

import itertools
import signal
import struct
import time
import zoneinfo

import pytest
from scraping import Scraper

from supervisor.engine.client.sync_client import Client


def jobs_of(stage, jid):
    """Return all jobs that a recurrence has put so far, by number."""
    count = stage.client.recurring(jid).count
    return stage.client.jobs(*(f"{jid}-{number}" for number in range(1, count + 1)))


def start_two(stage):
    pools = [stage.start(processes=1, lease_ttl="3s") for _ in range(2)]
    for pool in pools:
        pool.wait_ready()
    stage.wait_until_idle(2)
    return pools


def assert_once_but_for_one(stage, jobs):
    """Assert that only the job that a killed supervisor ran was run again. Its start may not have been known yet."""
    starts = [len(stage.ledger.starts(job.jid)) for job in jobs]
    assert set(starts) <= {1, 2}
    assert sum(starts) <= len(jobs) + 1


def test_interval_fires_once_though_one_of_two_supervisors_dies(stage):
    stage.config(grace=0.3)
    first, second = start_two(stage)
    every_s = 0.25
    stage.queue.recur("good.noop", every=every_s, jid="r")
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 4, "four of them")
    first.send(signal.SIGKILL)
    first.wait()
    seen = len(stage.ledger.starts())
    stage.wait_until(lambda: len(stage.ledger.starts()) >= seen + 10, "ten more")
    assert stage.client.unrecur("r") is True
    recurring = stage.client.recurring("r")
    assert recurring is None
    stage.wait_until_counted(lambda: (stage.queue.counts().waiting, stage.queue.counts().running) == (0, 0))
    jids = sorted({start.jid for start in stage.ledger.starts()}, key=lambda jid: int(jid.removeprefix("r-")))
    assert jids[:-1] == [f"r-{number}" for number in range(1, len(jids))]
    stage.wait_until_settled(jids)
    jobs = stage.client.jobs(*jids)
    assert {job.state for job in jobs} == {"complete"}
    assert {job.spawned_from for job in jobs} == {"r"}
    puts_unix = [job.put_unix for job in jobs]
    assert [later - sooner for sooner, later in itertools.pairwise(puts_unix)] == pytest.approx(
        [every_s] * (len(jobs) - 1)
    )
    assert_once_but_for_one(stage, jobs)
    assert sum(job.deaths for job in jobs) <= 1
    stage.forget(first)
    assert second.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_missed_cron_times_fire_once_though_a_supervisor_dies(stage):
    """Twenty recurrences, made six hours ago, with a job every hour: all are due when two pools start."""
    stage.config(grace=0.3)
    since_unix = int(time.time()) // 60 * 60 - 6 * 3600
    minute = since_unix // 60 % 60  # of this very minute: the next time is an hour away
    with Client(stage.server.url, stage.namespace, clock=lambda: since_unix) as then:
        for number in range(20):
            then.queue("default").recur("good.nap", 0.005, cron=f"{minute} * * * *", jid=f"r{number}")
    pools = [stage.start(processes=1, lease_ttl="3s") for _ in range(2)]
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 30, "thirty of them")
    pools[0].wait_for("child.ready")  # else its zygote may end with it, and leave its directory
    pools[0].send(signal.SIGKILL)
    pools[0].wait()
    times_unix = [since_unix + nth * 3600 for nth in range(1, 7)]
    expected = {f"r{number}-{nth}" for number in range(20) for nth in range(1, len(times_unix) + 1)}
    stage.wait_until_settled(expected)
    everything = []
    for number in range(20):
        jobs = jobs_of(stage, f"r{number}")
        everything += jobs
        assert [round(job.put_unix) for job in jobs] == times_unix
        assert stage.client.recurring(f"r{number}").next_unix == times_unix[-1] + 3600
        stage.client.unrecur(f"r{number}")
    assert_once_but_for_one(stage, everything)
    assert {start.jid for start in stage.ledger.starts()} == expected
    stage.forget(pools[0])
    assert pools[1].drain() == 0
    stage.assert_nothing_left()


def recur_then(stage, then_unix, klass, **options):
    """Make a recurrence as if at another time."""
    with Client(stage.server.url, stage.namespace, clock=lambda: then_unix) as then:
        return then.queue("default").recur(klass, **options)


def test_damaged_or_slow_crons_do_not_stop_a_supervisor(stage):
    """A cron with few times since the year 1 and a large backlog, damaged records, and valid ones."""
    now_unix = time.time()
    recur_then(stage, 0.0, "good.noop", cron="20 2 */22 11 1", backlog=999, jid="few")
    for field, value in {"tz": "Mars/Olympus", "cron": "no cron", "next": "soon", "backlog": "many"}.items():
        recur_then(stage, now_unix - 120, "good.noop", cron="* * * * *", backlog=9, jid=field)
        stage.server.redis.hset(f"{stage.prefix}recur:{field}", field, value)
    pools = start_two(stage)  # not before: one would put the jobs of a record that is not damaged yet
    for number in range(3):  # each lease meets them all
        recur_then(stage, now_unix - 120, "good.noop", cron="* * * * *", jid=f"good{number}")
        stage.queue.put("good.noop")
        stage.wait_for_starts(f"good{number}-1")
    stage.wait_until_counted(lambda: stage.client.recurring("few").next_unix > now_unix)
    assert 10 <= stage.client.recurring("few").count <= 20
    for unknown in ("Mars/Olympus", "no cron", "the recurring job next is damaged", "the recurring job backlog"):
        stage.wait_until(lambda said=unknown: _has_warned(stage, said), f"a warning of {unknown!r}")
    left = stage.keys()
    for jid in [key.removeprefix("recur:") for key in left if key.startswith("recur:")]:
        stage.client.unrecur(jid)
    stage.wait_until_counted(lambda: stage.queue.length() == 0)
    assert [pool.drain() for pool in pools] == [0, 0]
    assert not stage.find("master.crashed")
    stage.assert_nothing_left()


def _has_warned(stage, text):
    return any(text in event["message"] for event in stage.find("master.warned"))


@pytest.mark.sampled(3)
def test_thousand_crons_of_one_minute_do_not_block_the_loop(stage, measured):
    now_unix = time.time()
    crons = [time.strftime(form, time.gmtime(now_unix - 60)) for form in ("%M %H * * *", "%M %H %d * *")]
    jids = [f"r{number}-1" for number in range(1000)]
    for number in range(1000):
        recur_then(stage, now_unix - 86400, "good.noop", cron=crons[number % 2], jid=f"r{number}")
    pool = stage.start(processes=1, jobs_per_child=0, http="127.0.0.1:0")
    began_at = time.monotonic()
    stage.wait_until_ended(jids, 40)
    took_s = time.monotonic() - began_at
    longest_s = Scraper(pool).value("leasehold_loop_longest_turn_seconds")
    measured(f"1,000 cron recurrences of one minute ran within {took_s:.1f} s; longest turn {1000 * longest_s:.0f} ms")
    assert longest_s < 2.0
    for jid in jids:
        stage.client.unrecur(jid.removesuffix("-1"))
    assert pool.drain() == 0
    assert sorted(stage.ledger.order()) == sorted(jids)
    stage.assert_nothing_left()


@pytest.fixture
def zone(tmp_path):
    """Make a time zone in which a minute begins in so many seconds. Return its name and its variable."""

    def make(in_s):
        ahead_s = -(int(time.time()) + in_s) % 60
        path = tmp_path / "zones" / "Soon"
        path.parent.mkdir()
        header = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 5)
        path.write_bytes(2 * (header + struct.pack(">lbb", ahead_s, 0, 0) + b"SOON\0") + b"\n\n")
        zoneinfo.reset_tzpath([str(path.parent)])
        return "Soon", {"PYTHONTZPATH": str(path.parent)}

    yield make
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache(only_keys=["Soon"])


@pytest.mark.slow
def test_cron_job_fires_once_at_its_minute_on_idle_supervisors(stage, zone, measured):
    name, environment = zone(in_s=8)
    queues = ("default", "default", "other")
    pools = [stage.start(processes=1, queue=queue, environment=environment) for queue in queues]
    for pool in pools:
        pool.wait_ready()
    stage.wait_until_idle(3)
    stage.queue.recur("good.noop", cron="* * * * *", tz=name, jid="r")
    due_unix = stage.client.recurring("r").next_unix
    (start,) = stage.wait_for_starts("r-1", timeout_s=90)
    measured(f"cron: started {1000 * (start.unix - due_unix):.0f} ms after its minute")
    assert 0 <= start.unix - due_unix <= 5.0
    stage.let_time_pass(2.0)
    assert stage.ledger.order() == ["r-1"]
    assert stage.client.recurring("r").next_unix == due_unix + 60
    stage.client.unrecur("r")
    assert [pool.drain() for pool in pools] == [0, 0, 0]
    stage.assert_nothing_left()


def test_sweep_puts_recurring_jobs_of_an_unserved_queue(stage):
    stage.start(processes=1, queue="other").wait_ready()
    stage.queue.recur("good.noop", every=1, jid="r")
    hour_ago_unix = time.time() - 3600
    with Client(stage.server.url, stage.namespace, clock=lambda: hour_ago_unix) as then:
        then.queue("default").recur("good.noop", cron="0 * * * *", jid="c")
    stage.wait_until_counted(lambda: stage.queue.counts().waiting >= 2 and stage.client.job("c-1") is not None, 40)
    stage.client.unrecur("r")
    stage.client.unrecur("c")
    assert stage.pools[0].drain() == 0
    assert stage.ledger.starts() == []
    stage.assert_nothing_left(waiting=["default"])
