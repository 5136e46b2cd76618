"""The server that all tests share, and how it is reached: TEST_SERVER names one of `WAYS`.

TEST_SERVER_VERSION says which server it must be, like `redis 7.0`.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from redis.crc import key_slot

from tests import certificates, clusters, sentinels, servers
from tests.docs.pages import account_rights, rights_to_find_servers

#: The account of the manual, on a server that nobody else uses.
USER = "published"
#: No test stops the shared servers: who does not answer for a time only has much to do.
_DOWN_AFTER_MS = 60_000


@dataclass(frozen=True)
class Server:
    """A running server. `redis` is for looking at what lies in it."""

    url: str
    redis: "redis.Redis"
    path: Path | None = None  # of its Unix socket, where tests may go that way

    @property
    def way(self) -> str:
        return os.environ.get("TEST_SERVER", "alone")

    @property
    def socket(self) -> Path:
        if self.path is None:
            pytest.skip(f"a Unix socket is another way to the server than {self.way}")
        return self.path

    @property
    def url_of_one(self) -> str:
        """The URL, where it names one server: redis-py and `dial` know no other kind."""
        if self.way in ("sentinel", "cluster"):
            pytest.skip(f"the URL of {self.way} is not one of redis-py")
        return self.url

    def url_with(self, user: str = "", password: str = "", **options: object) -> str:
        """Return the URL with another account, and with more options."""
        scheme, _, rest = self.url.partition("://")
        place, mark, query = rest.partition("?")
        if user:
            if self.way == "cluster":
                pytest.skip("a test makes its account at one node, and a Cluster has several")
            place = f"{user}:{password}@{place.rpartition('@')[2]}"
        more = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
        return f"{scheme}://{place}{mark or '?' if more else mark}{'&'.join(filter(None, (query, more)))}"

    def seen(self, namespace: str) -> str:
        """Return a namespace that `redis` can see: in a Cluster, where that is one node, one with more in its name."""
        if self.way != "cluster":
            return namespace
        names = (f"{namespace}.{number}" for number in itertools.count())
        return next(name for name in names if key_slot(f"{{{name}}}".encode()) < clusters.SLOTS // 3)

    def calls(self, command: str) -> int:
        """Return how often the server has carried out a command of this name, as scripts do, or a client."""
        return self.redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def dump(self, namespace: str) -> dict[bytes, bytes]:
        """Return all keys of a namespace with their values, byte for byte."""
        keys = list(self.redis.scan_iter(f"{{{namespace}}}:*", count=1000))
        with self.redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.dump(key)
            values = pipeline.execute()
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def version_of(connection: "redis.Redis") -> str:
    """Return make and version of a server, like `valkey 9.1.2`."""
    said = connection.info("server")
    return f"valkey {said['valkey_version']}" if "valkey_version" in said else f"redis {said['redis_version']}"


@contextmanager
def shared() -> Iterator[Server]:
    """Start a server, and what stands before it, for the block."""
    with _WAYS[os.environ.get("TEST_SERVER", "alone")]() as server, server.redis:
        wanted = os.environ.get("TEST_SERVER_VERSION", "")
        assert f"{version_of(server.redis)}.".startswith(f"{wanted}." if wanted else ""), wanted
        yield server


@contextmanager
def _alone() -> Iterator[Server]:
    """Start a server on a Unix socket in a directory of its own, without persistence."""
    with servers.running(_program()) as socket:
        yield Server(f"unix://{socket}", servers.connected(socket), socket)


@contextmanager
def _by_tls() -> Iterator[Server]:
    """Start a server with a certificate for `localhost`. Clients need a certificate that the server trusts."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        path, key = certificates.make(Path(directory), "DNS:localhost")
        port = servers.free_port()
        words = ["--tls-port", port, "--bind", "127.0.0.1", "--tls-ca-cert-file", path]
        words += ["--tls-cert-file", path, "--tls-key-file", key]
        with servers.running(_program(), *map(str, words)) as socket:
            files = f"ssl_ca_certs={path}&ssl_certfile={path}&ssl_keyfile={key}"
            yield Server(f"rediss://localhost:{port}/0?{files}", servers.connected(socket))


@contextmanager
def _by_account() -> Iterator[Server]:
    """Start a server with the account that the manual describes, for each namespace of the tests."""
    with servers.running(_program()) as socket:
        connection = servers.connected(socket)
        with _account([connection]):
            yield Server(_with_account(f"unix://{socket}"), connection)


@contextmanager
def _account(connections: "list[redis.Redis]", *more: str) -> Iterator[None]:
    """Make the account at these servers for the block, in which they may deny it nothing."""
    for connection in connections:
        connection.execute_command("ACL", "SETUSER", USER, *account_rights("leasehold", "*"), *more)
    yield
    denied = [entry for each in connections for entry in each.acl_log() if entry["username"] == USER]
    assert not denied, f"the published account was denied {denied}"


@contextmanager
def _by_sentinel() -> Iterator[Server]:
    """Start servers with the account, extended as the manual says for sentinels. The sentinels have no account."""
    with (
        _directory() as directory,
        sentinels.group(directory, down_after_ms=_DOWN_AFTER_MS) as group,
        _account([each.redis for each in group.members], *rights_to_find_servers()),
    ):
        yield Server(_with_account(group.url), _looking(group.primary().port))


@contextmanager
def _in_cluster() -> Iterator[Server]:
    """Start three primaries with a replica each, and the account at all of them. Tests look at the first one."""
    with _directory() as directory, clusters.nodes(directory, 6, node_timeout_ms=_DOWN_AFTER_MS) as nodes:
        clusters.join(nodes[:3])
        for primary, replica in zip(nodes[:3], nodes[3:], strict=True):
            clusters.add_replica(nodes[:3], replica, primary)
        with _account([node.redis for node in nodes], *rights_to_find_servers()):
            yield Server(_with_account(clusters.url_of(nodes[:3])), _looking(nodes[0].port))


_WAYS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "alone": _alone,
    "tls": _by_tls,
    "account": _by_account,
    "sentinel": _by_sentinel,
    "cluster": _in_cluster,
}
WAYS = tuple(_WAYS)


def _with_account(url: str) -> str:
    return url.replace("://", f"://{USER}:PASSWORD@", 1)


def _program() -> str:
    program = servers.binary()
    assert program is not None
    return program


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        yield Path(directory)


def _looking(port: int) -> "redis.Redis":
    return redis.Redis(port=port, protocol=2, socket_timeout=servers.PATIENCE_S)
