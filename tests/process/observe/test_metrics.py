"""Prometheus metrics of a busy supervisor: every number is exact, and memory does not grow."""

import signal
import time
from collections import Counter

import pytest
from apps import start_app, write_app
from scraping import Scraper, total
from watched import FULL

from supervisor.master.model.counts import MOST_QUEUES, OTHER
from supervisor.ops.metrics import METRICS

SOURCE = """
from supervisor import Fail, Retry

@handler(retries=0)
def raises(job):
    raise ValueError("as it is meant to")

@handler
def fails(job):
    raise Fail("wrong", "as it is meant to")

@handler(on_death="fail")
def dies(job):
    os._exit(3)
"""
QUEUES = tuple(f"soak-{name}" for name in "abcd")
OUTCOMES = 1_000_000 if FULL else 6_000
#: Outcomes per 1,000 jobs; the others complete. A death costs a fork.
SHARES = {"raises": 20, "fails": 20, "dies": 5}


def ended(families):
    return total(families["leasehold_jobs_ended"], "leasehold_jobs_ended_total")


def await_ended(stage, scraper, count):
    """Wait until no job waits or runs, and all are counted. Parsing a scrape costs more than a query."""
    deadline_at = time.monotonic() + 60 + count / 100
    while any(each.waiting + each.running + each.scheduled for each in stage.client.queues().values()):
        assert time.monotonic() < deadline_at, stage.client.queues()
        time.sleep(0.2)
    while ended(families := scraper.scrape()) < count:
        assert time.monotonic() < deadline_at, f"{ended(families)} of {count}"
        time.sleep(0.2)  # only a scrape shows it
    return families


def put_some(stage, count):
    """Put jobs of all klasses into all queues, and return the number of each."""
    made = Counter()
    for number, queue in enumerate(QUEUES):
        own = count // len(QUEUES)
        jobs = [klass for klass, share in SHARES.items() for _ in range(own * share // 1000)]
        jobs += ["noop"] * (own - len(jobs) - number)
        stage.client.queue(queue).put_many({"klass": klass} for klass in jobs)
        made.update((queue, klass) for klass in jobs)
    return made


@pytest.mark.sampled(3)
@pytest.mark.timeout(7200)
def test_every_metric_is_exact_after_many_outcomes(stage, measured):
    pool = start_app(
        stage,
        SOURCE,
        log_level="info",
        http="127.0.0.1:0",
        queue="soak-*",
        order="round-robin",
        processes=2,
        jobs_per_child=0,
    )
    pool.wait_for("zygote.ready")
    scraper = Scraper(pool)
    assert scraper.scrape().keys() == {name.removesuffix("_total") for name in METRICS}
    made, memory_bytes, began_at = Counter(), [], time.monotonic()
    for quarter in range(4):
        made += put_some(stage, OUTCOMES // 4)
        if quarter == 1:
            pool.send(signal.SIGHUP)
        if quarter == 2:
            stage.server.redis.client_kill_filter(_type="normal", skipme=True)
        families = await_ended(stage, scraper, made.total())
        memory_bytes.append(scraper.value("leasehold_master_memory_bytes"))
    took_s = time.monotonic() - began_at
    pool.wait_for("reload.completed")
    check_counts(stage, families, made)
    assert scraper.value("leasehold_redis_reconnects_total") >= 1
    assert scraper.value("leasehold_reloads_total", outcome="completed") == 1
    measured(
        f"{made.total()} outcomes in {took_s:.1f} s: a scrape of {len(scraper.text)} bytes; the master's memory after a"
        f" quarter {memory_bytes[0] / 1e6:.1f} MB, at the end {memory_bytes[-1] / 1e6:.1f} MB"
    )
    assert memory_bytes[-1] - memory_bytes[0] < 6e6
    spread_over_many_queues(stage, scraper, made.total())
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_code_that_was_refused_shows_until_a_reload_succeeds(stage):
    pool = start_app(stage, SOURCE, http="127.0.0.1:0", processes=1).wait_ready()
    scraper = Scraper(pool)
    shown = [scraper.value("leasehold_reload_refused")]
    for source, outcome in (("def (:", "failed"), (SOURCE, "completed")):
        write_app(stage, source)
        pool.send(signal.SIGHUP)
        pool.wait_for(f"reload.{outcome}")
        shown.append(scraper.value("leasehold_reload_refused"))
    assert shown == [0, 1, 0]
    assert pool.drain() == 0
    stage.assert_nothing_left()


OUTCOME_OF = {"noop": "completed", "raises": "failed", "fails": "failed", "dies": "died"}


def check_counts(stage, families, made):
    """Compare with the puts, the engine's statistics and the failed groups."""
    ends, starts = families["leasehold_jobs_ended"], families["leasehold_jobs_started"]
    runs, waits = families["leasehold_job_run_seconds"], families["leasehold_job_wait_seconds"]
    for (queue, klass), count in made.items():
        one = {"queue": queue, "klass": klass}
        assert total(ends, "leasehold_jobs_ended_total", **one) == count
        assert total(ends, "leasehold_jobs_ended_total", **one, outcome=OUTCOME_OF[klass]) == count
        assert total(starts, "leasehold_jobs_started_total", **one) >= count
        assert total(runs, "leasehold_job_run_seconds_count", **one) == count
        assert total(waits, "leasehold_job_wait_seconds_count", **one) == count
    for queue in QUEUES:
        stats = stage.client.queue(queue).stats()
        of_queue = Counter({klass: count for (name, klass), count in made.items() if name == queue})
        died = total(families["leasehold_jobs_died"], "leasehold_jobs_died_total", queue=queue, reason="exit-3")
        assert died == of_queue["dies"] == stats.deaths
        failed = total(ends, "leasehold_jobs_ended_total", queue=queue, outcome="failed")
        assert failed == of_queue["raises"] + of_queue["fails"] == stats.failures - died
        assert total(ends, "leasehold_jobs_ended_total", queue=queue, outcome="completed") == stats.run.count
    by_klass = Counter()
    for (_, klass), count in made.items():
        by_klass[klass] += count
    assert stage.client.failed() == {
        "ValueError": by_klass["raises"], "wrong": by_klass["fails"], "died:exit-3": by_klass["dies"],
    }  # fmt: skip


def spread_over_many_queues(stage, scraper, before):
    more = MOST_QUEUES + 50
    for number in range(more):
        stage.client.queue(f"soak-{number}").put("noop")
    families = await_ended(stage, scraper, before + more)
    for name in ("leasehold_jobs_ended", "leasehold_queue_oldest_seconds"):
        queues = {sample.labels["queue"] for sample in families[name].samples}
        assert len(queues) <= MOST_QUEUES + 1
        assert OTHER in queues
