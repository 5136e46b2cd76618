"""A client has as many connections as its calls need, or as the given pool allows."""

import asyncio
import gc
import threading
import warnings

import pytest
import redis
import redis.asyncio

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import StoreUnavailable

#: redis-py 8 has 100 as the default of its pools.
MANY = 110


def hang_up(server, stream):
    """End the connection of a stream from the server's side."""
    host = stream._connection
    (ours,) = [each for each in server.redis.client_list(_type="pubsub") if each["name"] == "stream"]
    assert host is not None
    server.redis.client_kill_filter(_id=ours["id"])


def named(server):
    return server.url_with(client_name="stream")


def test_streams_leave_no_connection_behind(server, namespace):
    with Client(server.url, namespace) as client:
        for _ in range(MANY):
            with client.events() as stream:
                client.queue("q").put("k")
                assert stream.get(5).name == "job.put"
        assert client.queue("q").length() == MANY


def test_a_stream_goes_on_after_many_lost_connections(server, namespace):
    with Client(named(server), namespace) as client, client.events() as stream:
        for _ in range(MANY):
            hang_up(server, stream)
            with pytest.raises(StoreUnavailable, match="no more events"):
                stream.get(5)
            assert stream.get(0) is None
        client.queue("q").put("k")
        assert stream.get(5).name == "job.put"


def test_async_streams_leave_no_connection_behind(server, namespace):
    async def follow():
        async with AsyncClient(server.url, namespace) as client:
            for _ in range(MANY):
                async with client.events() as stream:
                    await client.queue("q").put("k")
                    assert (await stream.get(5)).name == "job.put"
            assert await client.queue("q").length() == MANY

    asyncio.run(follow())


def blocked(server):
    return sum(each["cmd"] == "blpop" and each["name"] == "stream" for each in server.redis.client_list())


def test_more_than_100_threads_wait_on_one_client(server, namespace):
    found = []
    with Client(named(server), namespace) as client:

        def lease(n):
            found.extend(client.lease(f"w{n}", ["q"], block=30))

        threads = [threading.Thread(target=lease, args=(n,)) for n in range(MANY)]
        for thread in threads:
            thread.start()
        while blocked(server) < MANY:
            assert all(thread.is_alive() for thread in threads)
        client.queue("q").put_many([{"klass": "k"}] * MANY)
        for thread in threads:
            thread.join(30)
    assert len({lease.jid for lease in found}) == MANY


def test_more_than_100_tasks_wait_on_one_client(server, namespace):
    async def lease_all():
        async with AsyncClient(named(server), namespace) as client:
            tasks = [asyncio.create_task(client.lease(f"w{n}", ["q"], block=30)) for n in range(MANY)]
            while await asyncio.to_thread(blocked, server) < MANY:
                assert not [task.exception() for task in tasks if task.done()]
            await client.queue("q").put_many([{"klass": "k"}] * MANY)
            return [lease.jid for leases in await asyncio.gather(*tasks) for lease in leases]

    assert len(set(asyncio.run(lease_all()))) == MANY


def test_the_limit_of_a_given_pool_holds_and_is_named(server, namespace):
    with (
        redis.Redis.from_url(server.url_of_one, max_connections=1) as given,
        Client(namespace=namespace, redis=given) as client,
    ):
        held = client._store.first._connect()
        with pytest.raises(StoreUnavailable, match="max_connections"):
            client.queue("q").put("k")
        client._store.first._give_back(held)
        client.queue("q").put("k")
        assert client.queue("q").length() == 1


def test_a_given_pool_that_blocks_makes_calls_wait(server, namespace):
    pool = redis.BlockingConnectionPool.from_url(server.url_of_one, max_connections=1, timeout=30)
    with redis.Redis(connection_pool=pool) as given, Client(namespace=namespace, redis=given) as client:
        held = client._store.first._connect()
        putting = threading.Thread(target=client.queue("q").put, args=("k",))
        putting.start()
        client._store.first._give_back(held)
        putting.join(30)
        assert client.queue("q").length() == 1


def test_the_limit_of_a_given_pool_holds_for_an_async_client(server, namespace):
    async def lease():
        given = redis.asyncio.Redis.from_url(server.url_of_one, max_connections=1)
        async with given, AsyncClient(namespace=namespace, redis=given) as client:
            async with client._store.first._connection():
                with pytest.raises(StoreUnavailable, match="max_connections"):
                    await client.lease("w", ["q"], block=30)
            return await client.lease("w", ["q"], block=0.1)

    assert asyncio.run(lease()) == []


def test_calls_of_two_loops_at_once_keep_their_connections(server, namespace):
    client = AsyncClient(named(server), namespace)
    found = []

    def lease():
        found.extend(asyncio.run(client.lease("w", ["q"], block=30)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # each loop leaves its connections
        thread = threading.Thread(target=lease)
        thread.start()
        while not blocked(server):
            assert thread.is_alive()
        assert asyncio.run(client.lease("w", ["empty"], block=0.01)) == []
        with Client(server.url, namespace) as other:
            other.queue("q").put("k", jid="a")
        thread.join(30)
        asyncio.run(client.close())
        gc.collect()
    assert [lease.jid for lease in found] == ["a"]
