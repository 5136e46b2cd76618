"""Settings and queries of limits; test_limits.py has their effect on jobs."""

import asyncio

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import limits
from supervisor.engine.commands.limits import Limit, LimitHolder, LimitJobs, ParkedJob, checked_rate


@pytest.mark.parametrize(
    ("text", "starts", "per_ms", "shown"),
    [
        ("10/s", 10, 1000, "10/s"),
        ("100/m", 100, 60_000, "100/m"),
        ("5/h", 5, 3_600_000, "5/h"),
        ("1000/d", 1000, 86_400_000, "1000/d"),
        ("3/10s", 3, 10_000, "3/10s"),
        ("1/ms", 1, 1, "1/ms"),
        ("7/250ms", 7, 250, "7/250ms"),
        ("7/1500ms", 7, 1500, "7/1500ms"),
        ("10/1s", 10, 1000, "10/s"),
        ("10/60s", 10, 60_000, "10/m"),
        ("10/90m", 10, 5_400_000, "10/90m"),
        ("10000/30d", 10_000, 2_592_000_000, "10000/30d"),
        ("1/24h", 1, 86_400_000, "1/d"),
    ],
)
def test_a_rate_is_starts_per_time(client, text, starts, per_ms, shown):
    assert checked_rate(text) == (starts, per_ms)
    assert client.limit("k", rate=text).rate == shown
    assert client.limit("k").rate == shown


def test_a_limit_keeps_what_is_not_given(client):
    assert client.limit("k") == Limit("k", None, None, 0, 0)
    assert client.limits() == {}
    assert client.limit("k", running=5) == Limit("k", 5, None, 0, 0)
    assert client.limit("k", rate="10/s") == Limit("k", 5, "10/s", 0, 0)
    assert client.limit("k", running=0) == Limit("k", 0, "10/s", 0, 0)
    assert client.limit("k") == Limit("k", 0, "10/s", 0, 0)


def test_limit_has_the_actor_and_time_of_its_last_setting(client, clock):
    assert client.limit("k", running=5, by="kim@web-1").set_by == "kim@web-1"
    clock.tick(60)
    client.limit("k", rate="10/s", by="robin@web-2")
    limit = client.limits()["k"]
    assert (limit.set_by, limit.set_unix) == ("robin@web-2", clock.now)
    client.limit("k", running=6)
    assert (client.limit("k").set_by, client.limit("k").set_unix) == (None, clock.now)
    client.unlimit("k")
    assert (client.limit("k").set_by, client.limit("k").set_unix) == (None, None)
    assert client.check() == []


def test_limits_are_listed_in_the_order_of_their_first_setting(client, clock):
    for key in ("z", "a", "m"):
        client.limit(key, running=1)
        clock.tick(1)
    client.limit("z", running=2)
    assert list(client.limits()) == ["z", "a", "m"]
    assert client.limits()["z"].running == 2


def test_more_limits_than_one_page_has_are_all_listed(client):
    for i in range(1003):
        client.limit(f"k-{i}", running=i)
    assert len(client.limits()) == 1003


def test_limit_shows_its_running_and_parked_jobs(client):
    q = client.queue("q")
    client.limit("k", running=2)
    q.put_many({"klass": "k", "limit": "k", "jid": jid} for jid in "abcde")
    assert len(q.lease("w", 5)) == 2
    assert client.limit("k") == Limit("k", 2, None, 2, 3)
    counts = q.counts()
    assert (counts.waiting, counts.running, counts.parked, q.length()) == (0, 2, 3, 0)
    assert [(job.jid, job.state, job.parked) for job in q.jobs("parked")] == [(j, "waiting", True) for j in "cde"]


def test_query_of_limits_with_many_lanes_ends_early(client):
    names = ["a", "b", "c"]
    for name in names:
        client.limit(name, running=0)
    q = client.queue("q")
    q.put_many({"klass": "k", "limit": name, "lane": f"{name}{n}"} for name in names for n in range(1_500))
    while q.counts().waiting:
        assert q.lease("w", 1_000) == []
    pages = [calls_of(client).run(limits.read(None, offset)) for offset in (0, 2, 3)]
    assert [list(page) for page in pages] == [["a", "b"], ["c"], []]
    assert {name: limit.parked for name, limit in client.limits().items()} == dict.fromkeys(names, 1_500)


def test_limit_counts_parked_jobs_in_a_bounded_number_of_queues(client, server, namespace):
    client.limit("L", running=0)
    prefix, queues = f"{{{namespace}}}:limited:L", range(5_001)
    with server.redis.pipeline(transaction=False) as batch:
        batch.zadd(prefix, {f"q{n:04}": 0 for n in queues})
        for n in queues:
            batch.zadd(f"{prefix}\nq{n:04}", {"": 0})
            batch.zadd(f"{prefix}\nq{n:04}\n", {"0000000000000j": 0})
        batch.execute()
    assert client.limits()["L"].parked == 5_000
    server.redis.delete(prefix, *(f"{prefix}\nq{n:04}{line}" for n in queues for line in ("", "\n")))


def test_a_limit_is_lifted_once(client):
    client.limit("k", running=0)
    client.queue("q").put("k", jid="a", limit="k")
    assert client.queue("q").lease("w") == []
    assert client.unlimit("k") is True
    assert client.unlimit("k") is False
    assert client.limits() == {}
    assert [lease.jid for lease in client.queue("q").lease("w")] == ["a"]


def test_holders_and_parked_jobs_of_a_limit_are_named(client, clock):
    client.limit("k", running=2)
    for queue, jid, lane in (("q", "a", None), ("q", "b", "l"), ("q", "c", "l"), ("r", "d", None)):
        client.queue(queue).put("k", jid=jid, lane=lane, limit="k")
    client.queue("q").put("k", jid="free")
    first = client.queue("q").lease("w-1", 1)[0]
    clock.tick(1)
    client.queue("q").lease("w-2", 9)
    clock.tick(1)
    client.queue("r").lease("w-2", 9)
    holders = [LimitHolder("a", "q", "w-1"), LimitHolder("b", "q", "w-2")]
    parked = [ParkedJob("c", "q", "l"), ParkedJob("d", "r", None)]
    assert client.limit_jobs("k") == LimitJobs(holders, parked)
    assert client.limit_jobs("another") == LimitJobs([], [])
    first.complete()
    client.queue("q").lease("w-3", 9)
    assert client.limit_jobs("k") == LimitJobs([holders[1], LimitHolder("c", "q", "w-3")], parked[1:])


def test_pages_of_a_limit_join_over_queues_and_lanes(client, clock):
    client.limit("k", running=0)
    for queue in "qr":
        jobs = [{"klass": "k", "jid": f"{queue}-{n}", "lane": f"l{n % 3}", "limit": "k"} for n in range(7)]
        client.queue(queue).put_many(jobs)
        client.queue(queue).lease("w", 9)
        clock.tick(1)
    whole = client.limit_jobs("k", count=1000).parked
    assert [job.queue for job in whole] == ["q"] * 7 + ["r"] * 7
    assert len({job.jid for job in whole}) == 14
    for size in (1, 2, 5, 13, 14):
        pages = [client.limit_jobs("k", offset, size).parked for offset in range(0, 15, size)]
        assert [job for page in pages for job in page] == whole
    assert client.limit_jobs("k", count=0) == client.limit_jobs("k", 14) == LimitJobs([], [])


def test_pages_of_holders_join(client):
    client.queue("q").put_many({"klass": "k", "jid": jid, "limit": "k"} for jid in "abcde")
    client.queue("q").lease("w", 5)
    pages = [client.limit_jobs("k", offset, 2).holders for offset in range(0, 6, 2)]
    assert [[job.jid for job in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]


def test_the_async_client_sets_the_same(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            assert await client.limit("k", 1, "5/m") == Limit("k", 1, "5/m", 0, 0)
            assert list(await client.limits()) == ["k"]
            assert await client.limit_jobs("k") == LimitJobs([], [])
            assert await client.unlimit("k") is True
            lane = client.queue("q").lane("l")
            await lane.weight(3)
            await lane.pause()
            assert await lane.add("k", jid="a") is True
            assert await lane.put_many([{"klass": "k", "jid": "b"}]) == ["b"]
            counts = await lane.counts()
            assert (counts.waiting, counts.weight, counts.paused, await lane.length()) == (2, 3, True, 2)
            await lane.unpause()
            assert [lease.lane for lease in await client.queue("q").lease("w", 5)] == ["l", "l"]

    asyncio.run(main())
