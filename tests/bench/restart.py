"""A child is killed: how long until its job runs again, from the kernel's report of the death."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, step
from tests.bench.latency import spread_of
from tests.bench.marks import Marks
from tests.bench.pool import Pool

QUIET, BUSY = "2 children", "2 children, beside 4 busy processes"
COLUMNS = ("p50 ms", "p99 ms", "most ms", "from SIGKILL, p99 ms")


def kill(pid: int) -> tuple[float, float]:
    """Kill a process. Return when that was, and when the kernel reported the end."""
    pidfd = os.pidfd_open(pid)
    try:
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [], 60)
        return killed_at, time.monotonic()
    finally:
        os.close(pidfd)


def deaths(bench: Bench, times: int) -> dict[str, float]:
    """Kill children one after the other, each with a job of its own."""
    bench.server.clear()
    bench.marks.clear()
    flags = ("--processes", "2")
    with bench.pool(*flags, marks=bench.marks.path) as pool, bench.server.client() as client:
        queue = client.queue("default")
        reported, killed = [], []
        for n in range(times):
            queue.put("bench.hold", n)
            killed_at, reported_at = kill(started(bench.marks, pool, 2 * n + 1))
            started(bench.marks, pool, 2 * n + 2)
            again_at = bench.marks.all()[-1].at
            reported.append(again_at - reported_at)
            killed.append(again_at - killed_at)
    return spread_of(reported) | {"from SIGKILL, p99 ms": spread_of(killed)["p99 ms"]}


def started(marks: Marks, pool: Pool, number: int) -> int:
    """The pid in which the start of this number was."""
    marks.wait(number, pool.is_alive)
    return marks.all()[number - 1].pid


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep processors busy while the block runs."""
    with ExitStack() as stack:
        for _ in range(number):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def beside_busy_processes(bench: Bench, times: int) -> dict[str, float]:
    with busy_processes(4):
        return deaths(bench, times)


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    times = bench.amount(100, 5)
    yield [
        step(QUIET, lambda: deaths(bench, times)),
        step(BUSY, lambda: beside_busy_processes(bench, times)),
    ]


RESTART = Benchmark(
    "restart",
    "A child is killed, and its job runs again. From the kernel's report of the death (its pidfd becomes readable) to"
    " the handler's first line in another child; the kernel's own teardown is in the column from SIGKILL.",
    COLUMNS,
    steps,
    (
        Compared("killed → runs again, p99", QUIET, "p99 ms", most=50),
        Compared("killed → runs again, p99, beside 4 busy processes", BUSY, "p99 ms", most=50),
    ),
)
