"""Measures the time from SIGTERM to the supervisor's exit when the drain has nothing to wait for."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Step, step
from tests.bench.pool import Pool

MS = "ms to exit"


def drained(bench: Bench, jobs: int, until: Callable[[Pool], None], *flags: str) -> dict[str, float]:
    """Measure the time from SIGTERM to the exit."""
    bench.server.clear()
    bench.server.put(jobs)
    with bench.pool(*flags) as pool:
        until(pool)
        began = time.monotonic()
        pool.process.send_signal(signal.SIGTERM)
        pool.process.wait(60)
        return {MS: (time.monotonic() - began) * 1000}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs, forks = bench.amount(50_000, 5_000), bench.amount(2_000, 300)

    def idle(children: int) -> dict[str, float]:
        return drained(bench, 0, lambda pool: pool.until_idle(children), "--processes", str(children))

    def at_work(jobs: int, per_child: int) -> dict[str, float]:
        flags = ("--processes", "2", "--jobs-per-child", str(per_child))
        return drained(bench, jobs, lambda pool: pool.until_left(jobs * 8 // 10), *flags)

    yield [
        step("2 idle children", lambda: idle(2)),
        step("24 idle children", lambda: idle(24)),
        step("2 children at no-op jobs, reused", lambda: at_work(jobs, 0)),
        step("2 children at no-op jobs, fork per job", lambda: at_work(forks, 1)),
    ]


DRAIN = Benchmark(
    "drain",
    "SIGTERM to the supervisor's exit. Where no job takes long: what has started ends, what has not is handed back.",
    (MS,),
    steps,
)
