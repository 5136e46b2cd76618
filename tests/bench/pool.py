"""Our own supervisors, started as a user starts them, and what they spend on a job, part by part."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import supervisor
from tests.bench import accounts
from tests.bench.benchmark import Unmeasured
from tests.bench.marks import VARIABLE
from tests.bench.server import NAMESPACE, Server

#: The folder of the measured code.
SOURCE = Path(next(iter(supervisor.__path__))).parent
PARTS = ("server", "master", "zygote", "children")
#: The columns of what a part spends, and of their sum.
SPENT = (*(f"{part} µs" for part in PARTS), "sum µs")
LOOK_S = 0.01
PATIENCE_S = 120.0

HANDLERS = """
import os, struct, time
from supervisor import handler

_RECORD = struct.Struct("<dQQ")
_FD = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND) if "BENCH_MARKS" in os.environ else -1

def _mark(number):
    os.write(_FD, _RECORD.pack(time.monotonic(), os.getpid(), number))

@handler
def noop(job):
    pass

@handler
def mark(job):
    _mark(job.data)

@handler
def nap(job):
    _mark(job.data)
    time.sleep(0.01)

@handler
def wait(job):
    job.wait("go", timeout="1h")
    _mark(job.data)

@handler
def hold(job):
    _mark(job.data)
    if not job.deaths:
        time.sleep(60)
"""

#: Apart: the image of children that have no such handler has no event loop either.
ASYNC_HANDLERS = """
from supervisor import handler

@handler
async def noop(job):
    pass
"""

#: Jobs that run beside each other in one child. `MANY` lets so many sleep.
MANY = 5_000
BESIDE_HANDLERS = f"""
import asyncio, os, struct, time
from supervisor import handler

_RECORD = struct.Struct("<dQQ")
_FD = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND) if "BENCH_MARKS" in os.environ else -1

@handler(concurrency=200)
async def noop(job):
    await asyncio.sleep(0)

@handler(concurrency=200)
async def mark(job):
    os.write(_FD, _RECORD.pack(time.monotonic(), os.getpid(), job.data))
    await asyncio.sleep(0)

@handler(concurrency={MANY})
async def sleep(job):
    await asyncio.sleep(job.data)
"""

#: Objects as modules have them, so many megabytes, in the image that all children share.
BALLAST = """
BALLAST = []
def _megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
while _megabytes() < {megabytes}:
    BALLAST.append({{f"name_{{i}}": [i, str(i), (i, None)] for i in range(200)}})
"""


class Snapshot(NamedTuple):
    """A moment: seconds spent by each part until then."""

    at: float
    spent_s: dict[str, float]


class Pool:
    """One `leasehold run`."""

    def __init__(self, process: "subprocess.Popen[bytes]", server: Server, log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._server = server
        self._log = log

    @property
    def zygote(self) -> int:
        """Raises Unmeasured while there is none."""
        found = accounts.children(self.pid)
        if not found:
            raise Unmeasured("the supervisor has no zygote")
        return found[0]

    def children(self) -> list[int]:
        return accounts.children(self.zygote)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def snapshot(self) -> Snapshot:
        zygote = self.zygote
        living = sum(accounts.spent_s(pid) for pid in accounts.children(zygote))
        return Snapshot(
            time.perf_counter(),
            {
                "server": self._server.spent_s(),
                "master": accounts.spent_s(self.pid),
                "zygote": accounts.spent_s(zygote),
                "children": living + accounts.reaped_s(zygote),
            },
        )

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Looks again and again. Raises Unmeasured where it does not become so."""
        deadline_at = time.monotonic() + PATIENCE_S
        while not is_so():
            if not self.is_alive() or time.monotonic() > deadline_at:
                raise Unmeasured(f"not {what} after {PATIENCE_S:g} s: {self._last_words()}")
            time.sleep(LOOK_S)

    def until_left(self, jobs: int) -> None:
        self.until(lambda: self._server.waiting() <= jobs, f"down to {jobs} waiting jobs")

    def until_idle(self, children: int) -> None:
        """Wait until all children are there and have come to rest."""
        self.until(lambda: len(accounts.children(self.pid)) > 0 and len(self.children()) >= children, "up")
        self.until(lambda: b'"zygote.ready"' in self._log.read_bytes(), "ready")
        self.until_at_rest()

    def until_at_rest(self) -> None:
        """Wait until the supervisor and its descendants use less than a hundredth of the time."""
        pause_s = 0.2
        deadline_at = time.monotonic() + PATIENCE_S
        before = -1.0
        while time.monotonic() < deadline_at:
            now = accounts.tree_spent_s([self.pid])
            if before >= 0 and now - before < pause_s / 100:
                return
            before = now
            time.sleep(pause_s)
        raise Unmeasured("the supervisor does not come to rest")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it has said nothing"


def per_job(before: Snapshot, after: Snapshot, jobs: int) -> dict[str, float]:
    """Rate, and µs of each part."""
    spent = {f"{part} µs": (after.spent_s[part] - before.spent_s[part]) / jobs * 1e6 for part in PARTS}
    return {"jobs/s": jobs / (after.at - before.at), **spent, "sum µs": sum(spent.values())}


@contextmanager
def running(
    server: Server,
    directory: Path,
    *flags: str,
    marks: str | None = None,
    megabytes: int = 0,
    url: str | None = None,
    handlers: str = HANDLERS,
) -> Iterator[Pool]:
    """A supervisor that serves the server's jobs while the block runs; its children's application has so many MB."""
    with tempfile.TemporaryDirectory(prefix="pool-", dir=directory) as name:
        home = Path(name)
        _write_handlers(home / "handlers", handlers + (BALLAST.format(megabytes=megabytes) if megabytes else ""))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
        environment |= {"PYTHONPATH": str(SOURCE), "LEASEHOLD_REDIS_URL": url or server.url}
        environment |= {VARIABLE: marks} if marks else {}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run", "--log", "json", "--namespace", NAMESPACE, *flags],
                cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield Pool(process, server, home / "log")
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Drain the supervisor. An interruption, or a drain that takes too long, kills it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _write_handlers(package: Path, source: str) -> None:
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bench.py").write_text(source)
