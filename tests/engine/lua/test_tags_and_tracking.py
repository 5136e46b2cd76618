"""Tags and their index; tracking of jobs and its events."""

import pytest

from supervisor.engine.model.errors import JobNotFound, LeaseholdError


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def x(client, q):
    """Put the job x with two tags."""
    q.put("k", jid="x", tags=["red", "blue"])
    return client.job("x")


def tagged(client, tag, *page):
    total, jobs = client.tagged(tag, *page)
    return total, [job.jid for job in jobs]


# Tags of a job.


def test_tags_keep_their_order_without_duplicates(client, q, x):
    assert x.tags == ["red", "blue"]
    assert x.tag("green", "red", "green") == ["red", "blue", "green"]
    assert x.untag("blue", "black") == ["red", "green"]
    assert client.job("x").tags == ["red", "green"]
    assert q.lease("w")[0].tags == ["red", "green"]


def test_job_may_lose_its_last_tag_and_get_another(client, x):
    assert x.untag("red", "blue") == []
    assert (client.job("x").tags, client.tags()) == ([], {})
    assert x.tag("new") == ["new"]


def test_tags_stay_with_a_job_through_its_life(client, q, x):
    q.lease("w")[0].retry()
    q.lease("w")[0].complete(next="second")
    client.queue("second").lease("w")[0].fail("g", "m")
    client.unfail("g")
    client.queue("second").lease("w")[0].complete()
    assert client.job("x").tags == ["red", "blue"]
    assert tagged(client, "red") == (1, ["x"])


def test_a_job_has_at_most_a_hundred_tags(client, server, namespace, q, x):
    x.tag(*(f"t{i}" for i in range(98)))
    before = server.dump(namespace)
    with pytest.raises(LeaseholdError, match="more than 100 tags"):
        x.tag("one-more")
    with pytest.raises(ValueError, match="tags"):
        q.put("k", tags=[f"t{i}" for i in range(101)])
    assert server.dump(namespace) == before


@pytest.mark.parametrize("change", [lambda job: job.tag("t"), lambda job: job.untag("red")])
def test_tags_of_a_missing_job_cannot_change(client, x, change):
    client.cancel("x")
    with pytest.raises(JobNotFound):
        change(x)
    assert client.tags() == {}


# The index.


def test_jobs_of_a_tag_are_listed_oldest_first_in_pages(client, q, clock):
    for jid in "cab":
        q.put("k", jid=jid)
        clock.tick(1)
    for jid in "bca":
        client.job(jid).tag("t")
        clock.tick(1)
    assert tagged(client, "t") == (3, ["b", "c", "a"])
    assert tagged(client, "t", 1, 1) == (3, ["c"])
    assert tagged(client, "t", 3) == (3, [])
    assert tagged(client, "nothing") == (0, [])


def test_a_tag_given_again_keeps_its_age(client, q, clock):
    for jid in "ab":
        q.put("k", jid=jid, tags=["t"])
        clock.tick(1)
    client.job("a").tag("t")
    q.put("k", jid="a", tags=["t", "u"])
    assert tagged(client, "t") == (2, ["a", "b"])


def test_the_most_used_tags_come_first_in_pages(client, q):
    for i, tags in enumerate([["a"], ["a", "b"], ["a", "b", "c"]]):
        q.put("k", jid=f"j{i}", tags=tags)
    assert list(client.tags().items()) == [("a", 3), ("b", 2), ("c", 1)]
    assert list(client.tags(1, 1).items()) == [("b", 2)]


def test_unchanged_tags_are_not_counted(client, x):
    x.tag("red", "red")
    x.untag("black")
    assert client.tags() == {"red": 1, "blue": 1}


def test_tags_go_with_their_job(client, q, clock):
    client.config.set("jobs-history", 60)
    client.config.set("failed-history", 60)
    for jid in ("completed", "failed", "cancelled"):
        q.put("k", jid=jid, tags=["t"])
    done, failed, _ = q.lease("w", 3)
    done.complete()
    failed.fail("g", "m")
    client.cancel("cancelled")
    assert tagged(client, "t") == (2, ["completed", "failed"])
    clock.tick(61)
    client.sweep()
    assert (tagged(client, "t"), client.tags()) == ((0, []), {})


def test_without_retention_tags_go_when_the_job_completes(client, q, x):
    client.config.set("jobs-history-count", 0)
    q.lease("w")[0].complete()
    assert client.tags() == {}


# Tracking.


def test_tracked_jobs_are_listed_with_those_that_are_gone(client, q):
    for jid in "abc":
        q.put("k", jid=jid)
    assert [client.track("a"), client.track("a"), client.job("b").track()] == [True, False, True]
    assert [job.tracked for job in client.jobs("a", "b", "c")] == [True, True, False]
    client.cancel("b")
    tracked = client.tracked()
    assert ([job.jid for job in tracked.jobs], tracked.expired) == (["a"], ["b"])


def test_a_removed_job_can_be_untracked(client, q):
    for jid in "ab":
        q.put("k", jid=jid)
        client.track(jid)
    client.cancel("b")
    assert [client.untrack("b"), client.untrack("b"), client.job("a").untrack()] == [True, False, True]
    tracked = client.tracked()
    assert (tracked.jobs, tracked.expired, client.job("a").tracked) == ([], [], False)


def test_missing_job_cannot_be_tracked(client, q, x):
    with pytest.raises(JobNotFound):
        client.track("nobody")
    client.cancel("x")
    with pytest.raises(JobNotFound):
        x.track()
    assert client.tracked().expired == []


def test_a_job_stays_tracked_through_its_life(client, q, x):
    x.track()
    q.lease("w")[0].complete(next="second")
    assert client.job("x").tracked
    client.queue("second").lease("w")[0].complete()
    q.put("k", jid="x")
    assert client.job("x").tracked


def test_tracked_jid_put_again_stays_tracked(client, q, x):
    x.track()
    client.cancel("x")
    q.put("k", jid="x")
    assert client.job("x").tracked
    assert [job.jid for job in client.tracked().jobs] == ["x"]


def test_only_tracked_jobs_publish_each_step(client, q, x, clock):
    q.put("k", jid="other")
    with client.events(tracked=True) as events:
        x.track()
        for lease in q.lease("w", 2, ttl=10):
            lease.renew()
            lease.retry()
        clock.tick(1)
        for lease in q.lease("w", 2, ttl=10):
            lease.complete(next="second")
        for lease in client.queue("second").lease("v", 2, ttl=-100):
            assert lease.jid
        client.sweep()
        for lease in client.queue("second").lease("w", 2):
            lease.release()
        for lease in client.queue("second").lease("w", 2):
            lease.fail("g", "m")
        client.unfail("g")
        client.cancel("x", "other")
        heard = []
        while not heard or heard[-1].name != "job.cancelled":
            heard.append(events.get(5))
    assert [event.name for event in heard] == [
        "job.tracked", "lease.granted", "job.retried", "lease.granted", "job.advanced", "lease.granted", "lease.lost",
        "job.died", "lease.granted", "job.released", "lease.granted", "job.failed", "job.put", "job.cancelled",
    ]  # fmt: skip
    assert {event.jid for event in heard} == {"x"}
    assert (heard[0].when_unix, heard[-1].when_unix) == (clock.now - 1, clock.now)
