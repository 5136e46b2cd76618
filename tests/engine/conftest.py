"""Fixtures of the engine's tests: a clock that tests move, clients on it, and a check of all places after each test."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.engine.client.sync_client import Client
from tests import certificates
from tests.engine.invariants import misplaced, read_namespace
from tests.layouts import MARKS, set_options
from tests.lengths import SOON_S


class Clock:
    """Unix seconds that stand still until `tick`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 that is its own authority, and the TLS context of a server that has it."""

    path: Path
    key: Path
    context: ssl.SSLContext


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    path, key = certificates.make(tmp_path, "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return Certificate(path, key, context)


@pytest.fixture
def tcp() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Listen on a port and answer each connection: `tcp(answer)` returns host and port."""
    listeners: list[socket.socket] = []

    def listen(answer: Callable[[socket.socket], None], host: str = "127.0.0.1") -> str:
        try:
            listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{listener.getsockname()[1]}"

    def serve(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    yield listen
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        listener.close()


@pytest.fixture
def passing_on(server) -> Callable[[socket.socket], None]:
    """Relay bytes between a client and the shared server."""

    def pass_on(accepted: socket.socket) -> None:
        with suppress(OSError), accepted as near, socket.socket(socket.AF_UNIX) as far:  # either end may hang up first
            far.connect(str(server.socket))
            data = b"none yet"
            while data:
                # A descriptor is not readable for bytes that TLS has decrypted already.
                is_ahead = isinstance(near, ssl.SSLSocket) and near.pending()
                ready = [near] if is_ahead else select.select([near, far], [], [])[0]
                source, target = (near, far) if near in ready else (far, near)
                data = source.recv(65536)
                target.sendall(data)

    return pass_on


@pytest.fixture
def by_tls(tcp, passing_on, certificate) -> str:
    """The shared server behind TLS: host and port."""

    def pass_on(accepted: socket.socket) -> None:
        with suppress(OSError), certificate.context.wrap_socket(accepted, server_side=True) as near:
            passing_on(near)

    return tcp(pass_on)


@pytest.fixture
def node(tcp) -> Iterator[Callable[..., str]]:
    """Start a sentinel or a node of a Cluster that gives this answer; None: it accepts, and never answers.

    `tls`: the context of one that speaks TLS.
    """
    is_over = threading.Event()

    def start(answer: bytes | None, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> str:
        def serve(accepted: socket.socket) -> None:
            with suppress(OSError), tls.wrap_socket(accepted, server_side=True) if tls else accepted as connection:
                if answer is None:
                    is_over.wait(SOON_S)
                while asked := connection.recv(4096):
                    connection.sendall(b"+PONG\r\n" if b"PING" in asked else answer or b"")

        return tcp(serve, host)

    yield start
    is_over.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server, namespace, clock) -> Iterator[Client]:
    """A client on the clock. After the test each job must lie in the one place that its record names."""
    with Client(server.url, namespace, clock) as client:
        yield client
    assert misplaced(read_namespace(server.redis, namespace)) == []


@pytest.fixture
def live(server, namespace) -> Iterator[Client]:
    """A client on the server's own clock."""
    with Client(server.url, namespace) as client:
        yield client
    assert misplaced(read_namespace(server.redis, namespace)) == []


@pytest.fixture
def config(server, namespace) -> Callable[..., None]:
    """Set options of the configuration: config(grace=1), config(**{"grace-q": 2})."""

    def set_given(**options: Any) -> None:
        set_options(server.redis, f"{{{namespace}}}:", {k.replace("_", "-"): v for k, v in options.items()})

    return set_given


@pytest.fixture
def keys(server, namespace) -> Callable[[], set[str]]:
    """Return the names of the namespace's keys, without prefix and without the marks of the layout."""

    def names() -> set[str]:
        found = server.redis.scan_iter(f"{{{namespace}}}:*", count=1000)
        return {key.decode().partition("}:")[2] for key in found} - MARKS

    return names


@pytest.fixture
def cpu_ms(server) -> Callable[[], AbstractContextManager[list[float]]]:
    """Measure the server's processor time for some calls: `with cpu_ms() as used`, and used[0] afterwards."""
    if server.way in ("sentinel", "cluster"):
        pytest.skip("the server also feeds its replicas")

    def spent() -> float:
        cpu = server.redis.info("cpu")
        return 1000 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])

    @contextmanager
    def measure() -> Iterator[list[float]]:
        used: list[float] = []
        before = spent()
        yield used
        used.append(spent() - before)

    return measure
