"""Calls of an AsyncClient that are under way together share one connection, and each gets its own answer or error."""

import asyncio
import gc
import socket
import subprocess
import sys
import warnings
from contextlib import asynccontextmanager, suppress

import pytest
import redis.asyncio
import redis.asyncio.sentinel
from redis.credentials import UsernamePasswordCredentialProvider

from supervisor.engine.client import async_store
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.shared_line import can_share
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable


class Proxy:
    """Between client and server, on the loop of the test: it can hold the answers back, say something, or hang up."""

    def __init__(self, upstream):
        self.evalshas = 0  # that have been passed on
        self.connections = 0
        self._upstream = upstream
        self._answers = asyncio.Event()
        self._answers.set()
        self._moved = asyncio.Condition()
        self._nears = []

    async def serve(self, reader, writer):
        self.connections += 1
        self._nears.append(writer)
        with suppress(OSError):  # either end may hang up first
            far_reader, far_writer = await asyncio.open_unix_connection(self._upstream)
            await asyncio.gather(self._up(reader, far_writer), self._down(far_reader, writer))

    async def _up(self, reader, far_writer):
        try:
            while data := await reader.read(65536):
                far_writer.write(data)
                async with self._moved:
                    self.evalshas += data.count(b"EVALSHA")
                    self._moved.notify_all()
        finally:
            far_writer.close()

    async def _down(self, far_reader, writer):
        try:
            while data := await far_reader.read(65536):
                await self._answers.wait()
                writer.write(data)
        finally:
            writer.close()

    async def until_passed_on(self, evalshas):
        async with self._moved:
            await self._moved.wait_for(lambda: self.evalshas >= evalshas)

    def hold(self):
        self._answers.clear()

    def release(self):
        self._answers.set()

    def say(self, words):
        for near in self._nears:
            near.write(words)

    def hang_up(self):
        for near in self._nears:
            near.transport.abort()
        self._nears.clear()
        self.release()


@asynccontextmanager
async def through_a_proxy(server, namespace, directory, options=""):
    """A client that has called once, so that it is connected and its script is loaded, the proxy, and a queue."""
    proxy = Proxy(str(server.socket))
    path = f"{directory}/p"
    listener = await asyncio.start_unix_server(proxy.serve, path)
    async with AsyncClient(f"unix://{path}{options}", namespace) as client:
        queue = client.queue("q")
        await queue.put("k", jid="first")
        await queue.counts()
        yield client, proxy, queue
    listener.close()


def connections_of(server, namespace):
    return [c["id"] for c in server.redis.client_list() if c["name"] == namespace]


def named(server, namespace, more=""):
    return AsyncClient(f"{server.url_with(client_name=namespace)}{more}", namespace)


async def errors_of(tasks):
    return [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)]


def test_concurrent_calls_share_a_connection_and_get_their_own_replies(server, namespace):
    async def main():
        async with named(server, namespace) as client:
            queue = client.queue("q")
            jids = await asyncio.gather(*(queue.put("k", n, jid=f"j{n}") for n in range(400)))
            found = await asyncio.gather(*map(client.job, jids))
            assert [job.data for job in found] == list(range(400))
            assert len(connections_of(server, namespace)) == 1

    asyncio.run(main())


def test_calls_of_one_turn_of_the_loop_are_written_at_once(server, namespace, monkeypatch):
    writes = []

    def counted(call):
        def count(*given):
            writes.append(given)
            return call(*given)

        return count

    async def main():
        async with AsyncClient(server.url, namespace) as client:
            queue = client.queue("q")
            await queue.put("k")
            with monkeypatch.context() as patched:
                for name in ("send", "sendmsg"):
                    patched.setattr(socket.socket, name, counted(getattr(socket.socket, name)), raising=False)
                await asyncio.gather(*(queue.put("k") for _ in range(100)))
            assert len(writes) == 1

    asyncio.run(main())


def test_a_call_is_written_while_others_wait_for_their_answers(server, namespace, tmp_path):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (_, proxy, queue):
            sent = proxy.evalshas
            proxy.hold()
            a = asyncio.create_task(queue.put("k", jid="a"))
            await proxy.until_passed_on(sent + 1)
            b = asyncio.create_task(queue.put("k", jid="b"))
            await proxy.until_passed_on(sent + 2)
            assert not a.done()
            proxy.release()
            assert (await a, await b, proxy.connections) == ("a", "b", 1)

    asyncio.run(main())


def test_reply_of_a_cancelled_call_goes_to_no_other(server, namespace, tmp_path):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (client, proxy, queue):
            sent = proxy.evalshas
            proxy.hold()
            a, b, c = (asyncio.create_task(queue.put("k", jid=jid)) for jid in "abc")
            await proxy.until_passed_on(sent + 3)
            b.cancel()
            d = asyncio.create_task(queue.put("k", jid="d"))
            await proxy.until_passed_on(sent + 4)
            proxy.release()
            assert (await a, await c, await d) == ("a", "c", "d")
            assert b.cancelled()
            assert (await client.job("b")).jid == "b"  # it was sent
            assert proxy.connections == 1

    asyncio.run(main())


def test_call_cancelled_before_writing_is_never_sent(server, namespace, tmp_path):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (_, proxy, queue):
            sent = proxy.evalshas
            task = asyncio.create_task(queue.put("k", jid="a"))
            await asyncio.sleep(0)  # it has run up to its answer
            task.cancel()
            assert await queue.length() == 1  # the first one
            assert (task.cancelled(), proxy.evalshas) == (True, sent + 1)

    asyncio.run(main())


def test_lost_link_fails_current_calls_and_the_next_reconnects(server, namespace, tmp_path):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (client, proxy, queue):
            sent = proxy.evalshas
            proxy.hold()
            tasks = [
                asyncio.create_task(call)
                for call in (queue.put("k", jid="a"), queue.counts(), queue.put("k", jid="b"))
            ]  # fmt: skip
            await proxy.until_passed_on(sent + 3)
            proxy.hang_up()
            assert await errors_of(tasks) == [OutcomeUnknown, StoreUnavailable, OutcomeUnknown]
            assert [job.jid for job in await client.jobs("first", "a", "b")] == ["first", "a", "b"]
            assert proxy.connections == 2
            assert await queue.length() == 3  # nothing was sent a second time

    asyncio.run(main())


def test_unwritten_calls_of_a_broken_link_are_not_sent(server, namespace):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            queue = client.queue("q")
            await queue.put("k", jid="a")
            task = asyncio.create_task(queue.put("k", jid="b"))
            await asyncio.sleep(0)  # it has run up to its answer
            # As where reading fails: the line hears of it after it has written.
            client._store.first._line._transport.abort()
            assert await errors_of([task]) == [StoreUnavailable]
            async with asyncio.timeout(5):  # not that of the socket
                assert await queue.put("k", jid="c") == "c"

    asyncio.run(main())


async def time_passes(monkeypatch, seconds):
    """Advance the clock of the running loop, and let it do what is due then."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + seconds)
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_server_that_does_not_answer_in_time_is_a_lost_link(server, namespace, tmp_path, monkeypatch):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (_, proxy, queue):
            sent = proxy.evalshas
            proxy.hold()
            task = asyncio.create_task(queue.put("k"))
            await proxy.until_passed_on(sent + 1)
            await time_passes(monkeypatch, 5)
            assert not task.done()
            await time_passes(monkeypatch, 6)
            with pytest.raises(OutcomeUnknown, match=r"did not answer put: Timeout reading from socket\. The outcome"):
                await task
            proxy.release()
            assert await queue.length() == 2

    asyncio.run(main())


def test_waiting_call_lives_while_replies_arrive(server, namespace, tmp_path, monkeypatch):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (_, proxy, queue):
            for jid in "abcd":
                sent = proxy.evalshas
                proxy.hold()
                task = asyncio.create_task(queue.put("k", jid=jid))
                await proxy.until_passed_on(sent + 1)
                await time_passes(monkeypatch, 6)
                proxy.release()
                assert await task == jid
            assert proxy.connections == 1

    asyncio.run(main())


@pytest.mark.parametrize("words", [b"+unasked\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_connection_on_which_something_comes_that_is_no_answer_is_given_up(server, namespace, tmp_path, words):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path) as (_, proxy, queue):
            proxy.say(words)
            while True:  # it may be on its way
                with suppress(OutcomeUnknown, StoreUnavailable):
                    assert await queue.put("k", jid="a") == "a"
                if proxy.connections == 2:
                    break
            assert await queue.put("k", jid="b") == "b"

    asyncio.run(main())


def test_connection_closed_by_the_server_is_remade_without_loss(server, namespace):
    async def main():
        async with named(server, namespace) as client:
            queue = client.queue("q")
            await queue.put("k", jid="a")
            for number in connections_of(server, namespace):
                server.redis.client_kill_filter(_id=number)
            assert await queue.put("k", jid="b") == "b"
            assert [job.jid for job in await client.jobs("a", "b")] == ["a", "b"]

    asyncio.run(main())


def test_forgotten_script_is_loaded_once_for_all_callers(server, namespace):
    def loads():
        return server.redis.info("commandstats").get("cmdstat_script|load", {}).get("calls", 0)

    async def main():
        async with AsyncClient(server.url, namespace) as client:
            queue = client.queue("q")
            await queue.put("k", jid="first")
            server.redis.script_flush()
            before = loads()
            tasks = [asyncio.create_task(queue.put("k", jid=f"j{n}")) for n in range(50)]
            await asyncio.sleep(0)
            tasks[0].cancel()  # the call that was to load it
            jids = await asyncio.gather(*tasks[1:])
            assert jids == [f"j{n}" for n in range(1, 50)]
            assert loads() == before + 1
            assert await queue.length() == 50

    asyncio.run(main())


def test_all_who_wait_for_a_connection_that_cannot_be_had_hear_so(namespace):
    async def main():
        async with AsyncClient("redis://127.0.0.1:1/0", namespace) as client:
            queue = client.queue("q")
            for _ in range(2):
                tasks = [asyncio.create_task(queue.put("k")) for _ in range(5)]
                assert await errors_of(tasks) == [StoreUnavailable] * 5

    asyncio.run(main())


def test_call_cancelled_during_connecting_leaves_the_connection(server, namespace):
    async def main():
        async with named(server, namespace) as client:
            queue = client.queue("q")
            tasks = [asyncio.create_task(queue.put("k", jid=jid)) for jid in "abc"]
            await asyncio.sleep(0)
            tasks[0].cancel()
            assert await asyncio.gather(*tasks[1:]) == ["b", "c"]
            assert await client.job("a") is None
            assert len(connections_of(server, namespace)) == 1

    asyncio.run(main())


def test_closing_a_client_fails_its_calls_and_leaves_nothing_open(server, namespace, tmp_path):
    async def main():
        async with through_a_proxy(server, namespace, tmp_path, f"?client_name={namespace}") as (client, proxy, queue):
            sent = proxy.evalshas
            proxy.hold()
            task = asyncio.create_task(queue.put("k"))
            await proxy.until_passed_on(sent + 1)
            await client.close()
            with pytest.raises(OutcomeUnknown, match="the client was closed"):
                await task
            proxy.release()
            connecting = asyncio.create_task(queue.put("k", jid="again"))
            await asyncio.sleep(0)
            await client.close()
            with suppress(LeaseholdError):
                await connecting
            while connections_of(server, namespace):
                await asyncio.sleep(0)  # the proxy passes on that it was closed

    asyncio.run(main())


def test_unclosed_client_leaves_nothing_open(server, namespace):
    async def main():
        client = named(server, namespace)
        await client.queue("q").put("k")
        with pytest.warns(ResourceWarning, match="unclosed AsyncClient"):
            del client
            gc.collect()
        await asyncio.sleep(0)  # until what was aborted is closed
        while connections_of(server, namespace):
            pass

    asyncio.run(main())


def test_a_client_that_was_closed_connects_again_on_another_loop(server, namespace):
    client = AsyncClient(server.url, namespace)
    for jid in "ab":

        async def main(jid=jid):
            async with client:
                assert await client.queue("q").put("k", jid=jid) == jid

        asyncio.run(main())


def test_a_client_that_was_left_with_its_loop_connects_again_on_another_one(server, namespace):
    program = """
import asyncio, sys
from supervisor import AsyncClient
client = AsyncClient(sys.argv[1], sys.argv[2])
q = client.queue("q")
print(*(asyncio.run(q.put("k", jid=jid)) for jid in "abc"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, server.url, namespace], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("a b c\n", "")


def test_client_with_pooled_connections_serves_one_loop_after_another(server, namespace, monkeypatch):
    monkeypatch.setattr(async_store, "MOST_BYTES", 10_000)

    async def put(client, jid):
        assert await client.queue("q").put("k", b"x" * 20_000, jid=jid) == jid
        assert await client.queue("empty").lease("w", block=0.01) == []

    client = named(server, namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # each loop leaves its connections
        for jid in "abc":
            asyncio.run(put(client, jid))
            gc.collect()
        asyncio.run(client.close())
        del client
        gc.collect()
    while connections_of(server, namespace):
        pass


def test_large_call_has_a_connection_of_its_own(server, namespace, monkeypatch):
    monkeypatch.setattr(async_store, "MOST_BYTES", 10_000)

    async def main():
        async with named(server, namespace) as client:
            queue = client.queue("q")
            await queue.put("k", b"x")
            assert len(connections_of(server, namespace)) == 1
            await asyncio.gather(*(queue.put("k", b"x" * 20_000) for _ in range(3)))
            assert len(connections_of(server, namespace)) == 4
            assert await queue.length() == 4

    asyncio.run(main())


def test_connections_that_redis_py_tries_out_between_calls_are_not_shared(server, namespace):
    async def main():
        async with named(server, namespace, "&health_check_interval=5") as client:
            await calls_are_apart(client, server, namespace)

    asyncio.run(main())


def test_connections_whose_credentials_may_be_renewed_are_not_shared(server, namespace):
    async def main():
        given = redis.asyncio.Redis(
            unix_socket_path=str(server.socket),
            client_name=namespace,
            credential_provider=UsernamePasswordCredentialProvider("default", "any"),
        )
        async with given, AsyncClient(namespace=namespace, redis=given) as client:
            await calls_are_apart(client, server, namespace)

    asyncio.run(main())


def test_sentinel_connections_are_not_shared(namespace):
    sentinel = redis.asyncio.sentinel.Sentinel([("127.0.0.1", 1)])
    assert not can_share(AsyncClient(namespace=namespace, redis=sentinel.master_for("name"))._store.first._pool)


async def calls_are_apart(client, server, namespace):
    queue = client.queue("q")
    server.redis.script_flush()
    assert await asyncio.gather(*(queue.put("k", jid=jid) for jid in "abc")) == ["a", "b", "c"]
    assert len(connections_of(server, namespace)) == 3


def test_the_shared_connection_logs_in_as_the_url_says(server, namespace):
    async def main():
        async with AsyncClient(f"unix://app:p%40ss@{server.socket}?db=3&client_name={namespace}", namespace) as client:
            await client.queue("q").counts()
            (ours,) = (each for each in server.redis.client_list() if each["name"] == namespace)
            assert (ours["user"], ours["db"]) == ("app", "3")

    server.redis.acl_setuser("app", enabled=True, passwords=["+p@ss"], categories=["+@all"], keys=["*"])
    try:
        asyncio.run(main())
    finally:
        server.redis.acl_deluser("app")


def test_a_connection_by_tls_is_shared_too(server, namespace, certificate):
    async def main():
        proxy = Proxy(str(server.socket))
        listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=certificate.context)
        port = listener.sockets[0].getsockname()[1]
        async with AsyncClient(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate.path}", namespace) as client:
            queue = client.queue("q")
            data = [b"x" * 100_000 + str(n).encode() for n in range(20)]
            await asyncio.gather(*(queue.put("k", each, jid=f"j{n}") for n, each in enumerate(data)))
            found = await asyncio.gather(*(client.job(f"j{n}") for n in range(20)))
            assert [job.data for job in found] == data
            assert proxy.connections == 1
            proxy.hold()
            waiting = asyncio.create_task(queue.counts())
            await proxy.until_passed_on(proxy.evalshas + 1)
            proxy.hang_up()
            with pytest.raises(StoreUnavailable):
                await waiting
            assert await queue.length() == 20
        listener.close()

    asyncio.run(main())
