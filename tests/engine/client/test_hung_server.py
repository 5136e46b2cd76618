"""A client raises its own errors if a server hangs that speaks TLS, and so never ends a connection."""

import asyncio
import select
import socket
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
import pytest

from supervisor.engine.client import async_store, event_stream, job_stream
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable
from tests.lengths import PATIENCE, SOON_S

#: Asyncio itself keeps a connection by TLS for 30 s.
SHORT_S = 8.0 * PATIENCE


@pytest.fixture
def hung():
    """Set it, and the server reads nothing more, and ends no connection."""
    return threading.Event()


@pytest.fixture
def url(server, tcp, certificate, hung):
    is_over = threading.Event()

    def pass_on(accepted: socket.socket) -> None:
        with (
            suppress(OSError),
            certificate.context.wrap_socket(accepted, server_side=True) as near,
            socket.socket(socket.AF_UNIX) as far,
        ):
            far.connect(str(server.socket))
            data = b"none yet"
            while data:
                ready = [near] if near.pending() else select.select([near, far], [], [], 0.01)[0]
                if hung.is_set():
                    is_over.wait(SOON_S)
                    return
                for source in ready:
                    data = source.recv(65536)
                    (far if source is near else near).sendall(data)

    limits = "socket_timeout=0.3&socket_connect_timeout=3"
    yield f"rediss://{tcp(pass_on)}/0?ssl_ca_certs={certificate.path}&{limits}"
    is_over.set()


async def put(client):
    await client.queue("q").put("k", b"x" * 20_000)


async def pop(client):
    await client._store.pop_any(lambda _shard: ["empty"], 600)


async def read_events(client):
    async with client.events() as events:
        assert await events.get(0) is None
        client.hang()
        await events.get()


async def read_stream(client):
    async with client.stream("j") as stream:
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.2)
        client.hang()
        await reading


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (put, OutcomeUnknown),
        (pop, StoreUnavailable),
        (read_events, StoreUnavailable),
        (read_stream, StoreUnavailable),
    ],
)
def test_hung_server_has_the_error_of_the_call(url, hung, namespace, monkeypatch, call, error):
    monkeypatch.setattr(async_store, "MOST_BYTES", 10_000)
    monkeypatch.setattr(event_stream, "_SILENCE_S", 0.2)
    monkeypatch.setattr(job_stream, "_SILENCE_S", 0.5)
    monkeypatch.setattr(job_stream, "_PATIENCE_S", 0.2)

    async def main():
        async with AsyncClient(url, namespace) as client:
            await client.queue("q").put("k", jid="j")
            await asyncio.gather(put(client), put(client))  # leaves idle connections
            client.hang = hung.set
            if call in (put, pop):
                hung.set()
            async with asyncio.timeout(SOON_S):
                with pytest.raises(error):
                    await call(client)

    asyncio.run(main())


def test_connections_to_a_hung_server_are_closed_soon(url, hung, namespace):
    port = urlsplit(url).port

    def connected():
        return [each for each in psutil.Process().net_connections("tcp") if each.raddr and each.raddr.port == port]

    async def main():
        async with AsyncClient(url, namespace) as client:
            await client.queue("q").put("k")
            await asyncio.gather(*(client._store.pop_first(lambda _shard: ["empty"], 0.05) for _ in range(3)))
            assert len(connected()) > 1
            hung.set()
            with pytest.raises(StoreUnavailable):
                await client._store.pop_first(lambda _shard: ["empty"], 600)
            end_at = time.monotonic() + SHORT_S
            while connected():
                assert time.monotonic() < end_at, "connections linger"
                await asyncio.sleep(0.05)  # no event tells that a loop has closed them

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_streams_of_events_are_as_patient_as_their_connection(url, hung, namespace, kind):
    async def main():
        client = kind(url, namespace)
        events = client.events()
        assert await done(events.get(0)) is None
        hung.set()
        end_at = time.monotonic() + SHORT_S
        with pytest.raises(StoreUnavailable, match=r"silent for 0\.6 s"):
            while time.monotonic() < end_at:
                await done(events.get(0.05))
        await done(events.close())
        await done(client.close())

    async def done(answer):
        return await answer if asyncio.iscoroutine(answer) else answer

    asyncio.run(main())


def test_short_waits_for_events_notice_a_hung_server(url, hung, namespace, monkeypatch):
    monkeypatch.setattr(event_stream, "_SILENCE_S", 0.2)
    with Client(url, namespace) as client, client.events() as events:
        assert events.get(0) is None
        hung.set()
        end_at = time.monotonic() + SOON_S
        with pytest.raises(StoreUnavailable, match="silent for"):
            while time.monotonic() < end_at:
                events.get(0.05)


def test_short_async_waits_for_events_notice_a_hung_server(url, hung, namespace, monkeypatch):
    monkeypatch.setattr(event_stream, "_SILENCE_S", 0.2)

    async def main():
        async with AsyncClient(url, namespace) as client, client.events() as events:
            assert await events.get(0) is None
            hung.set()
            with pytest.raises(StoreUnavailable, match="silent for"):
                async with asyncio.timeout(SOON_S):
                    while True:
                        await events.get(0.05)

    asyncio.run(main())
