"""What lanes and limits cost the server, in its own time: put, lease and settle in queues that differ in nothing else.

    .venv/bin/python -m tests.bench.lanes [--rounds 5] [--calls 100] [--lanes 10000] [--parked 100000]

On one private server, of whose main thread the kernel tells the processor time: that of other processes does not
count. The queues take turns call by call, so that all of them have the same machine: ratios hold where absolute figures
drift. A figure is a round's lower quartile, in microseconds per job.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.engine import commands
from supervisor.engine.client import Client
from supervisor.engine.commands import Command
from supervisor.engine.jobs import new_job
from supervisor.engine.outcomes import Completed
from tests.bench.engine import VERBS, quarter, ratios, shown, started

BATCHES = (1, 64)
WORKER = "bench-12345-abcdef"
BACKLOG = 20_000
PLAIN, ONE, MANY, THIN = "no lane", "one lane", "many lanes", "many, thin"
PARKED, ROOM = "jobs are parked", "a limit with room"


class Server:
    """How much processor time a server's main thread has used."""

    def __init__(self, pid: int) -> None:
        self._account = Path(f"/proc/{pid}/task/{pid}/schedstat")

    def spent_us(self) -> float:
        return int(self._account.read_text().split()[0]) / 1000


class Line:
    """One queue, in which as much waits after a cycle as before."""

    def __init__(self, client: Client, name: str, lanes: int, jobs: int, **options: Any) -> None:
        self.name = name
        self._queue = name.replace(" ", "-")
        self._lanes = itertools.cycle([f"client-{i}" for i in range(lanes)] or [None])
        self._options = options
        self.took: dict[tuple[int, str], list[float]] = {}
        for first in range(0, jobs, 1000):
            client.run(self._put(min(1000, jobs - first)))

    def _put(self, n: int) -> Command[Any]:
        jobs = [
            new_job("put", self._queue, "bench.noop", {"n": i}, {"lane": next(self._lanes), **self._options})
            for i in range(n)
        ]
        return commands.put(jobs)

    def cycle(self, server: "Server", client: Client, batch: int) -> None:
        def timed(verb: str, command: Command[Any]) -> Any:
            before = server.spent_us()
            answer = client.run(command)
            self.took.setdefault((batch, verb), []).append((server.spent_us() - before) / batch)
            return answer

        timed("put", self._put(batch))
        grant = timed("lease", commands.lease(WORKER, [self._queue], batch))
        assert len(grant.leases) == batch
        timed("settle", commands.settle(WORKER, [Completed(lease) for lease in grant.leases]))


def filled(client: Client, lanes: int, parked: int) -> list[Line]:
    """The queues to compare."""
    client.config.set("jobs-history", 0)
    client.limit("shut", running=0)
    client.limit("open", running=1_000_000)
    blocked = client.queue(PARKED.replace(" ", "-"))
    for first in range(0, parked, 1000):
        blocked.put_many({"klass": "bench.noop", "limit": "shut"} for _ in range(min(1000, parked - first)))
    while blocked.counts().waiting:
        blocked.lease(WORKER, 1000)
    return [
        Line(client, PLAIN, 0, BACKLOG),
        Line(client, ONE, 1, BACKLOG),
        Line(client, MANY, lanes, 2 * lanes),
        Line(client, THIN, lanes, lanes // 2),  # half of them are empty at any time: they come and go
        Line(client, PARKED, 0, BACKLOG),
        Line(client, ROOM, 0, BACKLOG, limit="open"),
    ]


COMPARED = ((ONE, PLAIN), (MANY, ONE), (THIN, ONE), (PARKED, PLAIN), (ROOM, PLAIN))


def lines(rounds: list[dict[tuple[str, int, str], float]]) -> Iterator[str]:
    def of(name: str, batch: int, verb: str) -> list[float]:
        return [found[name, batch, verb] for found in rounds]

    yield "µs per job: median (least - most); ratios round by round"
    for batch in BATCHES:
        yield ""
        yield f"{f'batch {batch}':<20}" + "".join(f"{verb:<26}" for verb in VERBS)
        for name in dict.fromkeys(itertools.chain.from_iterable(COMPARED)):
            yield f"{name:<20}" + "".join(f"{shown(of(name, batch, verb)):<26}" for verb in VERBS)
        for name, other in COMPARED:
            compared = (shown(ratios(of(name, batch, verb), of(other, batch, verb)), 2) for verb in VERBS)
            yield f"{name} : {other}".ljust(36) + "  ".join(compared)
    yield ""
    yield f"bar: lease of {MANY} : {ONE} <= 1.5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--lanes", type=int, default=10_000)
    parser.add_argument("--parked", type=int, default=100_000)
    args = parser.parse_args()
    with started() as (connection, url), Client(url, "bench") as client:
        server = Server(connection.info("server")["process_id"])
        queues = filled(client, args.lanes, args.parked)
        rounds = []
        for _ in range(args.rounds):
            for line in queues:
                line.took.clear()
            for _, batch, line in itertools.product(range(args.calls), BATCHES, queues):
                line.cycle(server, client, batch)
            rounds.append({(line.name, *cell): quarter(times) for line in queues for cell, times in line.took.items()})
        sys.stdout.writelines(f"{text}\n" for text in lines(rounds))


if __name__ == "__main__":
    main()
