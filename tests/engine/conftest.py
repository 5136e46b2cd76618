"""Fixtures of the engine's tests: a clock that tests move, clients on it, and a check of all places after each test."""

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.engine.client.sync_client import Client
from tests.engine.invariants import misplaced, read_namespace
from tests.layouts import MARKS, set_options


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
    if shutil.which("openssl") is None:
        pytest.skip("this machine makes no certificates")
    path, key = tmp_path / "cert", tmp_path / "key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *names, "-keyout", key, "-out", path, "-days", "2"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return Certificate(path, key, context)


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
