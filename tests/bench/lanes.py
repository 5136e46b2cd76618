"""Measures what lanes and limits add to the server's work, in queues that differ in nothing else.

A figure is a round's lower quartile of the server's processor time for put, lease and settle, so that other processes
do not count. The queues take turns call by call.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.outcomes import Completed
from tests.bench.bench import FILLER, Bench
from tests.bench.benchmark import Benchmark, Compared, Step
from tests.bench.calls import calls_of, leasing, new_job, putting, settling
from tests.bench.engine import COLUMNS, VERBS, Cycles
from tests.bench.figures import Figures
from tests.bench.server import Server

BATCHES = (1, 64)
PLAIN, ONE, MANY, THIN = "no lane", "one lane", "10,000 lanes", "10,000 thin lanes"
PARKED, ROOM = "100,000 jobs parked", "a limit with room"
COMPARED = ((ONE, PLAIN), (MANY, ONE), (THIN, ONE), (PARKED, PLAIN), (ROOM, PLAIN))


class Line:
    """One queue, in which as much waits after a cycle as before."""

    def __init__(self, client: Client, name: str, lanes: int, jobs: int, **options: Any) -> None:
        self.name = name
        self._queue = name.replace(" ", "-").replace(",", "")
        self._lanes = itertools.cycle([f"client-{i}" for i in range(lanes)] or [None])
        self._options = options
        for first in range(0, jobs, 1000):
            calls_of(client).run(self._put(min(1000, jobs - first)))

    def _put(self, n: int) -> Any:
        jobs = [
            new_job("put", self._queue, "bench.noop", {"n": i}, {"lane": next(self._lanes), **self._options})
            for i in range(n)
        ]
        return putting.put(jobs)

    def cycle(self, server: Server, client: Client, batch: int) -> dict[str, float]:
        """Puts, leases and settles one batch; µs per job of each call."""
        took: dict[str, float] = {}

        def timed(verb: str, command: Any) -> Any:
            before = server.spent_s()
            answer = calls_of(client).run(command)
            took[f"{verb} µs"] = (server.spent_s() - before) / batch * 1e6
            return answer

        timed("put", self._put(batch))
        grant = timed("lease", leasing.lease(FILLER, [self._queue], batch))
        timed("settle", settling.settle(FILLER, [Completed(lease) for lease in grant.leases]))
        return took


def filled(client: Client, lanes: int, parked: int, backlog: int) -> list[Line]:
    """The queues to compare."""
    client.config.set("jobs-history", 0)
    client.limit("shut", running=0)
    client.limit("open", running=1_000_000)
    blocked = client.queue(PARKED.replace(" ", "-").replace(",", ""))
    blocked.put_many({"klass": "bench.noop", "limit": "shut"} for _ in range(parked))
    while blocked.counts().waiting:
        blocked.lease(FILLER, 1000)
    return [
        Line(client, PLAIN, 0, backlog),
        Line(client, ONE, 1, backlog),
        Line(client, MANY, lanes, 2 * lanes),
        Line(client, THIN, lanes, lanes // 2),  # half of them are empty at any time: they come and go
        Line(client, PARKED, 0, backlog),
        Line(client, ROOM, 0, backlog, limit="open"),
    ]


def row(name: str, batch: int) -> str:
    return f"{name}, batch {batch}"


def take_turns(server: Server, client: Client, lines: Sequence[Line], calls: int) -> Figures:
    cycles = Cycles()
    for _, batch, line in itertools.product(range(calls), BATCHES, lines):
        cycles.add(row(line.name, batch), line.cycle(server, client, batch))
    return cycles.figures()


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    calls = bench.amount(100, 3)
    with bench.server.client() as client:
        lines = filled(client, *bench.amount((10_000, 100_000, 20_000), (500, 1000, 1000)))
        rows = tuple(row(line.name, batch) for line in lines for batch in BATCHES)
        yield [Step(rows, lambda: take_turns(bench.server, client, lines, calls), runs_python=False)]


LANES = Benchmark(
    "lanes",
    "What lanes and limits add to the server's own work. Processor time of the server in µs of a job, queue beside"
    " queue, call by call in turn, nothing kept. Thin lanes have two jobs at the most, and come and go; parked jobs lie"
    " under a limit beside those that are leased.",
    COLUMNS,
    steps,
    tuple(
        Compared(f"{verb}, batch 64: {name} / {other}", row(name, 64), f"{verb} µs", (row(other, 64),))
        for name, other in COMPARED for verb in VERBS
    ),
)  # fmt: skip
