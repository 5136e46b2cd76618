"""The engine's cost of a job over the primaries of a Cluster: `python -m tests.bench.shards [JOBS]`.

A round puts, leases and settles the jobs in batches of 64 by a worker in each shard. Figures are processor time of all
primaries together for a job, and the share of the busiest one: its inverse is by how much so many primaries, each on a
processor of its own, can do more than one. The rows take turns over seven rounds.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import dividing, leasing, settling
from supervisor.engine.model.outcomes import Completed
from tests import clusters
from tests.bench.accounts import spent_s
from tests.bench.calls import calls_of

ROUNDS, BATCH = 7, 64
#: Shards and primaries of each row.
ROWS = ((1, 1), (16, 1), (16, 3))


def measure(url: str, name: str, made: Sequence[clusters.Node], jobs: int) -> tuple[float, float]:
    """Return µs of the primaries for a job, and the share of the busiest."""
    with Client(url, name) as client:
        queue, before = client.queue("q"), [spent_s(node.process.pid) for node in made]
        for first in range(0, jobs, 1000):
            queue.put_many({"klass": "k", "data": number} for number in range(first, first + 1000))
        for calls in calls_of(client).of_each_shard():
            while leases := calls.run(leasing.lease("worker", ["q"], BATCH)).leases:
                calls.run(settling.settle("worker", [Completed(lease) for lease in leases]))
        spent = [spent_s(node.process.pid) - begun for node, begun in zip(made, before, strict=True)]
    return sum(spent) / jobs * 1e6, max(spent) / sum(spent)


def main(jobs: int) -> None:
    with ExitStack() as stack:
        servers = {}
        for count in {primaries for _, primaries in ROWS}:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers[count] = stack.enter_context(clusters.nodes(directory, count))
            clusters.join(servers[count])
        found: dict[tuple[int, int], list[tuple[float, float]]] = {row: [] for row in ROWS}
        for turn in range(ROUNDS):
            for shards, primaries in ROWS:
                name, url = f"bench-{shards}-{turn}", clusters.url_of(servers[primaries])
                if shards > 1:
                    with Client(url, name) as client:
                        calls_of(client).at(0).run(dividing.divide(shards))
                found[shards, primaries].append(measure(url, name, servers[primaries], jobs))
    for (shards, primaries), figures in found.items():
        costs, shares = zip(*figures, strict=True)
        print(  # noqa: T201
            f"{shards} shards on {primaries} primaries: {statistics.median(costs):.1f} µs a job"
            f" ({min(costs):.1f} - {max(costs):.1f}), busiest {statistics.median(shares):.0%}"
            f" ({min(shares):.0%} - {max(shares):.0%})"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
