"""A Redis that carries out each command, while every tenth exchange loses its reply and the connection.

TEST_FULL=1: 900 jobs also where each has a child of its own.
"""

import pytest
from watched import FULL


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_lost_replies_lose_no_job_and_count_no_death(stage, proxies, jobs_per_child, measured):
    short = 600 if FULL else 200
    stage.config(grace=0.2)
    proxy = proxies(10)
    pool = stage.start(redis_url=proxy.url, processes=2, jobs_per_child=jobs_per_child)
    kinds = [{"klass": "good.noop"}] * 19 + [{"klass": "bad.leave", "data": {"status": 3, "times": 1}}]
    jids = stage.queue.put_many([kinds[n % 20] for n in range(short)])
    # Times of their own break the work up into many exchanges.
    jids += stage.queue.put_many([{"klass": "good.nap", "data": 0.001, "delay": 0.01 * n} for n in range(300)])
    stage.wait_until_ended(jids, 90)
    assert set(stage.states(jids)) == {"complete"}
    assert not stage.find("job.stale")
    assert not stage.find("lease.lost")
    deaths = {jid: job.deaths for jid, job in zip(jids, stage.client.jobs(*jids), strict=True)}
    mortal = {jid for n, jid in enumerate(jids[:short]) if n % 20 == 19}
    innocent = {jid for jid, count in deaths.items() if count} - mortal
    assert not innocent, [event for jid in innocent for event in pool.events if event.get("jid") == jid]
    assert {jid for jid, count in deaths.items() if count} == mortal
    assert set(deaths.values()) <= {0, 1}
    assert {jid for jid in jids if stage.client.job(jid).interruptions} == set()
    starts = stage.ledger.order()
    assert len(starts) == len(jids) + len(mortal)
    assert {jid for jid in jids if starts.count(jid) > 1} == mortal
    completed = [event["jid"] for event in stage.find("job.completed")]
    assert sorted(completed) == sorted(jids)
    redis = stage.server.redis
    assert redis.zcard(f"{stage.prefix}queue:default:running") == 0
    assert redis.zcard(f"{stage.prefix}held:{pool.worker}") == 0
    assert pool.drain() == 0
    counts = proxy.counts()
    measured(
        f"{counts['dropped']} replies dropped of {counts['exchanges']} exchanges;"
        f" {len(jids)} jobs, {len(mortal)} deaths"
    )
    assert counts["dropped"] >= 5
    stage.assert_nothing_left()


def test_refused_completion_with_lost_reply_fails_its_job_once(stage, proxies):
    proxy = proxies(0, reply="!")
    pool = stage.start(redis_url=proxy.url, processes=1).wait_ready()
    puts = [["waits", "good.noop", None, {"jid": "round", "depends": ["round"]}]]
    jid = stage.queue.put("follow.after", {"put": puts}, at_most_once=True)
    pool.wait_for("job.failed", jid=jid)
    assert pool.find("redis.lost") and proxy.counts()["dropped"] == 1
    job = stage.client.job(jid)
    assert (job.state, job.failure["group"]) == ("failed", "DependencyError")
    finish(stage, pool, jid)


def test_endless_completion_with_lost_reply_brings_its_job_back(stage, proxies):
    """Since the lease the record says that the job is persistent, so it cannot complete."""
    gate = stage.gate("gate")
    proxy = proxies(0, reply="~")
    pool = stage.start(redis_url=proxy.url, processes=1).wait_ready()
    jid = stage.queue.put("good.hold", gate, at_most_once=True)
    stage.wait_for_starts(jid)
    stage.queue.pause()  # else it is leased again as soon as it has come back
    stage.server.redis.hset(f"{stage.prefix}job:{jid}", mapping={"persistent": "1"})
    stage.open_gate(gate)
    pool.wait_for("job.returned", jid=jid)
    assert pool.find("redis.lost") and proxy.counts()["dropped"] == 1
    stage.client.cancel(jid)
    stage.queue.unpause()
    finish(stage, pool, jid)


def finish(stage, pool, jid):
    """Check that the job has started once, even after another job has run."""
    pool.wait_for("job.completed", jid=stage.queue.put("good.noop"))
    assert len(stage.ledger.starts(jid)) == 1
    assert not pool.find("lease.returned") and not pool.find("job.stale")
    assert pool.drain() == 0
    stage.assert_nothing_left()
