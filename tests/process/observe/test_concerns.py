"""The metrics that wake people, each by what really goes wrong."""

from scraping import Scraper


def shown(scraper, name):
    """Return the samples of a metric: its label, and its value."""
    return {next(iter(sample.labels.values()), ""): sample.value for sample in scraper.scrape()[name].samples}


def test_metrics_show_what_waits_for_a_person(stage):
    stage.client.limit("smtp", running=0)
    stage.client.queue("misspelt").put("good.noop")
    with stage.client.batch() as batch:
        batch.put("default", "good.noop", limit="smtp", jid="held up")
    stage.queue.recur("bad.fail", every="1h", jid="hourly", retries=0)
    pool = stage.start(processes=1, http="127.0.0.1:0").wait_ready()
    pool.wait_for("job.failed", jid="hourly-1")
    stage.wait_until_counted(lambda: stage.queue.counts().parked == 1)
    scraper = Scraper(pool)
    found = {name: shown(scraper, f"leasehold_{name}") for name in (
        "queue_unserved", "queue_parked_oldest_seconds", "limit_closed", "queue_recurrences_failed", "failed_jobs",
    )}  # fmt: skip
    assert found["queue_parked_oldest_seconds"].pop("default") >= 0
    assert found["failed_jobs"].popitem()[1] == 1
    assert found == {
        "queue_unserved": {"misspelt": 1}, "queue_parked_oldest_seconds": {}, "limit_closed": {"smtp": 1},
        "queue_recurrences_failed": {"default": 1}, "failed_jobs": {},
    }  # fmt: skip
    assert shown(scraper, "leasehold_redis_memory_bytes")[""] > 0
    assert [shown(scraper, f"leasehold_batches_{name}") for name in ("running", "open_long")] == [{"": 1}, {"": 0}]
    stage.client.cancel("held up")
    stage.client.queue("misspelt").delete()
    stage.client.unrecur("hourly")
    stage.client.unlimit("smtp")
    assert pool.drain() == 0
    stage.assert_nothing_left()
