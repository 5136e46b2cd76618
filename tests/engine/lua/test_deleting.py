"""Deletion of queues and lanes, and cancellation by content."""

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import deleting
from supervisor.engine.commands.deleting import Deleted
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.outcomes import Completed, Released, Retried


def push(server, namespace, queue, *entries):
    """Push an entry, as another program does."""
    server.redis.lpush(f"{{{namespace}}}:in:{queue}", *entries)


def everywhere(client, server, namespace, **options):
    """Put equal data into every place of queue q; return the lease of the running job."""
    q = client.queue("q")
    client.limit("used-up", running=0)
    for jid in ("complete", "failed", "running", "front"):
        q.put("k", {"n": 1}, jid=jid, **options)
    leases = {lease.jid: lease for lease in q.lease("w", 4)}
    leases["complete"].complete()
    leases["failed"].fail("g", "m")
    q.put("k", {"n": 1}, jid="parked", limit="used-up", **options)
    assert q.lease("w") == []
    client.settle([Released(leases["front"])])
    q.put("k", {"n": 1}, jid="waiting", **options)
    q.put("k", {"n": 1}, jid="laned", **{"lane": "another", **options})
    q.put("k", {"n": 1}, jid="scheduled", delay=60, **options)
    q.put("k", {"n": 1}, jid="depends", depends=["waiting"], on_parent_failure="run", **options)
    q.recur("k", {"n": 1}, jid="recurring", every=60, offset=60)
    push(server, namespace, "q", json.dumps({"klass": "k", "data": {"n": 1}, "jid": "pushed", **options}))
    return leases["running"]


def test_delete_drops_what_does_not_run_and_lets_the_rest_end(client, server, namespace):
    running = everywhere(client, server, namespace)
    q = client.queue("q")
    assert q.delete() == Deleted(dropped=8, running=1)
    assert (q.counts().total, q.counts().running) == (1, 1)
    assert running.complete() is True
    assert [client.job(jid).state for jid in ("complete", "failed", "running")] == ["complete", "failed", "complete"]
    assert client.recurring("recurring") is None
    assert list(client.queues()) == ["q"]
    assert q.delete() == Deleted(dropped=0, running=0)
    assert client.queues() == {}


def test_a_deleted_queue_stops_what_runs_if_asked_to(client, server, namespace):
    running = everywhere(client, server, namespace)
    assert client.queue("q").delete("stop") == Deleted(dropped=8, running=1)
    assert client.job("running") is None
    assert running.complete() is False
    with pytest.raises(LeaseLost):
        running.renew()
    assert client.queues() == {}
    assert client.job("complete").state == "complete"


def test_a_deleted_queue_comes_back_with_its_next_job(client):
    q = client.queue("q")
    q.put("k")
    q.delete()
    q.put("k", jid="anew")
    assert [lease.jid for lease in q.lease("w", 2)] == ["anew"]


def test_an_unknown_queue_has_nothing_to_delete(client, server, namespace):
    assert client.queue("q").delete() == Deleted(0, 0)
    assert server.dump(namespace) == {}


def test_more_jobs_than_one_call_takes_are_all_deleted(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "lane": f"lane-{i % 3}" if i % 2 else None} for i in range(5 * deleting.SLICE))
    q.put_many({"klass": "k", "delay": 60} for _ in range(2 * deleting.SLICE + 1))
    assert q.delete() == Deleted(7 * deleting.SLICE + 1, 0)
    assert client.queues() == {}


def test_jobs_that_wait_for_one_another_are_deleted_together(client):
    q = client.queue("q")
    q.put("k", jid="0")
    for i in range(1, 9):
        q.put("k", jid=str(i), depends=[str(i - 1)])
    assert q.delete() == Deleted(9, 0)
    assert client.queues() == {}


@pytest.mark.sampled(2)
def test_queue_in_use_is_emptied_and_stays_consistent(live, server, namespace):
    stop, q = threading.Event(), live.queue("q")
    live.limit("narrow", running=2)
    q.put_many({"klass": "k"} for _ in range(1000))

    def fill(client):
        options = itertools.cycle([{}, {"lane": "l"}, {"limit": "narrow"}, {"delay": 60}, {"unique": True}])
        client.queue("q").put_many({"klass": "k", "data": 1, **next(options)} for _ in range(50))
        server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k", "data": 1}')

    def work(client):
        leases = client.queue("q").lease("w", 20)
        ways = itertools.cycle([Completed, Released, Retried])
        client.settle([way(lease) for way, lease in zip(ways, leases, strict=False)])

    def repeat(what):
        with Client(server.url, namespace) as client:
            while not stop.is_set():
                what(client)

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(repeat, what) for what in (fill, work)]
        try:
            assert q.delete().dropped > 500
            assert q.lane("l").delete("stop").dropped >= 0
            assert len(q.cancel(1)) > 0
            q.delete("stop")
        finally:
            stop.set()
        assert [other.result(30) for other in others] == [None, None]
    q.delete("stop")
    assert q.counts().total == 0
    assert live.limit("narrow").in_use == 0
    assert live.check() == []


def test_a_deleted_lane_leaves_the_others_alone(client, server, namespace):
    running = everywhere(client, server, namespace, lane="l")
    q = client.queue("q")
    q.put("k", jid="other", lane="other")
    q.put("k", jid="none")
    assert q.lane("l").delete() == Deleted(dropped=7, running=1)
    left = {jid: client.job(jid) is not None for jid in ("other", "none", "running", "waiting", "laned", "parked")}
    assert left == {"other": True, "none": True, "running": True, "waiting": False, "laned": False, "parked": False}
    assert client.recurring("recurring") is not None
    assert (q.lane("l").length(), q.length()) == (0, 2)
    assert running.complete() is True


def test_a_deleted_lane_stops_its_own_if_asked_to(client):
    q = client.queue("q")
    q.put("k", jid="mine", lane="l")
    q.put("k", jid="other", lane="other")
    mine, other = sorted(q.lease("w", 2), key=lambda lease: lease.jid)
    q.put("k", jid="more", lane="l")
    assert q.lane("l").delete("stop") == Deleted(dropped=1, running=1)
    assert (mine.complete(), other.complete()) == (False, True)


# Cancelling by content.


def test_jobs_are_cancelled_by_their_data_in_each_state(client, server, namespace):
    running = everywhere(client, server, namespace)
    client.queue("q").put("k", {"n": 2}, jid="different")
    client.queue("elsewhere").put("k", {"n": 1}, jid="elsewhere")
    cancelled = client.queue("q").cancel({"n": 1})
    gone = {"running", "front", "parked", "waiting", "laned", "scheduled", "depends", "pushed"}
    assert (set(cancelled), len(cancelled)) == (gone, len(gone))
    assert [job for job in client.jobs(*gone) if job] == []
    assert running.complete() is False
    left = client.jobs("complete", "failed", "different", "elsewhere")
    assert [job.state for job in left] == ["complete", "failed", "waiting", "waiting"]
    assert client.recurring("recurring") is not None


@pytest.mark.parametrize(
    ("data", "others"),
    [
        (None, [False, 0, "", [], {}, b"", b"null"]),
        (1, [True, 1.0, "1", b"1"]),
        ("", [b"", None]),
        (b"", ["", None, b"\0"]),
        (b"\xff\0\xfe", [b"\xff", "\xff\0\xfe"]),
        ({"a": [1, {"b": 2}]}, [{"a": [1, {"b": 3}]}, {"a": [1]}]),
        ("ü", [b"\xc3\xbc", "u"]),
    ],
    ids=repr,
)
def test_only_equal_data_is_cancelled(client, data, others):
    q = client.queue("q")
    q.put("k", data, jid="mine")
    q.put_many({"klass": "k", "data": other, "jid": f"other-{i}"} for i, other in enumerate(others))
    assert q.cancel(data) == ["mine"]
    assert q.length() == len(others)
    assert q.cancel(data) == []


def test_object_is_equal_in_any_key_order(client):
    q = client.queue("q")
    q.put("k", {"a": 1, "b": [{"c": 2, "d": 3}]}, jid="same")
    q.put("k", {"a": 3, "b": [{"c": 2, "d": 1}]}, jid="other of the same size")
    assert q.cancel({"b": [{"d": 3, "c": 2}], "a": 1}) == ["same"]


def test_entries_are_compared_by_value(client, server, namespace):
    entries = (
        '{"jid": "equal", "klass":"k", "data" : {"b": [2],  "a":1}}',
        '{"jid": "large", "klass":"k", "data" : {"b": [2],  "a": 9007199254740993}}',
        '{"jid": "bytes", "klass":"k", "data_b64": "eyJhIjoxfQ=="}',
        '{"jid": "none", "klass":"k"}',
    )
    push(server, namespace, "q", *entries)
    q = client.queue("q")
    assert q.cancel({"a": 1, "b": [2]}) == ["equal"]
    assert q.cancel(b'{"a":1}') == ["bytes"]
    assert q.cancel({"a": 9007199254740993, "b": [2]}) == ["large"]
    assert q.cancel(None) == ["none"]


def test_large_entries_are_all_decoded(client, server, namespace):
    large = json.dumps({"klass": "k", "data": "x" * 300_000})
    push(server, namespace, "q", *[large] * 30, '{"jid": "a", "klass": "k", "data": 1}')
    assert client.queue("q").cancel(1) == ["a"]
    assert len(client.queue("q").cancel("x" * 300_000)) == 30


def test_entry_with_a_lane_is_deleted_with_that_lane(client, server, namespace):
    push(server, namespace, "q", '{"jid": "a", "klass": "k", "lane": "new", "data": 1}')
    assert client.queue("q").cancel(1) == ["a"]
    push(server, namespace, "q", '{"jid": "b", "klass": "k", "lane": "new"}', '{"jid": "c", "klass": "k"}')
    assert client.queue("q").lane("new").delete() == Deleted(1, 0)
    assert [job is not None for job in client.jobs("b", "c")] == [False, True]


def test_more_than_one_call_takes_are_all_cancelled(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "data": i % 2} for i in range(4 * deleting.SLICE))
    assert len(q.cancel(1)) == 2 * deleting.SLICE
    assert q.length() == 2 * deleting.SLICE


def test_the_async_client_deletes_and_cancels_the_same(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            q = client.queue("q")
            await q.put_many([{"klass": "k", "data": i, "jid": str(i)} for i in range(5)])
            assert await q.cancel(3) == ["3"]
            await q.lane("l").put("k", jid="laned")
            assert await q.lane("l").delete() == Deleted(1, 0)
            await q.lease("w")
            assert await q.delete("stop") == Deleted(3, 1)
            assert await client.queues() == {}

    asyncio.run(main())
