"""Measures the cost of a supervisor that has nothing to do."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench import accounts
from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Step, limit, step
from tests.bench.server import Server

TRIPS, COMMANDS, WAKEUPS = "round trips/min", "commands/min", "wakeups/min"
POOL, SERVER = "supervisor's ms/min", "server's ms/min"


def alone(server: Server, seconds: float) -> dict[str, float]:
    """The server without anybody."""
    began = server.spent_s()
    time.sleep(seconds)
    return {SERVER: (server.spent_s() - began) / seconds * 60_000}


def waiting(bench: Bench, seconds: float, children: int) -> dict[str, float]:
    """A supervisor that waits for jobs."""
    server = bench.server
    server.clear()
    with bench.pool("--processes", str(children)) as pool:
        pool.until_idle(children)
        pids = accounts.tree([pool.pid])

        def look() -> tuple[float, ...]:
            trips, commands = server.calls()
            wakeups = sum(map(accounts.wakeups, pids))
            return trips, commands, wakeups, accounts.tree_spent_s([pool.pid]) * 1000, server.spent_s() * 1000

        before = look()
        time.sleep(seconds)
        after = look()
    minutes = seconds / 60
    figures = [(then - now) / minutes for now, then in zip(before, after, strict=True)]
    return dict(zip((TRIPS, COMMANDS, WAKEUPS, POOL, SERVER), figures, strict=True))


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    seconds = bench.amount(60.0, 2.0)
    yield [
        limit("the server alone", lambda: alone(bench.server, seconds / 6)),
        step("2 idle children", lambda: waiting(bench, seconds, 2)),
    ]


IDLE = Benchmark(
    "idle",
    "A minute without a job. Round trips to the server, and commands with those inside of scripts; how often a process"
    " of the supervisor has waited and was woken; processor time.",
    (TRIPS, COMMANDS, WAKEUPS, POOL, SERVER),
    steps,
)
