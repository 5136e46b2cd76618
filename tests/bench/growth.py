"""Throughput where one thing grows: what waits, lanes, children, supervisors, payloads."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.bench.bench import Bench, fill
from tests.bench.benchmark import Benchmark, Compared, Step, Unmeasured, step
from tests.bench.pool import LOOK_S, PATIENCE_S, SPENT, Pool, Snapshot, per_job
from tests.bench.server import Server

FEW, MANY = "waiting: 3,000", "waiting: 1,000,000"
LANES = {count: f"lanes: {count:,}" for count in (1, 10_000)}
CHILDREN = {count: f"children: {count}" for count in (1, 2, 4, 8, 16, 32)}
SUPERVISORS = {count: f"supervisors of 2 children: {count}" for count in (1, 2, 4, 8)}
PAYLOADS = {10**power: f"payload: {10**power:,} bytes" for power in range(2, 7)}
#: Jobs that a feeder puts at once.
MOUTHFUL = 1000
#: Bytes of one put_many.
CALL_BYTES = 8 * 10**6


class Feeder:
    """Puts as many as run, so that what waits stays about as much."""

    def __init__(self, server: Server, keep: int) -> None:
        self._server = server
        self._keep = keep
        self._put = server.waiting()

    def turn(self) -> int:
        """Looks, and puts; how many have been taken from the queue until now."""
        waiting = self._server.waiting()
        if not waiting:
            raise Unmeasured("the queue has run dry: this process was too slow for the others")
        done = self._put - waiting
        if waiting < self._keep:
            self._server.put(MOUTHFUL)
            self._put += MOUTHFUL
        return done


def fed(bench: Bench, server: Server, keep: int, jobs: int) -> dict[str, float]:
    """Of so many jobs the last nine tenths, with about the same number waiting all the time."""
    server.put(max(0, keep - server.waiting()))
    feeder = Feeder(server, keep)
    with bench.pool("--processes", "2", "--jobs-per-child", "0", on=server) as pool:
        began, before = until(pool, feeder, jobs // 10), pool.snapshot()
        ended, after = until(pool, feeder, jobs), pool.snapshot()
    return per_job(before, after, ended - began)


def until(pool: Pool, feeder: Feeder, jobs: int) -> int:
    deadline_at = time.monotonic() + PATIENCE_S
    while (done := feeder.turn()) < jobs:
        if not pool.is_alive() or time.monotonic() > deadline_at:
            raise Unmeasured(f"{done} of {jobs} jobs after {PATIENCE_S:g} s")
        time.sleep(LOOK_S)
    return done


def through(bench: Bench, jobs: int, children: int = 2, supervisors: int = 1) -> dict[str, float]:
    """What waits in a queue that is paused until all supervisors are ready, from a tenth of it to nine tenths."""
    flags = ("--processes", str(children), "--jobs-per-child", "0")
    completed = bench.server.completed
    with ExitStack() as stack:
        pools = [stack.enter_context(bench.pool(*flags)) for _ in range(supervisors)]
        for pool in pools:
            pool.until_idle(children)
        bench.let_go()
        pools[0].until(lambda: completed() >= jobs // 10, f"done with {jobs // 10} jobs")
        began, before = completed(), together(pools)
        pools[0].until(lambda: completed() >= jobs * 9 // 10, f"done with {jobs * 9 // 10} jobs")
        ended, after = completed(), together(pools)
    return per_job(before, after, ended - began)


def together(pools: Sequence[Pool]) -> Snapshot:
    """Of several supervisors; the server is one."""
    taken = [pool.snapshot() for pool in pools]
    spent_s = {part: sum(each.spent_s[part] for each in taken) for part in taken[0].spent_s}
    return Snapshot(taken[-1].at, spent_s | {"server": taken[-1].spent_s["server"]})


def in_lanes(bench: Bench, jobs: int, lanes: int) -> dict[str, float]:
    bench.hold_back()
    with bench.server.client() as client:
        client.queue("default").put_many({"klass": "bench.noop", "lane": f"client-{n % lanes}"} for n in range(jobs))
    return through(bench, jobs)


def of_children(bench: Bench, jobs: int, children: int = 2, supervisors: int = 1) -> dict[str, float]:
    bench.hold_back()
    bench.server.put(jobs)
    return through(bench, jobs, children, supervisors)


def with_payload(bench: Bench, jobs: int, payload_bytes: int) -> dict[str, float]:
    bench.hold_back()
    data, at_once = "x" * (payload_bytes - 2), max(1, CALL_BYTES // payload_bytes)
    for first in range(0, jobs, at_once):
        bench.server.put(min(at_once, jobs - first), data=data)
    return through(bench, jobs)


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs = bench.amount(40_000, 3_000)
    room = bench.amount(3 * 10**8, 2 * 10**7)

    def beside_few() -> dict[str, float]:
        bench.server.clear()
        fill(bench.server, 0, bench.kept)
        return fed(bench, bench.server, 3000, jobs)

    def grown(rows: dict[int, str], measure: Any) -> list[Step]:
        return [step(row, lambda size=size: measure(size)) for size, row in rows.items()]

    yield [
        step(FEW, beside_few),
        step(MANY, lambda: fed(bench, bench.large, bench.backlog, jobs)),
        *grown(LANES, lambda lanes: in_lanes(bench, jobs, lanes)),
        *grown(CHILDREN, lambda children: of_children(bench, jobs, children)),
        *grown(SUPERVISORS, lambda supervisors: of_children(bench, jobs, supervisors=supervisors)),
        *grown(PAYLOADS, lambda size: with_payload(bench, min(jobs, room // size), size)),
    ]


def _over_the_first(rows: dict[int, str]) -> list[Compared]:
    first, *others = rows.values()
    return [Compared(f"{other} / {first}", other, "jobs/s", (first,)) for other in others]


GROWTH = Benchmark(
    "growth",
    "No-op jobs per second where one thing grows. Two reused children, unless said. Beside a number of waiting jobs as"
    " many are put as run, a thousand at a time, and what the puts cost the server is in its part.",
    ("jobs/s", *SPENT),
    steps,
    (
        Compared("1,000,000 waiting / 3,000", MANY, "jobs/s", (FEW,), least=0.9),
        Compared("10,000 lanes / one lane", LANES[10_000], "jobs/s", (LANES[1],), least=0.7),
        *(each for rows in (CHILDREN, SUPERVISORS, PAYLOADS) for each in _over_the_first(rows)),
    ),
)
