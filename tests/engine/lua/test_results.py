"""Jobs leave their results to the jobs that depend on them."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import maintenance, parent_results
from supervisor.engine.model.jobs import ParentResult
from supervisor.engine.model.outcomes import Completed


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def results(client):
    def read(jid, first=0, most=10):
        total, found = calls_of(client).run(parent_results.read(jid, first, most))
        assert total >= len(found)
        return found

    return read


def complete(q, *jids_and_results):
    for jid, result in jids_and_results:
        [lease] = [lease for lease in q.lease("w", 100) if lease.jid == jid]
        lease.complete(result)


def keep_no_history(client, clock):
    """Delete what has completed, as a sweep does."""
    client.config.set("jobs-history", 1)
    clock.tick(2)
    client.sweep()


def test_results_come_in_the_order_of_the_put_and_in_pages(client, q, results):
    for jid in "abc":
        q.put("k", jid=jid)
    q.put("k", jid="child", depends=["c", "unknown", "a", "b"])
    leases = {lease.jid: lease for lease in q.lease("w", 10)}
    leases["a"].complete({"n": 1})
    leases["b"].complete()
    leases["c"].complete("c")
    assert results("child") == [
        ParentResult("c", b'"c"'), ParentResult("unknown"), ParentResult("a", b'{"n":1}'), ParentResult("b"),
    ]  # fmt: skip
    assert results("child", 2, 1) == [ParentResult("a", b'{"n":1}')]
    assert results("child", 9) == results("other") == []


def test_failure_of_a_parent_has_group_and_message(client, q, results):
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"], on_parent_failure="run")
    q.lease("w")[0].fail("g", "m")
    assert results("child") == [ParentResult("a", failure=("g", "m"))]
    q.put("k", jid="later", depends=["a"], on_parent_failure="run")
    assert results("later") == [ParentResult("a", failure=("g", "m"))]


def test_results_outlive_their_jobs_until_no_dependent_needs_them(client, q, clock, results, server, namespace):
    q.put("k", jid="a")
    q.put("k", jid="b")
    for child in ("c1", "c2"):
        q.put("k", jid=child, depends=["a", "b"], on_parent_failure="run")
    leases = {lease.jid: lease for lease in q.lease("w", 10)}
    leases["a"].complete(1)
    leases["b"].fail("g", "m")
    client.config.set("failed-history", 1)
    keep_no_history(client, clock)
    assert client.job("a") is None and client.job("b") is None
    left = [ParentResult("a", b"1"), ParentResult("b", failure=("g", "m"))]
    assert results("c1") == results("c2") == left
    assert client.check() == []
    q.lease("w")[0].complete()
    clock.tick(61)
    client.sweep()
    [second] = q.lease("w")
    assert results(second.jid) == left, "one still needs them"
    second.complete()
    keep_no_history(client, clock)
    clock.tick(61)
    client.sweep()
    keys = [key for key in server.redis.scan_iter(f"{{{namespace}}}:*") if b"kept" in key or b"readers" in key]
    assert keys == []
    assert client.check() == []


def test_results_are_kept_where_no_history_is(client, q, clock, results):
    client.config.set("jobs-history", 0)
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"])
    q.lease("w")[0].complete([1])
    assert client.job("a") is None
    assert results("child") == [ParentResult("a", b"[1]")]
    clock.tick(61)
    client.sweep()
    assert results("child") == [ParentResult("a", b"[1]")]
    assert client.check() == []


def test_child_of_a_cancelled_parent_that_runs_finds_why(client, q, results):
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"], on_parent_failure="run")
    client.cancel("a")
    assert results("child") == [ParentResult("a", failure=("gone", "the job was cancelled"))]


def test_new_job_of_a_jid_has_none_of_the_results_before(client, q, clock, results):
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"])
    q.lease("w")[0].complete(1)
    keep_no_history(client, clock)
    q.put("k", jid="a", priority=-1)
    q.put("k", jid="other", depends=["a"])
    [lease] = q.lease("w")
    lease.complete()
    assert results("other") == [ParentResult("a")]


def test_dependencies_that_are_added_and_removed_change_the_results(client, q, results):
    for jid in "abc":
        q.put("k", jid=jid)
    q.put("k", jid="child", depends=["a", "b"])
    job = client.job("child")
    job.depend("c", "a")
    job.undepend("b")
    assert [each.jid for each in results("child")] == ["a", "c"]


def test_new_stage_has_parents_of_its_own(client, q, results):
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"])
    q.lease("w")[0].complete(1)
    [lease] = q.lease("w")
    q.put("k", jid="b", delay=60)
    lease.complete(next="q", depends=["b"])
    assert [each.jid for each in results("child")] == ["b"]
    q.put("k", jid="child")
    assert [each.jid for each in results("child")] == ["b"], "it still waits"
    client.job("child").move("p")
    assert [each.jid for each in results("child")] == ["b"]
    client.cancel("b")
    client.unfail("parent-failed")
    q.put("k", jid="child")
    assert results("child") == []


def test_try_before_a_completion_is_no_failure_where_no_history_is(client, q, results):
    client.config.set("jobs-history", 0)
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"])
    q.lease("w")[0].retry(group="boom", message="first try")
    q.lease("w")[0].complete()
    assert results("child") == [ParentResult("a")]


def test_result_stays_for_a_job_put_by_the_call_that_would_delete_it(client, q, clock, results):
    client.config.set("jobs-history-count", 1)
    q.put("k", jid="old")
    q.lease("w")[0].complete("result")
    q.put("k", jid="new")
    [lease] = q.lease("w")
    assert lease.complete(then=[{"queue": "q", "klass": "k", "jid": "child", "depends": ["old"]}])
    q.put("k", jid="newest", priority=-1)
    q.lease("w")[0].complete()
    assert client.job("old") is None
    assert results("child") == [ParentResult("old", b'"result"')]
    assert client.check() == []


def test_kept_result_of_a_deleted_job_serves_new_jobs(client, q, clock, results):
    client.config.set("jobs-history", 0)
    q.put("k", jid="a")
    q.put("k", jid="child", depends=["a"])
    q.lease("w")[0].complete(1)
    q.put("k", jid="later", depends=["a"])
    client.cancel("child")
    clock.tick(61)
    client.sweep()
    assert results("later") == [ParentResult("a", b"1")]


def test_readers_that_have_ended_do_not_pile_up(client, q, server, namespace):
    q.put("k", jid="a")
    q.lease("w")[0].complete(1)
    for _ in range(3):
        q.put_many({"klass": "k", "depends": ["a"]} for _ in range(1_000))
        client.settle([Completed(lease) for lease in q.lease("w", 1_000)])
    assert server.redis.zcard(f"{{{namespace}}}:readers:a") < 1_200
    q.put("k", jid="a")
    assert server.redis.zcard(f"{{{namespace}}}:readers:a") == 0


def test_all_kept_results_that_no_job_needs_go_with_one_sweep_after_another(client, q, clock, server, namespace):
    client.config.set("jobs-history", 0)
    q.put_many({"klass": "k", "jid": f"p{i}"} for i in range(250))
    q.put("k", jid="child", depends=[f"p{i}" for i in range(250)])
    leases = q.lease("w", 250)
    client.settle([Completed(lease, result=1) for lease in leases])
    client.cancel("child")
    clock.tick(61)
    kept = f"{{{namespace}}}:kept"
    assert server.redis.zcard(kept) == 250
    offset, seen = 0, []
    while not seen or offset:
        offset = calls_of(client).call(maintenance.sweep, offset=offset).next_offset
        seen.append(server.redis.zcard(kept))
    assert seen == [150, 50, 0]
