"""The server's cost of a put by the mode of its unique key: `python -m tests.bench.modes`.

A figure is the server's processor time for one put. The rows take turns over nine rounds. All but the first two rows
meet a job that holds the key. One collection is small, the other has 1 MB.
"""

import statistics
import tempfile
from pathlib import Path

from supervisor import Client
from tests.bench.accounts import spent_s
from tests.bench.server import NAMESPACE, Server, started

ROUNDS = 9
PUTS = 2000  # a round
DATA = {"number": 7}
ROWS = {
    "plain": {},
    "unique, a new key each time": {"unique": "new"},
    "unique, held": {"unique": "held"},
    "debounce": {"unique": "debounce", "debounce": "1h"},
    "throttle": {"unique": "throttle", "throttle": "1h"},
    "collect": {"unique": "collect", "collect": "1h", "most": 500},
    "collect, into 1 MB": {"unique": "large", "collect": "1h", "most": 10_000},
}


def put_us(server: Server, client: Client, what: str, number: int) -> float:
    """Put some jobs. Return the server's processor time for each."""
    queue, options = client.queue(what), dict(ROWS[what])
    if what == "collect, into 1 MB" and not number:
        queue.put("k", "x" * 2**20, **options)
    before_s = spent_s(server.pid)
    for n in range(PUTS):
        if options.get("unique") == "new":
            queue.put("k", DATA, unique=f"{number}-{n}")
        else:
            queue.put("k", DATA, **options)
    return (spent_s(server.pid) - before_s) / PUTS * 1e6


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        started(Path(directory) / "server") as server,
        Client(server.url, NAMESPACE) as client,
    ):
        measured: dict[str, list[float]] = {what: [] for what in ROWS}
        for number in range(ROUNDS + 1):
            for what in ROWS:
                us = put_us(server, client, what, number)
                if number:  # the first round loads the scripts
                    measured[what].append(us)
        for what, us in measured.items():
            print(f"{what}: {statistics.median(us):.1f} us ({min(us):.1f} - {max(us):.1f})")  # noqa: T201


if __name__ == "__main__":
    main()
