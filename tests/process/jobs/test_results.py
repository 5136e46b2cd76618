"""A job finds the results of the jobs that it depends on."""

import pytest
from servers import stopped


def put_parents(stage, *results, klass="give"):
    """Put parents that have these results. Return their jids."""
    return stage.queue.put_many({"klass": klass, "data": {"result": result}} for result in results)


def result_of(stage, jid):
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert job.state == "complete", job.failure
    return job.result


def finish(stage, *pools):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


@pytest.mark.parametrize("handlers", ["flow", "together"])
def test_results_come_in_the_order_of_the_parents(stage, handlers):
    parents = put_parents(stage, {"n": [1, "ä"]}, None, "text", 0)[::-1]
    jid = stage.queue.put("collect", depends=["unknown", *parents])
    pool = stage.start(processes=2, handlers=handlers).wait_ready()
    expected = [["unknown", None], *zip(parents, [0, "text", None, {"n": [1, "ä"]}], strict=True)]
    assert result_of(stage, jid) == [list(pair) for pair in expected]
    again = stage.queue.put("collect", depends=parents[:1])
    assert result_of(stage, again) == [[parents[0], 0]], "its parent had ended before it was put"
    assert result_of(stage, stage.queue.put("collect")) == []
    finish(stage, pool)


def test_failed_parent_is_there_as_its_failure(stage):
    failing = stage.queue.put("fail", retries=0)
    cancelled = stage.queue.put("give", delay="1h")
    jid = stage.queue.put("collect", depends=[failing, cancelled], on_parent_failure="run")
    child = stage.queue.put("collect", depends=[failing])
    stage.client.cancel(cancelled)
    pool = stage.start(processes=1, handlers="flow").wait_ready()
    assert result_of(stage, jid) == [
        [failing, ["LookupError", "there is no such thing"]],
        [cancelled, ["gone", "the job was cancelled"]],
    ]
    assert stage.client.job(child).failure["group"] == "parent-failed"
    finish(stage, pool)


@pytest.mark.sampled(3)
def test_results_of_megabytes_are_read_in_parts(stage):
    parents = put_parents(stage, *['"\\' * 15_000 for _ in range(20)], *["small"] * 300)
    jid = stage.queue.put("digest", depends=parents)
    pool = stage.start(processes=2, handlers="flow").wait_ready()
    assert result_of(stage, jid) == [320, 20 * 30_000 + 300 * 5, *parents[:3]]
    finish(stage, pool)


def test_result_has_the_type_of_its_handler(stage):
    parent = stage.queue.put("add", {"left": 1, "right": 2})
    jid = stage.queue.put("typed", depends=[parent])
    pool = stage.start(processes=1, handlers="flow").wait_ready()
    assert result_of(stage, jid) == [1, 2]
    finish(stage, pool)


@pytest.mark.parametrize("history", [0, 1])
def test_result_outlives_the_history_while_a_dependent_waits(stage, history):
    stage.client.config.set("jobs-history-count", history)
    parents = put_parents(stage, 1, 2)
    later = stage.queue.put("give", {"gate": stage.gate("later")})
    stage.queue.put("hand_on", depends=[*parents, later])
    pool = stage.start(processes=1, handlers="flow").wait_ready()
    for parent in parents:
        pool.wait_for("job.completed", jid=parent)
    assert stage.client.job(parents[0]) is None
    stage.open_gate("later")
    elsewhere = stage.client.queue("elsewhere")
    stage.wait_until(lambda: elsewhere.counts().waiting == 1, "the results")
    assert elsewhere.jobs("waiting")[0].data == [1, 2, None]
    elsewhere.delete()
    finish(stage, pool)


def test_results_are_read_once_redis_is_back(own_stage, own_server):
    stage = own_stage
    parents = put_parents(stage, "one")
    gate = stage.gate("first")
    jid = stage.queue.put("collect", {"gate": gate}, depends=parents)
    pool = stage.start(processes=1, handlers="flow").wait_ready()
    stage.wait_for_starts(jid)
    stage.wait_until_start_is_known(jid)
    own_server.kill()
    stage.open_gate(gate)
    pool.wait_for("redis.lost")
    own_server.start()
    assert result_of(stage, jid) == [[parents[0], "one"]]
    finish(stage, pool)


def start_one_that_asks(stage, pool, **options):
    """Start a job that will ask for its parent's result behind the gate `g`."""
    pool.wait_ready()
    jid = stage.queue.put("stopped", {"gate": stage.gate("g")}, depends=put_parents(stage, "one"), **options)
    stage.wait_until_start_is_known(jid)
    return jid


def test_time_limit_ends_the_wait_for_results(own_stage, own_server):
    stage = own_stage
    pool = stage.start(processes=1, handlers="flow")
    jid = start_one_that_asks(stage, pool, timeout=4, retries=0)
    with stopped(own_server.process):
        stage.open_gate("g")
        pool.wait_for("job.printed", jid=jid, line="asking")
        pool.wait_for("job.printed", jid=jid, line="SoftTimeout")
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.failure["group"], job.failures, job.deaths) == ("timeout", 1, 0)
    finish(stage, pool)


def test_lost_lease_ends_the_wait_for_results(own_stage, own_server, app):
    stage = own_stage
    url = own_server.url.replace("://", "://app:first@")
    pool = stage.start(processes=1, handlers="flow", redis_url=url)
    jid = start_one_that_asks(stage, pool)
    app("second")
    pool.wait_for("redis.lost")
    stage.open_gate("g")
    pool.wait_for("job.printed", jid=jid, line="asking")
    stage.client.job(jid).move("elsewhere")
    app("first")
    pool.wait_for("lease.lost", jid=jid)
    pool.wait_for("job.stale", jid=jid)
    said = [event["line"] for event in pool.find("job.printed", jid=jid)[1:]]
    assert said in ([], ["Interrupted"], ["LeaseLost"])  # the results may arrive together with the news
    job = stage.client.job(jid)
    assert (job.state, job.queue, job.failures, job.deaths, job.interruptions) == ("waiting", "elsewhere", 0, 0, 0)
    stage.client.cancel(jid)
    finish(stage, pool)
