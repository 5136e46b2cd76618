"""Thousands of short jobs, to meet each order of messages, deaths and forks."""

import pytest

from supervisor.master.model import memory
from supervisor.ops.events import BUFFER_BYTES
from tests.lengths import LONG

LARGE_BYTES = 50 << 20


@pytest.mark.parametrize(
    ("jobs_per_child", "count"), [(1, 800), (0, 8000), (7, 2000)] if LONG else [(1, 300), (0, 3000), (7, 1000)]
)
def test_flood_of_short_jobs_runs_each_once(stage, jobs_per_child, count, measured):
    pool = stage.start(processes=3, jobs_per_child=jobs_per_child).wait_ready()
    jids = stage.queue.put_many([{"klass": "good.noop"} for _ in range(count)])
    stage.wait_until_settled(jids, 180)  # by Redis: a log that is read too slowly drops lines
    order = stage.ledger.order()
    assert len(order) == count
    assert set(order) == set(jids)
    for bad in ("job.died", "job.stale", "child.killed", "zygote.retired", "zygote.lost", "redis.lost"):
        assert not pool.find(bad), bad
    first, last = stage.ledger.starts()[0].unix, stage.ledger.starts()[-1].unix
    measured(
        f"{count} jobs, {jobs_per_child} per child, 3 children: {count / (last - first):.0f} jobs/s (debug log, ledger)"
    )
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_master_memory_does_not_grow_with_jobs_done(stage, measured):
    """Completed, failed and dead jobs leave no memory in use."""
    pool = stage.start(processes=2, jobs_per_child=50, log_level="info")

    def work(count):
        jobs = [{"klass": "good.noop"} for _ in range(count)]
        jobs += [{"klass": "bad.fail", "data": ["group", "text"]} for _ in range(count // 20)]
        jobs += [{"klass": "bad.leave", "data": {"status": 3}, "max_deaths": 1} for _ in range(count // 100)]
        stage.wait_until_settled(stage.queue.put_many(jobs), 60)
        return memory.of(pool.pid).total_bytes

    before = work(2000)
    after = work(4000)
    measured(f"master after 2,000 jobs and after 6,000: {before / 2**20:.1f} and {after / 2**20:.1f} MB")
    assert after - before < 2 * 2**20
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_master_keeps_no_payload_of_a_running_job(stage, measured):
    pool = stage.start(processes=2).wait_ready()
    before = memory.of(pool.pid).total_bytes
    told = {"gate": stage.gate("gate"), "rest": "x" * LARGE_BYTES}
    jids = [stage.queue.put("good.as_told", told) for _ in range(2)]
    for jid in jids:
        stage.wait_for_starts(jid)
    grown = memory.of(pool.pid).total_bytes - before
    measured(f"master beside 2 running jobs of {LARGE_BYTES >> 20} MB: {grown / 2**20:.1f} MB more than before")
    assert grown < LARGE_BYTES
    stage.open_gate("gate")
    stage.wait_until_ended(jids)
    assert stage.states(jids) == ["complete"] * 2
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_unread_log_costs_the_master_only_its_buffer(stage, measured):
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()

    def all_have_ended():
        stage.ledger.read()
        counts = stage.queue.counts()
        return counts.waiting == counts.running == 0

    stage.wait_until_settled(stage.queue.put_many([{"klass": "good.noop"}] * 1000))
    before = memory.of(pool.pid).total_bytes
    with stage.news:  # who reads the log waits for it
        stage.queue.put_many([{"klass": "good.noop"}] * 10_000)
        stage.wait_until_counted(all_have_ended, 60)
        after = memory.of(pool.pid).total_bytes
    assert pool.wait_for("log.dropped")["count"] > 0
    measured(f"master before and after 10,000 lines that nobody reads: {before / 2**20:.1f} and {after / 2**20:.1f} MB")
    assert after - before < 2 * BUFFER_BYTES
    assert pool.drain() == 0
    stage.assert_nothing_left()
