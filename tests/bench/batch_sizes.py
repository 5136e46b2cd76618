"""The server's cost of the end of a member, by its batch's size: `python -m tests.bench.batch_sizes [SIZE …]`.

Processor time of the server for each settled job, in turn, over nine rounds. The first row is jobs in no batch, with a
tag, because members have a full record as they do.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from supervisor import Client, Completed
from tests.bench.accounts import spent_s
from tests.bench.server import NAMESPACE, Server, started

ROUNDS = 9
SETTLED = 1000  # a round
AT_ONCE = 20  # by one call
SIZES = (100, 10_000, 1_000_000)


class Row:
    """A queue whose jobs are settled round by round."""

    def __init__(self, server: Server, client: Client, size: int) -> None:
        """`size`: of its batches; 0: its jobs are in none."""
        self.size = size
        self._pid = server.pid
        self._client = client
        self._queue = client.queue(f"of-{size}")
        jobs = [{"klass": "k", "data": {"number": n}, **({} if size else {"tags": ["t"]})} for n in range(1000)]
        left = (ROUNDS + 1) * SETTLED
        while left > 0:
            put = size or left
            if not size:
                self._queue.put_many(jobs * (put // len(jobs)))
            else:
                with client.batch() as batch:
                    for _ in range(0, put, len(jobs)):
                        batch.put_many(self._queue.name, jobs[:put])
            left -= put

    def settle_us(self) -> float:
        """Settle some jobs. Return the server's processor time for each."""
        spent_in_all_s = 0.0
        for _ in range(0, SETTLED, AT_ONCE):
            leases = self._queue.lease("bench", AT_ONCE)
            before_s = spent_s(self._pid)
            assert all(self._client.settle([Completed(lease) for lease in leases]))
            spent_in_all_s += spent_s(self._pid) - before_s
        return spent_in_all_s / SETTLED * 1e6


def main(sizes: tuple[int, ...]) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        started(Path(directory) / "server") as server,
        Client(server.url, NAMESPACE) as client,
    ):
        rows = [Row(server, client, size) for size in (0, *sizes)]
        measured: dict[int, list[float]] = {row.size: [] for row in rows}
        for number in range(ROUNDS + 1):
            for row in rows:
                us = row.settle_us()
                if number:  # the first round loads the scripts
                    measured[row.size].append(us)
        for size, us in measured.items():
            what = f"batches of {size:,}" if size else "no batch"
            print(f"{what}: {statistics.median(us):.1f} us ({min(us):.1f} - {max(us):.1f})")  # noqa: T201


if __name__ == "__main__":
    main(tuple(int(size) for size in sys.argv[1:]) or SIZES)
