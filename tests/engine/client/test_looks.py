"""Calls that wait, at a server that lets no command wait: they look at an interval."""

import asyncio
import threading
import time

import pytest

from supervisor import AsyncClient, Client, JobNotFound, StoreUnavailable
from tests.engine.played import PlayedWorker
from tests.lengths import PATIENCE
from tests.refusing import Refusing

INTERVAL_S = 0.1


@pytest.fixture
def proxy(server, tmp_path):
    proxy = Refusing(tmp_path / "proxy", server.socket)
    yield proxy
    assert proxy.refused == []
    proxy.close()


@pytest.fixture
def client(proxy, namespace):
    with Client(proxy.url, namespace, poll=INTERVAL_S) as client:
        yield client


def looks_then(proxy, act):
    """Do something in a thread, once a reader has looked again."""

    def wait():
        with proxy.news:
            before = proxy.seen.count("XRANGE")
            assert proxy.news.wait_for(lambda: proxy.seen.count("XRANGE") > before, 20 * PATIENCE)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def later(proxy):
    """Do something once a call has looked twice."""
    threads = []

    def look_twice_then(act):
        with proxy.news:
            assert proxy.news.wait_for(lambda: proxy.seen.count("LPOP") >= 2, 20 * PATIENCE)
        act()

    def later(act):
        threads.append(threading.Thread(target=look_twice_then, args=(act,)))
        threads[-1].start()

    yield later
    for thread in threads:
        thread.join()


def test_calls_that_wait_look_at_the_interval(server, namespace, client, proxy, later):
    with Client(server.url, namespace) as direct:
        later(lambda: direct.queue("q").put("k", jid="a"))
        began_at = time.monotonic()
        (lease,) = client.lease("w", ["p", "q"], block=20 * PATIENCE)
    assert lease.jid == "a"
    assert proxy.seen.count("LPOP") / 2 <= (time.monotonic() - began_at) / INTERVAL_S + 2  # of two queues
    proxy.seen.clear()
    later(lambda: lease.complete(7))
    assert client.wait("a", 20 * PATIENCE) == 7


def test_call_that_waits_in_vain_ends_in_time(client, proxy):
    assert client.lease("w", ["q"], block=3 * INTERVAL_S) == []
    assert 2 <= proxy.seen.count("LPOP") <= 6


def test_workers_answer_one_that_looks(server, namespace, client):
    workers = [PlayedWorker(server.url, namespace, lambda _request: "here") for _ in range(2)]
    try:
        with workers[0].listening(), workers[1].listening():
            assert client.ask(None, "stacks", 20 * PATIENCE) == {worker.name: "here" for worker in workers}
    finally:
        for worker in workers:
            worker.close()


def test_async_calls_look_as_well(server, namespace, proxy, later):
    async def play():
        async with AsyncClient(proxy.url, namespace, poll="100ms") as client:
            (lease,) = await client.lease("w", ["q"], block=20 * PATIENCE)
            proxy.seen.clear()
            later(lambda: direct.cancel("a"))
            with pytest.raises(JobNotFound):
                await client.wait(lease.jid, 20 * PATIENCE)

    with Client(server.url, namespace) as direct:
        later(lambda: direct.queue("q").put("k", jid="a"))
        asyncio.run(play())


def test_reader_of_a_stream_looks_and_misses_nothing(server, namespace, client, proxy):
    with Client(server.url, namespace) as direct:
        direct.queue("q").put("k", jid="a")
        (lease,) = direct.queue("q").lease("w")
        stream = client.stream("a", timeout=20 * PATIENCE)
        lease.stream("one", "two")
        assert [next(stream), next(stream)] == ["one", "two"]
        looks_then(proxy, lambda: lease.stream("three"))
        assert next(stream) == "three"
        looks_then(proxy, lease.complete)
        assert (list(stream), stream.state) == ([], "complete")
        assert list(client.stream("a")) == ["one", "two", "three"]


def test_looking_reader_ends_by_its_timeout_and_by_close(server, namespace, proxy):
    with Client(proxy.url, namespace, poll=30) as client:
        client.queue("q").put("k", jid="a")
        with pytest.raises(TimeoutError, match="nothing has come of job a"):
            next(client.stream("a", timeout=INTERVAL_S))
        stream = client.stream("a")
        looks_then(proxy, stream.close)
        assert list(stream) == []


def test_async_reader_of_a_stream_looks_as_well(server, namespace, proxy):
    async def play():
        async with AsyncClient(proxy.url, namespace, poll=INTERVAL_S) as client:
            stream = client.stream("a", position="end", timeout=20 * PATIENCE)
            looks_then(proxy, lambda: (lease.stream("new"), lease.complete()))
            assert [chunk async for chunk in stream] == ["new"]
            assert stream.state == "complete"
        async with AsyncClient(proxy.url, namespace, poll=30) as client:
            direct.queue("q").put("k", jid="b")
            loop, stream = asyncio.get_running_loop(), client.stream("b")
            looks_then(proxy, lambda: asyncio.run_coroutine_threadsafe(stream.close(), loop).result())
            assert [chunk async for chunk in stream] == []

    with Client(server.url, namespace) as direct:
        direct.queue("q").put("k", jid="a")
        (lease,) = direct.queue("q").lease("w")
        lease.stream("old")
        asyncio.run(play())


def test_the_environment_names_the_interval(server, namespace, proxy, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_POLL", "100ms")
    with Client(proxy.url, namespace) as client:
        assert client.lease("w", ["q"], block=INTERVAL_S) == []
    with Client(server.url, namespace, poll=0) as client:
        before = server.calls("blpop")
        assert client.lease("w", ["q"], block=INTERVAL_S) == []
        assert server.calls("blpop") == before + 1


@pytest.mark.parametrize("poll", ["10ms", 31, -1, "often", "none", True])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_impossible_interval_is_refused(server, kind, poll):
    with pytest.raises((TypeError, ValueError), match="poll must be"):
        kind(server.url, poll=poll)


def test_impossible_interval_of_the_environment_is_refused_by_its_name(server, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_POLL", "1ms")
    with pytest.raises(ValueError, match=r"LEASEHOLD_REDIS_POLL must be 0 .* from 0\.02 to 30 seconds: '1ms'"):
        Client(server.url)


def test_impossible_durable_put_is_refused_before_sending(server, namespace, client):
    with pytest.raises(ValueError, match="a durable put waits in Redis"):
        client.queue("q").put("k", durable=True)
    with Client(server.url, namespace, acknowledge=1, poll=INTERVAL_S) as other:
        with pytest.raises(ValueError, match="a durable put waits in Redis"):
            other.queue("q").put("k")
        assert other.queue("q").counts().waiting == 0


def test_refused_events_name_the_needed_command(server, namespace, tmp_path):
    proxy = Refusing(tmp_path / "another", server.socket)
    why = "tells nobody of events, which come by SUBSCRIBE"
    with Client(proxy.url, namespace, poll=INTERVAL_S) as client, pytest.raises(StoreUnavailable, match=why):
        client.events().get(1)
    proxy.close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_scripts_go_along_where_the_proxy_loads_none(server, namespace, tmp_path, kind):
    proxy = Refusing(tmp_path / "another", server.socket, ("CLIENT", "INFO", "SCRIPT"))
    server.redis.script_flush()

    def done(answer):
        return loop.run_until_complete(answer) if asyncio.iscoroutine(answer) else answer

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        client = kind(proxy.url, namespace, poll=INTERVAL_S)
        jids = done(client.queue("q").put_many({"klass": "k"} for _ in range(3000)))
        (lease,) = done(client.queue("q").lease("w"))
        assert lease.jid == jids[0]
        assert done(lease.complete())
        done(client.close())
    assert set(proxy.refused) - {"CLIENT SETINFO"} == {"INFO", "SCRIPT LOAD"}
    assert proxy.seen.count("EVAL") == 3  # a put, a lease and a completion: from then on the server knows the scripts
    proxy.close()
