"""Measures the server's memory for a job in each state, above its payload, by the server's own account."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model import outcomes  # those that code of before lacks are looked up in their rows
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Completed, Failed
from supervisor.engine.model.validation import to_data
from tests.bench.bench import FILLER, Bench
from tests.bench.benchmark import Benchmark, Compared, Step
from tests.bench.server import Server

WAITING = "waiting"
SUSPENDED = "waits for a signal"
BYTES = "bytes above the payload"
CHILDREN = 100  # of each job that others wait for
REST_S = 0.3  # in which what is freed later has been freed, and tables have moved


def put(client: Client, jobs: int, **options: Any) -> None:
    client.queue("default").put_many({"klass": "bench.noop", "data": {"n": n}, **options} for n in range(jobs))


def leased(client: Client, jobs: int) -> Iterator[list[Any]]:
    put(client, jobs)
    for _ in range(0, jobs, 1000):
        yield client.queue("default").lease(FILLER, 1000, ttl=3600)


def running(client: Client, jobs: int) -> None:
    for _ in leased(client, jobs):
        pass


def ended(client: Client, jobs: int, way: Callable[[LeaseRecord], Any]) -> None:
    client.config.set("jobs-history-count", jobs)
    client.config.set("failed-history-count", jobs)
    for leases in leased(client, jobs):
        client.settle([way(lease) for lease in leases])


def suspended(client: Client, jobs: int) -> None:
    for leases in leased(client, jobs):
        client.settle([outcomes.Suspended(lease, "approval", "7d") for lease in leases])


def depending(client: Client, jobs: int) -> None:
    """Put jobs that wait for parents, a hundred for each parent. The memory of a parent counts for its children."""
    for first in range(0, jobs, CHILDREN):
        parent = client.queue("default").put("bench.noop", {"n": first})
        client.queue("default").put_many(
            {"klass": "bench.noop", "data": {"n": n}, "depends": [parent]} for n in range(first, first + CHILDREN)
        )


WAYS: Mapping[str, Callable[[Client, int], None]] = {
    WAITING: put,
    "waiting, with every option": lambda client, jobs: put(
        client, jobs, priority=5, retries=3, timeout=60, max_deaths=2
    ),
    "waiting, with two tags": lambda client, jobs: put(client, jobs, tags=["newsletter", "customer-7"]),
    "scheduled": lambda client, jobs: put(client, jobs, delay=3600),
    SUSPENDED: suspended,
    "depends": depending,
    "running": running,
    "completed": lambda client, jobs: ended(client, jobs, Completed),
    "completed, with a result": lambda client, jobs: ended(client, jobs, lambda lease: Completed(lease, {"ok": True})),
    "failed": lambda client, jobs: ended(client, jobs, lambda lease: Failed(lease, "ValueError", "no such thing")),
}


def used_bytes(server: Server) -> int:
    """The server's memory, as soon as it does not change any more."""
    before, now = -1, 0
    while before != now:
        time.sleep(REST_S)
        before, now = now, int(server.redis.info("memory")["used_memory"])
    return now


def measure(server: Server, jobs: int, way: Callable[[Client, int], None]) -> dict[str, float]:
    """Bytes per job above its payload."""
    server.clear()
    empty = used_bytes(server)
    with server.client() as client:
        way(client, jobs)
    payload = sum(len(to_data("data", {"n": n})[1]) for n in range(jobs))
    return {BYTES: (used_bytes(server) - empty - payload) / jobs}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs = bench.amount(100_000, 2_000)
    yield [
        Step((name,), lambda name=name, way=way: {name: measure(bench.server, jobs, way)}, runs_python=False)
        for name, way in WAYS.items()
    ]


RECORDS = Benchmark(
    "records",
    "Bytes of the server's memory for a job, by its state. Of `used_memory`, above the payload, with all jobs in one"
    " queue and jids of 22 characters.",
    (BYTES,),
    steps,
    (
        Compared("Redis, a waiting job above its payload", WAITING, BYTES, most=330),
        Compared("Redis, a job that waits for a signal, above its payload", SUSPENDED, BYTES, most=1536),
    ),
)
