"""Unique jobs: a key belongs to one job until that has ended."""

import asyncio
import json

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown


def claims(server, namespace, queue="q"):
    return sorted(jid.decode() for jid in server.redis.hvals(f"{{{namespace}}}:unique:{queue}"))


# Unique keys.


def test_second_job_of_a_key_is_refused_naming_the_first(client):
    q = client.queue("q")
    assert q.put("k", 1, jid="first", unique="nightly") == "first"
    assert q.put("other", 2, jid="second", unique="nightly") == "first"
    assert client.job("second") is None
    assert (client.job("first").data, q.length()) == (1, 1)


def test_add_says_that_nothing_was_added(client):
    q = client.queue("q")
    assert q.add("k", jid="first", unique="nightly") is True
    assert q.add("k", jid="second", unique="nightly") is False
    assert client.job("second") is None


def test_unique_job_is_known_by_klass_and_data(client):
    q = client.queue("q")
    assert q.put("k", {"n": 1}, jid="a", unique=True) == "a"
    assert q.put("k", {"n": 1}, jid="b", unique=True) == "a"
    assert q.put("k", {"n": 2}, jid="c", unique=True) == "c"
    assert q.put("other", {"n": 1}, jid="d", unique=True) == "d"


def test_unique_bytes_are_compared_byte_by_byte(client):
    q = client.queue("q")
    assert [q.put("k", data, jid=f"j{i}", unique=True) for i, data in enumerate((b"\x00", b"\x00\x00", b"\x00"))] == [
        "j0", "j1", "j0",
    ]  # fmt: skip


def test_objects_are_equal_in_any_key_order(client):
    q = client.queue("q")
    assert q.put("k", {"a": 1, "b": 2}, jid="first", unique=True) == "first"
    assert q.put("k", {"b": 2, "a": 1}, jid="second", unique=True) == "first"


def test_many_are_put_each_for_itself(client):
    q = client.queue("q")
    jobs = [{"klass": "k", "data": n, "jid": f"j{i}", "unique": True} for i, n in enumerate((1, 2, 1, 3, 2))]
    assert q.put_many(jobs) == ["j0", "j1", "j0", "j3", "j1"]
    assert q.length() == 3


def test_a_key_is_of_its_queue_alone(client):
    """A claim never covers all queues."""
    assert [client.queue(name).put("k", jid=name, unique="key") for name in "ab"] == ["a", "b"]


def test_job_without_a_key_is_unaffected(client):
    q = client.queue("q")
    q.put("k", 1, jid="first", unique=True)
    assert q.put("k", 1, jid="second") == "second"


def test_a_key_is_no_content(client):
    q = client.queue("q")
    q.put("k", 1, jid="first", unique="1")
    assert q.put("k", 1, jid="second", unique=True) == "second"


def test_a_job_names_its_unique_key(client):
    q = client.queue("q")
    q.put("k", jid="key", unique="nightly")
    q.put("k", jid="content", unique=True)
    q.put("k", jid="none")
    assert [client.job(jid).unique for jid in ("key", "content", "none")] == ["nightly", True, None]


# The time for which a key is held.


def test_key_is_held_in_every_state_until_the_end(client, clock):
    q = client.queue("q")
    client.limit("shut", running=0)
    q.put("k", jid="parent")
    states = {
        "scheduled": lambda: q.put("k", jid="j", unique="key", delay=10),
        "depends": lambda: q.put("k", jid="j", unique="key", depends=["parent"]),
        "waiting": lambda: q.put("k", jid="j", unique="key", depends=[]),
        "parked": lambda: (q.put("k", jid="j", unique="key", limit="shut"), q.lease("other", 2)),
        "running": lambda: (q.put("k", jid="j", unique="key", limit=None), q.lease("w", 2)),
        "stalled": lambda: clock.tick(31),
        "failed once": lambda: next(it for it in q.lease("w", 2) if it.jid == "j").retry(delay=3),
    }
    for state, bring in states.items():
        bring()
        assert q.put("k", jid="second", unique="key") == "j", state
        if state == "stalled":
            clock.tick(30)


ENDS = {
    "complete": lambda client, lease: lease.complete(),
    "failed": lambda client, lease: lease.fail("g", "m"),
    "retried once too often": lambda client, lease: lease.retry(),
    "dead": lambda client, lease: client.settle([Died(lease, "oom", default_max_deaths=1)]),
    "cancelled": lambda client, lease: client.cancel(lease.jid),
    "failed by hand": lambda client, lease: client.job(lease.jid).fail("g", "m"),
    "cancelled by content": lambda client, lease: client.queue("q").cancel(lease.data),
    "deleted with its queue": lambda client, lease: client.queue("q").delete(running="stop"),
    "moved": lambda client, lease: client.job(lease.jid).move("elsewhere"),
    "going on elsewhere": lambda client, lease: lease.complete(next="elsewhere"),
    "put without it": lambda client, lease: client.queue("q").put("k", jid=lease.jid, unique=None),
    "put with another": lambda client, lease: client.queue("q").put("k", jid=lease.jid, unique="other"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("unique", ["key", True])
def test_key_is_free_when_its_job_has_ended(client, end, unique):
    q = client.queue("q")
    q.put("k", {"n": 1}, jid="first", unique=unique, retries=0)
    (lease,) = q.lease("w")
    ENDS[end](client, lease)
    assert q.put("k", {"n": 1}, jid="second", unique=unique) == "second"


@pytest.mark.parametrize(
    "way",
    [Retried, Released, lambda it: Died(it, "oom"), lambda it: Unknown(it, 5), lambda it: Completed(it, next="q")],
    ids=["retried", "released", "died", "unknown", "going on in its queue"],
)
def test_key_stays_held_while_the_job_goes_on(client, way):
    q = client.queue("q")
    q.put("k", jid="first", unique="key")
    client.settle([way(lease) for lease in q.lease("w")])
    assert q.put("k", jid="second", unique="key") == "first"


def test_expired_job_frees_its_key(client, clock):
    q = client.queue("q")
    q.put("k", jid="first", unique="key", expires=5)
    clock.tick(6)
    assert q.lease("w") == []
    assert q.put("k", jid="second", unique="key") == "second"


def test_job_failed_with_its_parent_frees_its_key(client):
    q = client.queue("q")
    q.put("k", jid="parent")
    q.put("k", jid="child", depends=["parent"], on_parent_failure="fail", unique="key")
    q.lease("w")[0].fail("g", "m")
    assert client.job("child").state == "failed"
    assert q.put("k", jid="second", unique="key") == "second"


def test_job_failed_by_a_lost_worker_frees_its_key(client, clock):
    q = client.queue("q")
    q.put("k", jid="first", unique="key", max_deaths=1)
    q.lease("w")
    clock.tick(36)
    client.sweep()
    assert q.put("k", jid="second", unique="key") == "second"


def test_one_batch_may_end_a_job_and_put_its_successor(client):
    q = client.queue("q")
    q.put("k", jid="first", unique="key")
    (lease,) = q.lease("w")
    assert lease.complete(then=[{"queue": "q", "klass": "k", "jid": "second", "unique": "key"}]) is True
    assert client.job("second").unique == "key"


def test_follow_up_with_a_held_key_is_skipped(client):
    q = client.queue("q")
    q.put("k", jid="holder", unique="key", delay=60)
    q.put("k", jid="ends")
    (lease,) = q.lease("w")
    assert lease.complete(then=[{"queue": "q", "klass": "k", "jid": "second", "unique": "key"}]) is True
    assert (client.job("ends").state, client.job("second")) == ("complete", None)


def test_other_jobs_cannot_free_the_key(client):
    q = client.queue("q")
    q.put("k", jid="first", unique="key")
    (lease,) = q.lease("w")
    client.job("first").move("elsewhere")
    q.put("k", jid="second", unique="key")
    assert lease.complete() is False
    client.cancel("first")
    assert q.put("k", jid="third", unique="key") == "second"


# Keys of jobs that move and come again.


def test_put_of_a_known_job_keeps_its_claim(client):
    q = client.queue("q")
    q.put("k", 1, jid="first", unique=True)
    q.put("k", 2, jid="first")
    assert q.put("k", 1, jid="second", unique=True) == "first"
    q.put("k", 2, jid="first", unique=True)
    assert q.put("k", 2, jid="second", unique=True) == "first"
    assert q.put("k", 1, jid="third", unique=True) == "third"


def test_put_of_a_known_job_to_a_held_key_changes_nothing(client):
    q = client.queue("q")
    q.put("k", 1, jid="holder", unique="key")
    q.put("k", 2, jid="known", priority=5)
    assert q.put("k", 3, jid="known", unique="key", priority=1) == "holder"
    job = client.job("known")
    assert (job.data, job.priority, job.unique) == (2, 5, None)


def test_moved_job_claims_its_key_in_the_new_queue_if_free(client):
    client.queue("q").put("k", jid="moved", unique="key")
    client.queue("q").put("k", jid="late", unique="other")
    client.queue("r").put("k", jid="holder", unique="other")
    for jid in ("moved", "late"):
        client.job(jid).move("r")
    assert client.queue("r").put("k", jid="second", unique="key") == "moved"
    assert client.job("late").unique is None
    assert client.queue("r").put("k", jid="third", unique="other") == "holder"


def test_unfailed_job_stays_failed_if_its_key_is_held(client):
    q = client.queue("q")
    q.put("k", jid="first", unique="key")
    q.lease("w")[0].fail("g", "m")
    assert client.unfail("g") == 1
    assert q.put("k", jid="second", unique="key") == "first"
    q.lease("w")[0].fail("g", "m")
    q.put("k", jid="second", unique="key")
    assert client.unfail("g") == 0
    assert client.job("first").state == "failed"
    client.cancel("second")
    assert client.job("first").unfail() is True


def test_unfailed_job_claims_its_original_key(client):
    q = client.queue("q")
    q.put("k", 1, jid="first", unique=True)
    q.lease("w")[0].fail("g", "m")
    assert client.unfail("g", data=2) == 1
    assert q.put("k", 1, jid="second", unique=True) == "first"
    assert q.put("k", 2, jid="third", unique=True) == "third"


def test_unique_recurring_job_comes_only_after_its_last_one_has_ended(client, clock):
    q = client.queue("q")
    q.recur("k", every=10, offset=0, jid="r", unique="key")
    (lease,) = q.lease("w", 5)
    for _ in range(3):
        clock.tick(10)
        assert q.lease("w", 5) == []
    lease.complete()
    clock.tick(10)
    assert len(q.lease("w", 5)) == 1


def test_entries_can_be_unique(client, server, namespace):
    entry = json.dumps({"klass": "k", "data": [1], "unique": "key"})
    server.redis.lpush(f"{{{namespace}}}:in:q", entry, entry, entry)
    q = client.queue("q")
    assert len(q.lease("w", 9)) == 1
    assert q.length() == 0


def test_persistent_job_is_unique_until_its_end(client):
    q = client.queue("q")
    q.put("k", jid="first", unique="key", persistent=True)
    client.settle([Returned(lease) for lease in q.lease("w")])
    assert q.put("k", jid="second", unique="key") == "first"
    client.cancel("first")
    assert q.put("k", jid="second", unique="key") == "second"


def test_nothing_is_left_of_claims_when_all_have_ended(client, server, namespace):
    q = client.queue("q")
    q.put_many({"klass": "k", "data": i, "unique": True if i % 2 else f"key-{i}"} for i in range(100))
    assert len(claims(server, namespace)) == 100
    leases = q.lease("w", 100)
    client.settle([Completed(lease) if i % 3 else Failed(lease, "g", "m") for i, lease in enumerate(leases)])
    assert claims(server, namespace) == []


def test_the_async_client_puts_the_same(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            q = client.queue("q")
            assert await q.put("k", jid="first", unique="key") == "first"
            assert await q.put("k", jid="second", unique="key") == "first"
            assert await q.add("k", jid="second", unique="key") is False
            assert await q.put_many([{"klass": "k", "jid": "third", "unique": "key"}]) == ["first"]

    asyncio.run(main())
