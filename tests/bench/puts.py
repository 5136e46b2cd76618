"""Puts per second: one by one, many in a call, in flight together, from eight producers; and bare SETs for a limit."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from supervisor.engine.client.async_client import AsyncClient
from tests.bench.accounts import spent_s
from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, limit, step
from tests.bench.pool import SOURCE
from tests.bench.server import NAMESPACE, Server

SET, SETS = "bare SET, one by one", "bare SET, 1,000 in a pipeline"
ONE, MANY = "one by one", "put_many, 1,000 in a call"
FLIGHT, PRODUCERS = "async, 100 in flight", "8 producers, one by one"
AT_ONCE, PIPELINE = 100, 1000
DATA = {"to": "ada@example.org"}
SPENT = ("server µs", "producers µs", "sum µs")

PRODUCER = """
import sys
from supervisor import Client
url, namespace, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Client(url, namespace) as client:
    queue = client.queue("default")
    queue.counts()
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    sys.stdin.readline()
    for n in range(jobs):
        queue.put("bench.noop", {"to": "ada@example.org"})
    sys.stdout.write("done\\n"); sys.stdout.flush()
    sys.stdin.readline()
"""


def timed(server: Server, puts: int, work: Callable[[], None], pids: Sequence[int]) -> dict[str, float]:
    """Rate, and what the server and the producers spend."""
    began, in_server, by_producers = time.perf_counter(), server.spent_s(), sum(map(spent_s, pids))
    work()
    took_s = time.perf_counter() - began
    server_us = (server.spent_s() - in_server) / puts * 1e6
    producers_us = (sum(map(spent_s, pids)) - by_producers) / puts * 1e6
    spent_us = (server_us, producers_us, server_us + producers_us)
    return {"puts/s": puts / took_s, **dict(zip(SPENT, spent_us, strict=True))}


def by_us(server: Server, puts: int, work: Callable[[], None]) -> dict[str, float]:
    """Measure puts by this process into an empty server."""
    server.clear()
    return timed(server, puts, work, [os.getpid()])


def sets(server: Server, puts: int) -> None:
    for n in range(puts):
        server.redis.set(f"key-{n}", b"x")


def sets_in_pipelines(server: Server, puts: int) -> None:
    for first in range(0, puts, PIPELINE):
        with server.redis.pipeline(transaction=False) as pipeline:
            for n in range(first, first + PIPELINE):
                pipeline.set(f"key-{n}", b"x")
            pipeline.execute()


def one_by_one(server: Server, puts: int) -> None:
    with server.client() as client:
        queue = client.queue("default")
        for _ in range(puts):
            queue.put("bench.noop", DATA)


def many(server: Server, puts: int) -> None:
    with server.client() as client:
        client.queue("default").put_many({"klass": "bench.noop", "data": DATA} for _ in range(puts))


def in_flight(server: Server, puts: int) -> None:
    async def one_after_another(client: AsyncClient, jobs: int) -> None:
        queue = client.queue("default")
        for _ in range(jobs):
            await queue.put("bench.noop", DATA)

    async def all_together() -> None:
        async with AsyncClient(server.url, NAMESPACE) as client:
            await asyncio.gather(*(one_after_another(client, puts // AT_ONCE) for _ in range(AT_ONCE)))

    asyncio.run(all_together())


def from_producers(server: Server, puts: int, producers: int = 8) -> dict[str, float]:
    """Measure puts by several processes that begin at one moment."""
    server.clear()
    command = [sys.executable, "-c", PRODUCER, server.url, NAMESPACE, str(puts // producers)]
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(command)) for _ in range(producers)]
        for process in processes:
            _hear(process, "ready")

        def work() -> None:
            for process in processes:
                _tell(process)
            for process in processes:
                _hear(process, "done")

        return timed(server, puts, work, [process.pid for process in processes])


@contextmanager
def _started(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
            _tell(process)
        finally:
            process.kill()


def _tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    server = bench.server
    few, lots = bench.amount(10_000, 400), bench.amount(100_000, 4_000)
    yield [
        limit(SET, lambda: by_us(server, few, lambda: sets(server, few))),
        step(ONE, lambda: by_us(server, few, lambda: one_by_one(server, few))),
        limit(SETS, lambda: by_us(server, lots, lambda: sets_in_pipelines(server, lots))),
        step(MANY, lambda: by_us(server, lots, lambda: many(server, lots))),
        step(FLIGHT, lambda: by_us(server, few, lambda: in_flight(server, few))),
        step(PRODUCERS, lambda: from_producers(server, few)),
    ]


PUTS = Benchmark(
    "put",
    "Puts per second, into an empty queue that nobody serves. One by one, many in a call, a hundred in flight with"
    " AsyncClient, and from eight processes. Limits: SETs by redis-py, which check nothing and keep one value.",
    ("puts/s", *SPENT),
    steps,
    (
        Compared("one by one / bare SETs", ONE, "puts/s", (SET,)),
        Compared("put_many / bare SETs in pipelines", MANY, "puts/s", (SETS,)),
        Compared("async, in flight / one by one", FLIGHT, "puts/s", (ONE,)),
        Compared("8 producers / one", PRODUCERS, "puts/s", (ONE,)),
    ),
)
