"""What a job takes of the server's memory in each state, above its payload.

    .venv/bin/python -m tests.bench.memory [--jobs 100000]

On a private server, by its own account (used_memory), when it has come to rest; all jobs are in one queue, with 22
characters of jid and the payload {"n": …}.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import redis

from supervisor.engine.checks import to_data
from supervisor.engine.client import Client
from supervisor.engine.jobs import LeaseRecord
from supervisor.engine.outcomes import Completed, Failed
from tests.bench.engine import started

BAR_BYTES = 450  # of a waiting job
CHILDREN = 100  # of each job that others wait for
REST_S = 0.3  # in which what is freed later has been freed, and tables have moved


def put(client: Client, jobs: int, **options: Any) -> None:
    client.queue("default").put_many({"klass": "bench.noop", "data": {"n": n}, **options} for n in range(jobs))


def leased(client: Client, jobs: int) -> Iterator[list[Any]]:
    put(client, jobs)
    for _ in range(0, jobs, 1000):
        yield client.queue("default").lease("bench-12345-abcdef", 1000, ttl=3600)


def running(client: Client, jobs: int) -> None:
    for _ in leased(client, jobs):
        pass


def ended(client: Client, jobs: int, way: Callable[[LeaseRecord], Any]) -> None:
    client.config.set("jobs-history-count", jobs)
    client.config.set("failed-history-count", jobs)
    for leases in leased(client, jobs):
        client.settle([way(lease) for lease in leases])


def depending(client: Client, jobs: int) -> None:
    """Each waits for one job, which a hundred wait for; those count as what they are waited for."""
    for first in range(0, jobs, CHILDREN):
        parent = client.queue("default").put("bench.noop", {"n": first})
        client.queue("default").put_many(
            {"klass": "bench.noop", "data": {"n": n}, "depends": [parent]} for n in range(first, first + CHILDREN)
        )


WAYS: Mapping[str, Callable[[Client, int], None]] = {
    "waiting": put,
    "waiting, with every option": lambda client, jobs: put(
        client, jobs, priority=5, retries=3, timeout=60, max_deaths=2
    ),
    "waiting, with two tags": lambda client, jobs: put(client, jobs, tags=["newsletter", "customer-7"]),
    "scheduled": lambda client, jobs: put(client, jobs, delay=3600),
    "depends": depending,
    "running": running,
    "completed": lambda client, jobs: ended(client, jobs, Completed),
    "completed, with a result": lambda client, jobs: ended(client, jobs, lambda lease: Completed(lease, {"ok": True})),
    "failed": lambda client, jobs: ended(client, jobs, lambda lease: Failed(lease, "ValueError", "no such thing")),
}


def used_bytes(connection: "redis.Redis") -> int:
    """The server's memory, as soon as it does not change any more."""
    before, now = -1, 0
    while before != now:
        time.sleep(REST_S)
        before, now = now, int(connection.info("memory")["used_memory"])
    return now


def measure(connection: "redis.Redis", url: str, jobs: int, way: Callable[[Client, int], None]) -> float:
    """Bytes per job above its payload."""
    connection.flushall()
    empty = used_bytes(connection)
    with Client(url, "bench") as client:
        way(client, jobs)
    payload = sum(len(to_data("data", {"n": n})[1]) for n in range(jobs))
    return (used_bytes(connection) - empty - payload) / jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    args = parser.parse_args()
    with started() as (connection, url):
        for name, way in WAYS.items():
            per_job = measure(connection, url, args.jobs, way)
            bar = f"   bar {BAR_BYTES}" if name == "waiting" else ""
            sys.stdout.write(f"{name:<28} {per_job:>6,.0f} bytes a job above its payload{bar}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
