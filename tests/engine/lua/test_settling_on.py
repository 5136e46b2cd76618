"""complete with next, then and data; fail with data; and an operator's fail, unfail, cancel, release, priority."""

import pytest

from supervisor.engine.model.errors import JobNotFound, LeaseLost
from supervisor.engine.model.outcomes import Completed, Failed


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def lease(q):
    """Lease a new job with these options."""

    def lease_one(jid="x", data=None, **options):
        q.put("k", data, jid=jid, **options)
        return q.lease("w")[0]

    return lease_one


def whats(job):
    return [entry["what"] for entry in job.history]


# Advances to the next queue.


def test_advanced_job_begins_a_new_stage(client, lease, clock):
    held = lease(data={"n": 1}, priority=3, retries=2, tags=["t"])
    held.retry()
    (held,) = client.queue("q").lease("w")
    clock.tick(1)
    assert held.complete(next="second") is True
    job = client.job("x")
    assert (job.state, job.queue, job.data, job.priority, job.tags) == ("waiting", "second", {"n": 1}, 3, ["t"])
    assert (job.failures, job.retries, job.failure, job.put_unix) == (0, 2, None, clock.now)
    assert held.complete() is False
    assert client.completed() == []


@pytest.mark.parametrize("how", ["retry", "died", "fail"])
def test_a_completion_removes_the_last_failure(client, q, lease, how):
    held = lease()
    {"retry": held.retry, "died": lambda: held.died("oom"), "fail": lambda: held.fail("g", "m")}[how]()
    if how == "fail":
        client.unfail("g")
    assert client.job("x").failure is not None
    (held,) = q.lease("w")
    assert held.complete(result="r")
    job = client.job("x")
    assert (job.state, job.result, job.failure) == ("complete", "r", None)
    assert "completed" in whats(job)


def test_complete_is_true_once_in_each_stage(client, lease):
    held = lease()
    assert [held.complete(next="second"), held.complete(next="second")] == [True, False]
    (held,) = client.queue("second").lease("w")
    assert [held.complete(), held.complete()] == [True, False]


def test_job_may_advance_to_the_back_of_its_own_queue(client, q, lease):
    held = lease()
    q.put("k", jid="y")
    held.complete(next="q")
    assert [job.jid for job in q.jobs("waiting")] == ["y", "x"]


@pytest.mark.parametrize("data", [{"n": 2}, [], None, b"\x00\xff", 2**60])
def test_new_data_goes_along_unchanged(client, lease, data):
    lease(data={"n": 1}).complete(data=data, next="second")
    (held,) = client.queue("second").lease("w")
    assert (held.data, held.is_bytes) == (data, isinstance(data, bytes))


def test_new_data_is_kept_with_the_completed_job_too(client, lease):
    lease(data={"n": 1}).complete({"r": 1}, data={"n": 2})
    job = client.job("x")
    assert (job.state, job.data, job.result) == ("complete", {"n": 2}, {"r": 1})


def test_a_job_goes_on_after_a_delay(client, clock, lease):
    lease().complete(next="second", delay=60)
    job = client.job("x")
    assert (job.state, job.due_unix) == ("scheduled", clock.now + 60)
    clock.tick(60)
    assert [held.jid for held in client.queue("second").lease("w")] == ["x"]


def test_a_job_goes_on_when_others_are_done(client, q, lease):
    held = lease()
    q.put("k", jid="other")
    held.complete(next="second", depends=["other", "nobody"])
    assert (client.job("x").state, client.job("x").dependencies) == ("depends", ["other"])
    q.lease("w")[0].complete()
    assert client.job("x").state == "waiting"


def test_advanced_job_waits_for_time_and_parents(client, q, clock, lease):
    held = lease()
    q.put("k", jid="other")
    held.complete(next="second", delay=60, depends=["other"])
    assert client.job("x").state == "depends"
    clock.tick(10)
    q.lease("w")[0].complete()
    job = client.job("x")
    assert (job.state, job.due_unix) == ("scheduled", clock.now + 50)


def test_a_delay_counts_although_all_others_are_done(client, lease):
    lease().complete(next="second", delay=60, depends=["nobody"])
    assert client.job("x").state == "scheduled"


@pytest.mark.parametrize("given", [{"delay": 5}, {"depends": ["y"]}, {"next": ""}, {"next": "second", "delay": -1}])
def test_invalid_advance_is_refused_and_the_lease_goes_on(server, namespace, lease, given):
    held = lease()
    before = server.dump(namespace)
    with pytest.raises(ValueError, match=list(given)[-1]):
        held.complete(**given)
    assert server.dump(namespace) == before


# Follow-up puts.


def test_follow_ups_are_put_in_order_with_the_completion(client, lease):
    then = [
        {"queue": "mail", "klass": "send", "data": {"to": "ada"}, "jid": "a", "priority": 2},
        {"queue": "mail", "klass": "send", "jid": "b", "delay": 60},
        {"queue": "mail", "klass": "send", "jid": "c", "depends": ["a", "x"], "tags": ["t"]},
    ]
    assert lease().complete({"r": 1}, then=then) is True
    a, b, c = client.jobs("a", "b", "c")
    assert (a.state, a.data, a.priority) == ("waiting", {"to": "ada"}, 2)
    assert (b.state, c.state, c.dependencies, c.tags) == ("scheduled", "depends", ["a"], ["t"])


def test_follow_ups_of_a_lost_lease_are_not_put(client, lease):
    held = lease()
    client.job("x").release()
    assert held.complete(then=[{"queue": "q", "klass": "k", "jid": "y"}]) is False
    assert client.job("y") is None


def test_each_follow_up_goes_with_its_own_outcome(client, q, lease):
    good, stale = lease("x"), lease("y")
    client.job("y").release()
    outcomes = [
        Completed(stale, then=[{"queue": "q", "klass": "k", "jid": "after-y"}]),
        Completed(good, next="second", then=[{"queue": "q", "klass": "k", "jid": "after-x"}]),
    ]
    assert client.settle(outcomes) == [False, True]
    assert [job and job.state for job in client.jobs("after-y", "after-x", "x")] == [None, "waiting", "waiting"]


def test_a_job_may_follow_itself(client, lease):
    lease().complete(then=[{"queue": "again", "klass": "k2", "jid": "x"}])
    job = client.job("x")
    assert (job.state, job.queue, job.klass, whats(job)) == (
        "waiting", "again", "k2", ["put", "popped", "completed", "put"],
    )  # fmt: skip


@pytest.mark.parametrize("bad", [7, {"klass": "k"}, {"queue": "q"}, {"queue": "q", "klass": "k", "prio": 1}])
def test_invalid_follow_up_is_refused_before_any_outcome(server, namespace, lease, bad):
    held = lease()
    before = server.dump(namespace)
    with pytest.raises(TypeError, match=r"then|prio"):
        held.complete(then=[{"queue": "q", "klass": "k"}, bad])
    assert server.dump(namespace) == before


# Failed by its worker.


def test_a_failure_may_replace_the_data(client, lease):
    assert lease(data={"n": 1}).fail("disk", "full", data={"n": 2, "done": []}) is True
    job = client.job("x")
    assert (job.state, job.data) == ("failed", {"n": 2, "done": []})
    assert (job.failure["group"], job.failure["message"], job.failure["worker"]) == ("disk", "full", "w")


def test_failure_without_data_keeps_the_bytes(client, lease):
    lease(data=b'{"n": 1.0}').fail("disk", "full")
    assert client.job("x").raw == b'{"n": 1.0}'


def test_a_batch_of_failures_carries_data_for_each(client, q):
    for jid in "ab":
        q.put("k", jid=jid)
    a, b = q.lease("w", 2)
    assert client.settle([Failed(a, "g", "m", data=1), Failed(b, "g", "m")]) == [True, True]
    assert [job.data for job in client.jobs("a", "b")] == [1, None]


ENDS = {
    "complete": lambda held: held.complete(),
    "advance": lambda held: held.complete(next="q"),
    "retry": lambda held: held.retry(),
    "fail": lambda held: held.fail("g", "m"),
    "release": lambda held: held.release(),
    "died": lambda held: held.died("oom"),
}


@pytest.mark.parametrize("first", ENDS)
def test_ended_lease_cannot_end_again(client, server, namespace, lease, first):
    held = lease()
    ENDS[first](held)
    before = server.dump(namespace)
    for end in ("complete", "advance", "fail", "release"):
        assert ENDS[end](held) is False
    for end in (ENDS["retry"], ENDS["died"], lambda held: held.renew()):
        with pytest.raises(LeaseLost):
            end(held)
    after = server.dump(namespace)
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == set()


# Failed by an operator.


def waiting(q):
    q.put("k", jid="x")


def scheduled(q):
    q.put("k", jid="x", delay=60)


def depends(q):
    q.put("k", jid="p")
    q.put("k", jid="x", depends=["p"])


def running(q):
    waiting(q)
    return q.lease("w")[0]


def front(q):
    running(q).release()


def failed(q):
    running(q).fail("old", "m")


def complete(q):
    running(q).complete()


@pytest.mark.parametrize("arrive", [waiting, scheduled, depends, running, front, failed, complete])
def test_an_operator_fails_a_job_in_any_state(client, q, arrive):
    held = arrive(q)
    client.job("x").fail("by-hand", "not wanted any more")
    job = client.job("x")
    assert (job.state, job.queue, job.worker) == ("failed", "q", None)
    assert (job.failure["group"], job.failure["message"], job.failure["worker"]) == (
        "by-hand", "not wanted any more", None,
    )  # fmt: skip
    assert client.failed() == {"by-hand": 1}
    assert not held or not held.complete()


def test_a_job_that_is_gone_cannot_be_failed(client, q):
    waiting(q)
    job = client.job("x")
    client.cancel("x")
    with pytest.raises(JobNotFound):
        job.fail("g", "m")


# Unfailed.


@pytest.fixture
def failures(client, q, clock):
    """Fail five jobs one after the other, from two queues."""
    for i in range(5):
        queue = client.queue("q" if i % 2 == 0 else "other")
        queue.put("k", {"n": i}, jid=f"j{i}", priority=1, retries=0)
        queue.lease("w")[0].retry(group="g", message="m")
        clock.tick(1)


def test_unfail_starts_with_the_oldest_each_into_its_queue(client, q, failures):
    assert client.unfail("g", count=3) == 3
    assert [(job.state, job.queue) for job in client.jobs("j0", "j1", "j2")] == [
        ("waiting", "q"), ("waiting", "other"), ("waiting", "q"),
    ]  # fmt: skip
    assert client.failed() == {"g": 2}
    assert [job.jid for job in client.failed("g")[1]] == ["j4", "j3"]


def test_unfail_moves_all_into_a_named_queue(client, failures):
    assert client.unfail("g", "repair", 100) == 5
    assert [lease.jid for lease in client.queue("repair").lease("w", 9)] == ["j0", "j1", "j2", "j3", "j4"]
    assert (client.failed(), client.unfail("g")) == ({}, 0)


def test_unfailed_job_begins_a_new_stage_with_its_last_failure(client, failures):
    client.unfail("g")
    job = client.job("j0")
    assert (job.failures, job.failure["message"], job.data, job.priority) == (0, "m", {"n": 0}, 1)
    (held,) = client.queue("q").lease("w")
    assert held.remaining == 0


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_number_that_unfails_nothing_is_refused(client, failures, count):
    with pytest.raises(ValueError, match="count"):
        client.unfail("g", count=count)


# Cancelled.


@pytest.mark.parametrize("arrive", [waiting, scheduled, depends, running, front, failed])
def test_a_cancelled_job_leaves_nothing_behind(client, q, keys, arrive):
    arrive(q)
    assert client.cancel("x") == ["x"]
    assert client.job("x") is None
    assert {key for key in keys() if key.endswith(":x") or key in ("groups", "failed", "held:w")} == set()


def test_cancel_of_many_leaves_unknown_and_complete_jobs(client, q):
    complete(q)
    q.put_many({"klass": "k", "jid": f"j{i}"} for i in range(999))
    jids = [f"j{i}" for i in range(998)]
    assert client.cancel("nobody", "x", *jids) == jids
    assert (client.job("x").state, q.counts().waiting) == ("complete", 1)


def test_worker_of_a_cancelled_job_has_lost_the_lease(client, q):
    held = running(q)
    assert client.job("x").cancel() is True
    assert held.complete() is False
    with pytest.raises(LeaseLost):
        held.renew()
    assert client.worker("w").running == []


def test_cancelled_job_is_not_cancelled_again(client, q):
    waiting(q)
    job = client.job("x")
    assert [job.cancel(), job.cancel()] == [True, False]


# Released by an operator.


def test_a_running_job_is_released_to_the_front(client, q):
    for jid in "ab":
        q.put("k", jid=jid)
    (held,) = q.lease("w")
    q.put("k", jid="urgent", priority=-9)
    assert client.job("a").release() is True
    assert held.complete() is False
    job = client.job("a")
    assert (job.interruptions, job.failures, job.deaths) == (1, 0, 0)
    assert [lease.jid for lease in q.lease("v", 9)] == ["a", "urgent", "b"]


def test_a_stalled_job_is_released_too(client, q, clock):
    running(q)
    clock.tick(31)
    assert client.job("x").state == "stalled"
    assert client.job("x").release() is True
    assert client.job("x").state == "waiting"


@pytest.mark.parametrize("arrive", [waiting, scheduled, depends, front, failed, complete])
def test_job_that_does_not_run_is_not_released(client, server, namespace, q, arrive):
    arrive(q)
    before = server.dump(namespace)
    assert client.job("x").release() is False
    assert server.dump(namespace) == before


# Priority.


def order(q):
    return [job.jid for job in q.jobs("waiting")]


def test_changed_priority_keeps_the_order_by_age(client, q):
    for jid in "abc":
        q.put("k", jid=jid)
    assert client.job("c").set_priority(-1) == -1
    assert order(q) == ["c", "a", "b"]
    client.job("b").set_priority(-1)
    assert order(q) == ["b", "c", "a"]
    for jid in "bc":
        client.job(jid).set_priority(0)
    assert order(q) == ["a", "b", "c"]


def test_front_ignores_a_changed_priority(client, q):
    front(q)
    q.put("k", jid="y")
    client.job("x").set_priority(9)
    assert order(q) == ["x", "y"]


@pytest.mark.parametrize("arrive", [scheduled, running, failed, complete])
def test_priority_set_elsewhere_counts_when_the_job_waits_again(client, q, arrive):
    arrive(q)
    q.put("k", jid="y")
    client.job("x").set_priority(5)
    assert client.job("x").priority == 5
    client.job("x").move("q")
    assert order(q) == ["y", "x"]


def test_priority_of_a_missing_job_cannot_change(client, q):
    waiting(q)
    job = client.job("x")
    client.cancel("x")
    with pytest.raises(JobNotFound):
        job.set_priority(1)
