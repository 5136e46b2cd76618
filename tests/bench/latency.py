"""Measures the time from a put to the handler's first line, on an idle pool and with half of its children busy."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, Unmeasured, limit, step
from tests.bench.figures import quantile
from tests.bench.marks import Marks
from tests.bench.server import Server

SOCKETS, BLPOP = "socketpair, there and back", "bare BLPOP: pushed → popped"
IDLE, IDLE_FORKED = "idle, reused", "idle, fork per job"
MANY_QUEUES = 1000
GLOB = f"idle, reused, {MANY_QUEUES:,} queues by glob"
SIGNALLED = "signal to a job that waits for it, reused"
BUSY, BUSY_FORKED = "one of 2 children busy, reused", "one of 2 children busy, fork per job"
P50, P99, MOST = "p50 ms", "p99 ms", "most ms"
COLUMNS = (P50, P99, MOST)
#: Between two puts: the pool has come to rest again.
GAP_S = 0.02
#: Time of the handler `nap`, so that one child of two is at work at each put.
NAP_S = 0.01
#: Numbers of jobs that are not measured.
WARM = 10_000_000

ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as end:
    while data := end.recv(64):
        end.send(data)
"""
POPPER = """
import os, struct, sys, time, redis
record = struct.Struct("<dQQ")
marks = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
with redis.Redis.from_url(sys.argv[1], protocol=2) as connection:
    while True:
        _, number = connection.blpop("bell")
        os.write(marks, record.pack(time.monotonic(), os.getpid(), int(number)))
"""


def spread_of(seconds: Sequence[float]) -> dict[str, float]:
    return {P50: quantile(seconds, 0.5) * 1000, P99: quantile(seconds, 0.99) * 1000, MOST: max(seconds) * 1000}


def paced(times: int, gap_s: float, act: Callable[[int], object]) -> list[float]:
    """Call `act` at intervals of at least `gap_s`, and return the moment before each call."""
    moments, next_at = [], time.monotonic()
    for n in range(times):
        time.sleep(max(0.0, next_at - time.monotonic()))
        moments.append(time.monotonic())
        next_at = moments[-1] + gap_s
        act(n)
    return moments


def until_started(marks: Marks, moments: Sequence[float]) -> list[float]:
    """Return the time from each moment to the start of the job of its number."""
    started = {mark.job: mark.at for mark in reversed(marks.all())}
    if missed := [n for n in range(len(moments)) if n not in started]:
        raise Unmeasured(f"{len(missed)} of {len(moments)} jobs have not started, others more than once")
    return [started[n] - moment for n, moment in enumerate(moments)]


def put_to_start(
    bench: Bench, puts: int, gap_s: float, klass: str, *flags: str, queues: Sequence[str] = ("default",)
) -> dict[str, float]:
    """Measure the time from put to start with two children. Each job goes into the next of the queues."""
    bench.server.clear()
    bench.marks.clear()
    with bench.pool("--processes", "2", *flags, marks=bench.marks.path) as pool, bench.server.client() as client:
        into = [client.queue(name) for name in queues]
        warm = max(20, len(into))
        for n in range(warm):
            into[n % len(into)].put(klass, WARM + n)
        bench.marks.wait(warm, pool.is_alive)
        pool.until_at_rest()
        # A step that shares no factor with the number of queues: none is put into twice, and none after its neighbour.
        moments = paced(puts, gap_s, lambda n: into[n * 389 % len(into)].put(klass, n))
        bench.marks.wait(warm + puts, pool.is_alive)
    return spread_of(until_started(bench.marks, moments))


def signal_to_start(bench: Bench, signals: int, *flags: str) -> dict[str, float]:
    """Measure the time from a signal to the start of the job that waits for it. All jobs wait from the beginning."""
    bench.server.clear()
    bench.marks.clear()
    with bench.pool("--processes", "2", *flags, marks=bench.marks.path) as pool, bench.server.client() as client:
        queue = client.queue("default")
        jids = queue.put_many({"klass": "bench.wait", "data": n} for n in range(signals))
        while queue.counts().scheduled < signals:
            if not pool.is_alive():
                raise Unmeasured("the pool has ended before its jobs waited")
            time.sleep(GAP_S)
        pool.until_at_rest()
        moments = paced(signals, GAP_S, lambda n: client.signal(jids[n], "go"))
        bench.marks.wait(signals, pool.is_alive)
    return spread_of(until_started(bench.marks, moments))


def by_glob(bench: Bench, puts: int, *flags: str) -> dict[str, float]:
    """Measure many queues of which at most one has a job. The supervisor serves them by their common beginning."""
    queues = [f"tenant-{n}" for n in range(bench.amount(MANY_QUEUES, 50))]
    return put_to_start(bench, puts, GAP_S, "bench.mark", "--queue", "tenant-*", *flags, queues=queues)


def through_sockets(times: int) -> dict[str, float]:
    """Measure the way to another process and back, at the rate of the puts."""
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", ECHO, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True):
            theirs.close()
            took = []

            def there_and_back(_n: int) -> None:
                began = time.perf_counter()
                ours.send(b"x" * 64)
                ours.recv(64)
                took.append(time.perf_counter() - began)

            there_and_back(-1)
            paced(times, GAP_S, there_and_back)
            ours.close()
    return spread_of(took[1:])


def through_blpop(server: Server, marks: Marks, times: int) -> dict[str, float]:
    """Measure the way to a process that waits in nothing but BLPOP."""
    server.clear()
    marks.clear()
    command = [sys.executable, "-c", POPPER, server.url, marks.path]
    with subprocess.Popen(command, start_new_session=True) as popper:
        try:
            server.redis.lpush("bell", WARM)
            marks.wait(1, lambda: popper.poll() is None)
            moments = paced(times, GAP_S, lambda n: server.redis.lpush("bell", n))
            marks.wait(1 + times)
        finally:
            popper.kill()
    return spread_of(until_started(marks, moments))


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    puts = bench.amount(400, 40)
    reused, forked = ("--jobs-per-child", "0"), ("--jobs-per-child", "1")
    yield [
        limit(SOCKETS, lambda: through_sockets(puts)),
        limit(BLPOP, lambda: through_blpop(bench.server, bench.marks, puts)),
        step(IDLE, lambda: put_to_start(bench, puts, GAP_S, "bench.mark", *reused)),
        step(IDLE_FORKED, lambda: put_to_start(bench, puts, GAP_S, "bench.mark", *forked)),
        step(GLOB, lambda: by_glob(bench, puts, *reused)),
        step(SIGNALLED, lambda: signal_to_start(bench, puts, *reused)),
        step(BUSY, lambda: put_to_start(bench, puts, NAP_S, "bench.nap", *reused)),
        step(BUSY_FORKED, lambda: put_to_start(bench, puts, NAP_S, "bench.nap", *forked)),
    ]


LATENCY = Benchmark(
    "latency",
    "From just before a put to the handler's first line. On an idle pool of two children, a put each 20 ms; and at half"
    " of its load: a put each 10 ms of a job that sleeps for 10 ms, so that one child of two is busy. By glob: a put"
    " each 20 ms into another of 1,000 queues, all of which have had a job. A signal each 20 ms"
    " to another of the jobs that wait in `job.wait`. Limits: a packet to another process and back, and a value pushed"
    " to one that waits in BLPOP, both each 20 ms.",
    COLUMNS,
    steps,
    (
        Compared("idle pool, p99 / p50, reused", IDLE, P99, (IDLE,), over_column=P50, most=3),
        Compared("idle pool, p99 / p50, fork per job", IDLE_FORKED, P99, (IDLE_FORKED,), over_column=P50, most=3),
        Compared(f"{MANY_QUEUES:,} queues by glob, p50", GLOB, P50, most=5),
        Compared("signal → running, p99", SIGNALLED, P99, most=20),
        Compared("idle pool / bare BLPOP, p50, reused", IDLE, P50, (BLPOP,)),
        Compared("idle pool / bare BLPOP, p50, fork per job", IDLE_FORKED, P50, (BLPOP,)),
        Compared("half busy / idle, p50, reused", BUSY, P50, (IDLE,)),
        Compared("half busy / idle, p50, fork per job", BUSY_FORKED, P50, (IDLE_FORKED,)),
    ),
)
