"""A server that speaks TLS by itself, whose certificate has another name than its address."""

import asyncio
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from supervisor import AsyncClient, Client, StoreUnavailable
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.dialer import Dialer
from tests import certificates, servers
from tests.engine.played_nodes import primary
from tests.lengths import SOON_S

NAMESPACE = "jobs"
KEY = f"{{{NAMESPACE}}}:"
NAME = "redis.example"


@dataclass(frozen=True)
class Named:
    place: str
    certificate: Path
    context: ssl.SSLContext

    def options(self, name: str = NAME) -> str:
        return f"ssl_ca_certs={self.certificate}" + (f"&ssl_server_name={name}" if name else "")


@pytest.fixture
def named(tmp_path) -> Iterator[Named]:
    """A Redis at 127.0.0.1 with a certificate for another name."""
    path, key = certificates.make(tmp_path, f"DNS:{NAME}")
    port = servers.free_port()
    words = ["--tls-port", str(port), "--bind", "127.0.0.1", "--tls-auth-clients", "no"]
    words += ["--tls-cert-file", str(path), "--tls-key-file", str(key), "--tls-ca-cert-file", str(path)]
    program = shutil.which("redis-server") or servers.binary()
    assert program is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    running = servers.running(program, *words)
    try:
        running.__enter__()
    except redis.ConnectionError:
        pytest.skip("this machine has no server that speaks TLS")
    yield Named(f"127.0.0.1:{port}", path, context)
    running.__exit__(None, None, None)


def put(url):
    with Client(url, NAMESPACE) as client:
        client.queue("q").put("k")


def put_and_wait(url):
    async def main():
        async with AsyncClient(url, NAMESPACE) as client, client.events() as events:
            await client.queue("q").put("k")
            await events.get(SOON_S)
            await client.lease("w", ["empty"], block=0.01)

    asyncio.run(main())


def dial(url):
    (dialled,) = Dialer(url, KEY).dial(1, SOON_S)
    with closing(dialled) as connection:
        assert connection.call("PING") == b"PONG"


CALLS = [put, put_and_wait, dial]


@pytest.mark.parametrize("call", CALLS)
def test_server_is_reached_by_the_name_in_its_certificate(named, call):
    call(f"rediss://{named.place}/0?{named.options()}")


@pytest.mark.parametrize("call", CALLS)
def test_sentinels_and_their_server_have_one_name(named, node, call):
    host, _, port = named.place.partition(":")
    sentinel = node(primary(host, int(port)), tls=named.context)
    call(f"rediss+sentinel://{sentinel}/m?{named.options()}")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["", "other.example"])
def test_server_with_another_name_is_refused(named, call, name):
    with pytest.raises((StoreUnavailable, Unreachable), match="mismatch"):
        call(f"rediss://{named.place}/0?{named.options(name)}")


def test_given_connection_by_tls_serves_an_async_client(named):
    async def main():
        theirs = redis.asyncio.Redis(
            host="localhost", port=int(named.place[10:]), ssl=True, ssl_ca_certs=named.certificate,
            ssl_check_hostname=False,
        )  # fmt: skip
        async with AsyncClient(namespace=NAMESPACE, redis=theirs) as client:
            await client.queue("q").put("k")
            await client.lease("w", ["empty"], block=0.01)

    asyncio.run(main())
