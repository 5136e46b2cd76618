"""Retention of ended jobs by age and number. Tags, dependents and history have their own tests."""

import pytest


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def ended(q, clock):
    """End so many jobs, one each second, j0 first; `end` is the outcome of each."""

    def end_all(n, end):
        for i in range(n):
            q.put("k", b"x" * 2000, jid=f"j{i}", tags=["t"])
            end(q.lease("w")[0])
            clock.tick(1)

    return end_all


def complete(held):
    held.complete({"r": 1})


def fail(held):
    held.fail("g", "m")


def left(client):
    return [int(jid[1:]) for jid in (f"j{i}" for i in range(300)) if client.job(jid)]


def keys_of_jobs(keys):
    kinds = ("job:", "data:", "result:", "failure:", "history:", "tags:")
    return {key for key in keys() if key.startswith(kinds)}


# Retention by age.


@pytest.mark.parametrize(
    ("option", "end", "place"), [("jobs-history", complete, "complete"), ("failed-history", fail, "failed")]
)
def test_next_sweep_drops_what_is_too_old(client, ended, clock, keys, option, end, place):
    client.config.set(option, 60)
    ended(3, end)
    clock.tick(56)
    client.sweep()
    assert left(client) == [0, 1, 2]
    clock.tick(2)
    client.sweep()
    assert left(client) == [2]
    clock.tick(60)
    client.sweep()
    assert not keys_of_jobs(keys)
    assert place not in keys()
    assert (client.completed(), client.failed(), client.tags()) == ([], {}, {})


def test_failed_jobs_stay_for_ever_and_completed_ones_a_week(client, q, clock):
    for jid in "ab":
        q.put("k", jid=jid)
    a, b = q.lease("w", 2)
    a.complete()
    b.fail("g", "m")
    clock.tick(604_799)
    client.sweep()
    assert client.job("a")
    clock.tick(1)
    client.sweep()
    assert (client.job("a"), client.job("b").state) == (None, "failed")
    clock.tick(10 * 365 * 86_400)
    client.sweep()
    assert client.job("b").state == "failed"


# Retention by number.


@pytest.mark.parametrize(("option", "end"), [("jobs-history-count", complete), ("failed-history-count", fail)])
def test_only_the_newest_jobs_up_to_the_number_are_kept(client, ended, option, end):
    client.config.set(option, 2)
    ended(5, end)
    client.sweep()
    assert left(client) == [3, 4]


@pytest.mark.parametrize(("option", "end"), [("jobs-history-count", complete), ("failed-history-count", fail)])
def test_lowered_number_holds_from_the_next_sweep(client, ended, option, end):
    ended(5, end)
    client.config.set(option, 1)
    client.sweep()
    assert left(client) == [4]


@pytest.mark.parametrize("option", ["jobs-history", "jobs-history-count"])
def test_zero_history_drops_all_completed_jobs(client, ended, option, keys):
    ended(2, complete)
    client.config.set(option, 0)
    client.sweep()
    ended(2, complete)
    assert left(client) == []
    assert not keys_of_jobs(keys)


def test_one_sweep_drops_at_most_its_count(client, ended):
    ended(25, complete)
    client.config.set("jobs-history-count", 0)
    client.sweep(10)
    assert left(client) == list(range(10, 25))
    client.sweep(10)
    client.sweep(10)
    assert left(client) == []


# Jobs that must be kept.


@pytest.mark.parametrize("end", [complete, fail])
def test_a_job_that_was_put_again_is_not_dropped(client, q, ended, clock, end):
    client.config.set("jobs-history", 60)
    client.config.set("failed-history", 60)
    ended(2, end)
    q.put("k", jid="j0")
    clock.tick(100)
    client.sweep()
    assert left(client) == [0]
    assert [lease.jid for lease in q.lease("w", 9)] == ["j0"]


def test_completed_job_put_again_as_a_follow_up_is_not_dropped(client, q, ended):
    client.config.set("jobs-history-count", 1)
    ended(1, complete)
    q.put("k", jid="other")
    q.lease("w")[0].complete(then=[{"queue": "q", "klass": "k", "jid": "j0"}])
    assert [lease.jid for lease in q.lease("w", 9)] == ["j0"]
    assert client.job("other").state == "complete"


def test_dependents_of_a_dropped_failed_job_are_freed(client, q, clock):
    client.config.set("failed-history", 60)
    q.put("k", jid="parent")
    q.put("k", jid="x", depends=["parent"], on_parent_failure="wait")
    q.lease("w")[0].fail("g", "m")
    clock.tick(60)
    client.sweep()
    assert client.job("parent") is None
    assert (client.job("x").state, client.job("x").failure["group"]) == ("failed", "parent-failed")


def test_newest_ten_thousand_dropped_jobs_are_remembered_for_a_week(client, ended, clock, server, namespace):
    dropped = f"{{{namespace}}}:dropped"
    server.redis.zadd(dropped, {f"earlier-{n:04}": 1000 * clock.now - 1 for n in range(9999)})
    client.config.set("failed-history-count", 1)
    ended(4, fail)
    assert left(client) == [3] and server.redis.zcard(dropped) == 10_000
    assert 0 < server.redis.pttl(dropped) <= 604_800_000
    assert [client.why(jid, timeout=0).reason for jid in ("j0", "earlier-0002")] == ["dropped", "dropped"]
    assert client.why("earlier-0001", timeout=0).reason == "unknown"


def test_a_failed_job_that_is_dropped_is_told_of(client, ended, clock):
    client.config.set("failed-history", 60)
    ended(1, fail)
    clock.tick(61)
    with client.events() as stream:
        client.sweep()
        assert stream.get(5).name == "job.dropped"
