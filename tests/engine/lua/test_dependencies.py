"""Dependencies: at put, at complete with next, changed later, and at a parent's end."""

import pytest

from supervisor.engine.model.errors import DependencyError, JobNotFound


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def states(client):
    """Return the states of some jobs; None: gone."""

    def of(jids):
        return [job and job.state for job in client.jobs(*jids)]

    return of


def complete(client, *jids):
    for lease in client.queue("q").lease("w", 100):
        if lease.jid in jids:
            assert lease.complete()
        else:
            assert lease.release(started=False)


# Dependencies given at put.


def test_a_job_waits_for_its_parents(client, q, states):
    q.put("k", jid="a")
    q.put("k", jid="b")
    q.put("k", jid="c", depends=["a", "b"])
    assert [job.jid for job in q.peek(9)] == ["a", "b"]
    assert (client.job("c").dependencies, client.job("a").dependents) == (["a", "b"], ["c"])
    assert q.counts().depends == 1
    complete(client, "a")
    assert states("c") == ["depends"]
    complete(client, "b")
    assert states("c") == ["waiting"]
    assert client.job("c").dependencies == []


def test_unknown_and_complete_jobs_count_as_done(client, q, states):
    q.put("k", jid="a")
    complete(client, "a")
    q.put("k", jid="c", depends=["a", "nobody"])
    assert states("c") == ["waiting"]


def test_a_job_waits_until_its_failed_parent_completes(client, q, states):
    q.put("k", jid="a")
    q.lease("w")[0].fail("g", "m")
    q.put("k", jid="c", depends=["a"], on_parent_failure="wait")
    assert states("c") == ["depends"]
    client.unfail("g")
    complete(client, "a")
    assert states("c") == ["waiting"]


def test_delayed_job_is_scheduled_after_its_parents(client, q, clock, states):
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"], delay=60)
    assert client.job("c").due_unix == clock.now + 60
    clock.tick(20)
    complete(client, "a")
    job = client.job("c")
    assert (job.state, job.due_unix) == ("scheduled", clock.now + 40)
    clock.tick(40)
    assert [lease.jid for lease in q.lease("w")] == ["c"]


def test_job_whose_time_has_passed_waits_at_once(client, q, clock, states):
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"], delay=60)
    clock.tick(61)
    complete(client, "a")
    assert states("c") == ["waiting"]


def test_job_may_depend_on_earlier_ones_of_its_batch(client, q, states):
    q.put_many([{"klass": "k", "jid": "a"}, {"klass": "k", "jid": "b", "depends": ["a"]}])
    assert states("ab") == ["waiting", "depends"]


def test_thousand_parents_or_dependents_are_allowed(client, q):
    q.put("k", jid="root")
    q.put_many({"klass": "k", "jid": f"m{i}", "depends": ["root"]} for i in range(1000))
    q.put("k", jid="last", depends=[f"m{i}" for i in range(1000)])
    complete(client, "root")
    assert q.counts().waiting == 1000
    for _ in range(10):
        for lease in q.lease("w", 100):
            lease.complete()
    assert [lease.jid for lease in q.lease("w")] == ["last"]


def test_parent_that_advances_is_not_complete(client, q, states):
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"])
    q.lease("w")[0].complete(next="second")
    assert states("c") == ["depends"]
    client.queue("second").lease("w")[0].complete()
    assert states("c") == ["waiting"]


def test_completed_parent_without_retention_frees_its_dependents(client, q, states):
    client.config.set("jobs-history", 0)
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"])
    complete(client, "a")
    assert states("ac") == [None, "waiting"]


# Changed later.


def test_dependencies_are_added_and_taken_off(client, q, states):
    for jid in "ab":
        q.put("k", jid=jid)
    q.put("k", jid="c", depends=["a"])
    client.job("c").depend("b", "nobody")
    assert client.job("c").dependencies == ["a", "b"]
    client.job("c").undepend("a", "nobody")
    assert (client.job("c").dependencies, client.job("a").dependents) == (["b"], [])
    client.job("c").undepend("b")
    assert states("c") == ["waiting"]


def test_all_dependencies_are_taken_off_at_once(client, q, states):
    for jid in "ab":
        q.put("k", jid=jid)
    q.put("k", jid="c", depends=["a", "b"])
    client.job("c").undepend(all=True)
    assert states("c") == ["waiting"]


def test_removing_the_last_dependency_keeps_the_delay(client, q, clock):
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"], delay=60)
    client.job("c").undepend("a")
    job = client.job("c")
    assert (job.state, job.due_unix) == ("scheduled", clock.now + 60)


@pytest.mark.parametrize("change", [lambda job: job.depend("a"), lambda job: job.undepend("a")])
def test_dependencies_change_only_in_state_depends(client, q, change):
    for jid in "ac":
        q.put("k", jid=jid)
    with pytest.raises(DependencyError, match="c is not in state depends but waiting"):
        change(client.job("c"))
    job = client.job("c")
    client.cancel("c")
    with pytest.raises(JobNotFound):
        change(job)


# Circles.


@pytest.fixture
def chain(q):
    """Put c, which waits for b, which waits for a."""
    q.put("k", jid="a")
    q.put("k", jid="b", depends=["a"])
    q.put("k", jid="c", depends=["b"])


@pytest.mark.parametrize("parent", ["a", "b", "c"])
def test_no_job_waits_for_itself_by_whatever_way(client, server, namespace, q, chain, parent):
    before = server.dump(namespace)
    with pytest.raises(DependencyError, match=r"a cannot depend on"):
        q.put("k", jid="a", depends=[parent])
    assert server.dump(namespace) == before


def test_cycle_is_found_fast_over_many_paths(client, q):
    q.put("k", jid="top")
    q.put_many({"klass": "k", "jid": f"{side}0", "depends": ["top"]} for side in "lr")
    for i in range(60):
        q.put_many({"klass": "k", "jid": f"{side}{i + 1}", "depends": [f"l{i}", f"r{i}"]} for side in "lr")
    with pytest.raises(DependencyError):
        q.put("k", jid="top", depends=["l60"])


@pytest.mark.parametrize("parent", ["b", "c"])
def test_a_dependency_added_later_makes_no_circle_either(client, server, namespace, chain, parent):
    before = server.dump(namespace)
    with pytest.raises(DependencyError, match=r"b cannot depend on"):
        client.job("b").depend(parent)
    assert server.dump(namespace) == before


@pytest.mark.parametrize("parent", ["a", "c"])
def test_completion_that_would_wait_for_itself_is_refused(client, q, chain, parent):
    (held,) = q.lease("w")
    with pytest.raises(DependencyError, match="a cannot go on"):
        held.complete(next="q", depends=[parent])
    assert held.complete() is True


def test_follow_up_that_would_wait_for_itself_refuses_the_completion(client, server, namespace, q):
    q.put("k", jid="x")
    (held,) = q.lease("w")
    before = server.dump(namespace)
    with pytest.raises(DependencyError):
        held.complete(then=[{"queue": "q", "klass": "k", "jid": "y", "depends": ["y"]}])
    assert server.dump(namespace) == before


# The end of a parent.


@pytest.fixture
def family(q):
    """Put a parent, and a dependent for each policy, named after it."""
    q.put("k", jid="parent")
    for policy in ("wait", "fail", "run"):
        q.put("k", jid=policy, depends=["parent"], on_parent_failure=policy)


def by_worker(client):
    client.queue("q").lease("w")[0].fail("g", "m")


def by_operator(client):
    client.job("parent").fail("g", "m")


def by_exhausted_retries(client):
    client.queue("q").put("k", jid="parent", retries=0)
    client.queue("q").lease("w")[0].retry()


def by_deaths(client):
    client.queue("q").put("k", jid="parent", max_deaths=1)
    client.queue("q").lease("w")[0].died("oom")


def by_being_lost(client):
    client.queue("q").put("k", jid="parent", max_deaths=1)
    client.queue("q").lease("w", ttl=-100)
    client.sweep()


@pytest.mark.parametrize("fail", [by_worker, by_operator, by_exhausted_retries, by_deaths, by_being_lost])
def test_a_failed_parent_means_what_the_policy_says(client, states, family, fail):
    fail(client)
    assert states(["parent", "wait", "fail", "run"]) == ["failed", "depends", "failed", "waiting"]
    failure = client.job("fail").failure
    assert (failure["group"], failure["parent"]) == ("parent-failed", "parent")


def test_a_job_fails_with_its_parent_unless_another_policy_is_given(client, q):
    q.put("k", jid="a")
    q.put("k", jid="c", depends=["a"])
    assert client.job("c").on_parent_failure == "fail"
    for policy in ("run", "wait"):
        q.put("k", jid="c", on_parent_failure=policy)
        q.put("k", jid="c", depends=["a"])
        assert client.job("c").on_parent_failure == policy, "an option that is left out keeps its value"
    q.put("k", jid="b", on_parent_failure="wait")
    q.put("k", jid="b", depends=["a"])
    assert client.job("b").on_parent_failure == "fail", "it has not had parents"


def test_an_entry_of_another_program_waits_for_a_failed_parent(client, q, server, namespace):
    q.put("k", jid="a")
    server.redis.lpush(f"{{{namespace}}}:in:q", b'{"klass": "k", "jid": "c", "depends": ["a"]}')
    q.lease("w", 1)
    assert client.job("c").on_parent_failure == "wait"


def test_failure_spreads_through_dependents_with_policy_fail(client, q, states):
    q.put("k", jid="a")
    for child, parent in ("ba", "cb"):
        q.put("k", jid=child, depends=[parent], on_parent_failure="fail")
    q.put("k", jid="d", depends=["c"], on_parent_failure="run")
    by_worker(client)
    assert states("abcd") == ["failed", "failed", "failed", "waiting"]


def test_job_that_waits_twice_for_a_failed_one_fails_once(client, q):
    q.put("k", jid="a")
    q.put("k", jid="b", depends=["a"], on_parent_failure="fail")
    q.put("k", jid="c", depends=["a", "b"], on_parent_failure="fail")
    by_worker(client)
    assert [entry["what"] for entry in client.job("c").history] == ["put", "failed"]
    assert q.stats().failures == 3


@pytest.mark.sampled(2)
def test_a_failure_goes_down_a_chain_of_whatever_length(client, q):
    q.put("k", jid="0")
    q.put_many(
        {"klass": "k", "jid": f"{i}", "depends": [f"{i - 1}"], "on_parent_failure": "fail"} for i in range(1, 7000)
    )
    assert q.lease("w")[0].fail("g", "m") is True
    assert client.failed() == {"g": 1, "parent-failed": 1000}, "a bounded step; a sweep goes on"
    client.sweep()
    assert client.failed() == {"g": 1, "parent-failed": 6999}


@pytest.mark.parametrize(("policy", "state"), [("wait", "depends"), ("fail", "failed"), ("run", "waiting")])
def test_job_put_after_its_parents_failure_follows_its_policy(client, q, states, policy, state):
    q.put("k", jid="a")
    by_worker(client)
    q.put("k", jid="c", depends=["a"], on_parent_failure=policy)
    assert states("c") == [state]


# Cancelling.


def test_parent_of_an_unlisted_job_is_not_cancelled(client, server, namespace, family):
    before = server.dump(namespace)
    with pytest.raises(DependencyError, match="job parent cannot be cancelled alone: job wait waits for it"):
        client.cancel("run", "parent")
    assert server.dump(namespace) == before


def test_a_cancelled_parent_means_what_the_policy_says(client, states, family):
    assert client.cancel("wait", "parent") == ["wait", "parent"]
    assert states(["parent", "wait", "fail", "run"]) == [None, None, "failed", "waiting"]
    assert client.job("fail").failure["message"] == "job parent, on which it depended, was cancelled"


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
def test_chain_is_cancelled_in_any_order_of_its_jids(client, states, chain, order):
    assert client.cancel(*order) == list(order)
    assert states("abc") == [None, None, None]


def test_a_dependent_that_is_cancelled_frees_its_parent(client, family):
    client.cancel("wait")
    assert client.job("parent").dependents == ["fail", "run"]
    assert client.job("parent").cancel() is True


def test_most_dependents_can_be_moved_and_no_more_added(client, q):
    q.put("k", jid="parent")
    q.put_many({"klass": "k", "jid": f"c{i}", "depends": ["parent"]} for i in range(1000))
    q.put("k", jid="c7", depends=["parent"])
    client.job("c8").move("r")
    with pytest.raises(DependencyError, match="as 1000 jobs do"):
        q.put("k", jid="one-more", depends=["parent"])
    q.put("k", jid="other", priority=-1)
    lease = q.lease("w")[0]
    with pytest.raises(DependencyError):
        lease.complete(next="q", depends=["parent"])
    assert lease.complete() is True
    q.put("k", jid="c9")
    assert client.job("c9").dependencies == ["parent"], "what is not given is kept"
    q.put("k", jid="c9", depends=[])
    q.put("k", jid="one-more", depends=["parent"])
    assert len(client.job("parent").dependents) == 1000
