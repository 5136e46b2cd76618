"""Throughput where one thing grows: what waits, lanes, children, supervisors, payloads."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.bench.bench import Bench, fill
from tests.bench.benchmark import BEFORE, Benchmark, Compared, Step, step
from tests.bench.pool import PARTS, SPENT, Pool, Snapshot, per_job
from tests.bench.server import Server

FEW, MANY = "waiting: 3,000 at most", "waiting: 1,000,000"
LANES = {count: f"lanes: {count:,}" for count in (1, 10_000)}
CHILDREN = {count: f"children: {count}" for count in (1, 2, 4, 8, 16, 32)}
SUPERVISORS = {count: f"supervisors of 2 children: {count}" for count in (1, 2, 4, 8)}
PAYLOADS = {10**power: f"payload: {10**power:,} bytes" for power in range(2, 7)}
#: Jobs that wait at first where few do.
BURST = 3000
#: Bytes of one put_many.
CALL_BYTES = 8 * 10**6


def in_bursts(bench: Bench, jobs: int) -> dict[str, float]:
    """Measure the jobs in bursts. The first and the last tenth of each burst do not count."""
    server = bench.server
    server.clear()
    fill(server, 0, bench.kept)
    with bench.pool("--processes", "2", "--jobs-per-child", "0") as pool:
        pool.until_idle(2)
        spans = []
        for _ in range(jobs // BURST):
            bench.pause()
            server.put(BURST)
            bench.let_go()
            spans.append(span(pool, server, BURST * 9 // 10, BURST // 10))
    return summed(spans)


def of_many(bench: Bench, jobs: int) -> dict[str, float]:
    """Measure jobs at the front of a long queue, from a tenth of them to nine tenths. The queue keeps its length."""
    server = bench.large
    server.put(bench.backlog + jobs - server.waiting())
    with bench.pool("--processes", "2", "--jobs-per-child", "0", on=server) as pool:
        return summed([span(pool, server, bench.backlog + jobs * 9 // 10, bench.backlog + jobs // 10)])


def span(pool: Pool, server: Server, first: int, last: int) -> tuple[Snapshot, Snapshot, int]:
    """Return snapshots when at most `first` and at most `last` jobs wait, and how many were taken between."""
    pool.until_left(first)
    left, before = server.waiting(), pool.snapshot()
    pool.until_left(last)
    return before, pool.snapshot(), left - server.waiting()


def summed(spans: Sequence[tuple[Snapshot, Snapshot, int]]) -> dict[str, float]:
    """Return the figures per job of all spans together."""
    began = Snapshot(sum(before.at for before, _, _ in spans), _spent(before for before, _, _ in spans))
    ended = Snapshot(sum(after.at for _, after, _ in spans), _spent(after for _, after, _ in spans))
    return per_job(began, ended, sum(done for _, _, done in spans))


def _spent(snapshots: Iterable[Snapshot]) -> dict[str, float]:
    taken = list(snapshots)
    return {part: sum(each.spent_s[part] for each in taken) for part in PARTS}


def through(bench: Bench, jobs: int, children: int = 2, supervisors: int = 1) -> dict[str, float]:
    """Measure a queue from a tenth to nine tenths of its jobs. No job starts until all supervisors are ready."""
    flags = ("--processes", str(children), "--jobs-per-child", "0")
    with ExitStack() as stack:
        pools = [stack.enter_context(bench.pool(*flags)) for _ in range(supervisors)]
        for pool in pools:
            pool.until_idle(children)
        bench.let_go()
        left = bench.server.left
        pools[0].until(lambda: left() <= jobs * 9 // 10, f"done with {jobs // 10} jobs")
        began, before = left(), together(pools)
        pools[0].until(lambda: left() <= jobs // 10, f"done with {jobs * 9 // 10} jobs")
        ended, after = left(), together(pools)
    return per_job(before, after, began - ended)


def together(pools: Sequence[Pool]) -> Snapshot:
    """Return the sum over several supervisors, with their one server counted once."""
    taken = [pool.snapshot() for pool in pools]
    return Snapshot(taken[-1].at, _spent(taken) | {"server": taken[-1].spent_s["server"]})


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

    def grown(rows: dict[int, str], measure: Any) -> list[Step]:
        return [step(row, lambda size=size: measure(size)) for size, row in rows.items()]

    yield [
        step(FEW, lambda: in_bursts(bench, jobs)),
        step(MANY, lambda: of_many(bench, jobs)),
        *grown(LANES, lambda lanes: in_lanes(bench, jobs, lanes)),
        *grown(CHILDREN, lambda children: of_children(bench, jobs, children)),
        *grown(SUPERVISORS, lambda supervisors: of_children(bench, jobs, supervisors=supervisors)),
        *grown(PAYLOADS, lambda size: with_payload(bench, min(jobs, room // size), size)),
    ]


def _over_the_first(rows: dict[int, str], least: float | None = None) -> list[Compared]:
    first, *others = rows.values()
    return [
        compared
        for other in others
        for compared in (
            Compared(f"{other} / {first}", other, "jobs/s", (first,), least=least),
            Compared(f"{other} / {first}, processor time", other, "sum µs", (first,)),
        )
    ]


GROWTH = Benchmark(
    "growth",
    "No-op jobs per second where one thing grows. Two reused children, unless said. Few jobs wait where they come in"
    " bursts of 3,000, each of which is measured from nine tenths of it to a tenth.",
    ("jobs/s", *SPENT),
    steps,
    (
        Compared("1,000,000 waiting / 3,000", MANY, "jobs/s", (FEW,), least=0.9),
        Compared("1,000,000 waiting / 3,000, processor time", MANY, "sum µs", (FEW,)),
        Compared("10,000 lanes / one lane", LANES[10_000], "jobs/s", (LANES[1],), least=0.7),
        Compared("10,000 lanes / one lane, processor time", LANES[10_000], "sum µs", (LANES[1],)),
        *(each for rows in (CHILDREN, PAYLOADS) for each in _over_the_first(rows)),
        *_over_the_first(SUPERVISORS, least=0.9),
        Compared(f"{PAYLOADS[10_000]} / before", PAYLOADS[10_000], "jobs/s", (PAYLOADS[10_000] + BEFORE,), least=1.8),
    ),
)
