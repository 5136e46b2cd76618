"""Measures no-op jobs per second of two children, reused, forked per job or asynchronous, and their limits."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from supervisor.engine.model import scripts
from supervisor.engine.model.outcomes import Completed
from tests.bench.bench import FILLER, Bench
from tests.bench.benchmark import Benchmark, Compared, Step, step
from tests.bench.calls import leasing, settling
from tests.bench.pool import ASYNC_HANDLERS, BESIDE_HANDLERS, HANDLERS, SOURCE, SPENT, per_job
from tests.bench.server import PREFIX

ENGINE, ENGINE_0 = "engine alone, batch 64", "engine alone, batch 64, jobs-history 0"
REUSED, REUSED_0 = "2 children, reused", "2 children, reused, jobs-history 0"
ASYNC = "2 children, reused, async handler"
BESIDE = "2 children, 200 jobs beside each other"
FORKS, FORKED = "bare fork + exit + wait", "2 children, fork per job"
LARGE_MB = 150
FORKED_LARGE = f"2 children, fork per job, an application of {LARGE_MB} MB"
BATCH = 64

BARE_FORKS = """
import gc, os, sys, time
sys.path.insert(0, "")
import supervisor.zygote.zygote
from supervisor.child import loading
loading.load("handlers")
gc.collect(); gc.freeze()
forks = int(sys.argv[1])
began, spent_s = time.perf_counter(), sum(os.times()[:4])
for _ in range(forks):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print(forks / (time.perf_counter() - began), (sum(os.times()[:4]) - spent_s) / forks * 1e6)
"""


def pool(
    bench: Bench, jobs: int, *flags: str, megabytes: int = 0, handlers: str = HANDLERS, **config: int
) -> dict[str, float]:
    """Measure a backlog from a tenth to nine tenths of its jobs."""
    bench.server.clear(**config)
    bench.server.put(jobs)
    with bench.pool("--processes", "2", *flags, megabytes=megabytes, handlers=handlers) as running:
        running.until_left(jobs * 9 // 10)
        left, before = bench.server.waiting(), running.snapshot()
        running.until_left(jobs // 10)
        done, after = left - bench.server.waiting(), running.snapshot()
    return per_job(before, after, done)


def engine_alone(bench: Bench, jobs: int, **config: int) -> dict[str, float]:
    """A loop of lease 64 and settle 64 on one connection: nothing runs the jobs."""
    bench.server.clear(**config)
    bench.server.put(jobs)
    connection = bench.server.redis
    for script in (scripts.LEASE, scripts.SETTLE):
        connection.script_load(script.text)
    lease = leasing.lease(FILLER, ["default"], BATCH)
    began, spent_s, done = time.perf_counter(), bench.server.spent_s(), 0
    ours_s = time.process_time()
    while leases := lease.parse(connection.execute_command(*lease.wire(PREFIX))).leases:
        settle = settling.settle(FILLER, [Completed(one) for one in leases])
        settle.parse(connection.execute_command(*settle.wire(PREFIX)))
        done += len(leases)
    took_s, ours_s = time.perf_counter() - began, time.process_time() - ours_s
    spent_s = bench.server.spent_s() - spent_s
    return {"jobs/s": done / took_s, "server µs": spent_s / done * 1e6, "sum µs": (spent_s + ours_s) / done * 1e6}


def bare_forks(forks: int) -> dict[str, float]:
    """fork + exit + wait of an image like the zygote's, one after the other."""
    with tempfile.TemporaryDirectory(prefix="lh-bench-") as directory:
        handlers = Path(directory, "handlers")
        handlers.mkdir()
        (handlers / "__init__.py").touch()
        (handlers / "bench.py").write_text(HANDLERS)
        done = subprocess.run(
            [sys.executable, "-c", BARE_FORKS, str(forks)],
            cwd=directory, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    rate, spent_us = map(float, done.stdout.split())
    return {"jobs/s": rate, "sum µs": spent_us}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs, forks = bench.amount(60_000, 4_000), bench.amount(2_000, 200)
    reuse, fork = ("--jobs-per-child", "0"), ("--jobs-per-child", "1")
    yield [
        step(ENGINE, lambda: engine_alone(bench, jobs)),
        step(REUSED, lambda: pool(bench, jobs, *reuse)),
        step(ENGINE_0, lambda: engine_alone(bench, jobs, jobs_history=0)),
        step(REUSED_0, lambda: pool(bench, jobs, *reuse, jobs_history=0)),
        step(ASYNC, lambda: pool(bench, jobs, *reuse, handlers=ASYNC_HANDLERS)),
        step(BESIDE, lambda: pool(bench, jobs, handlers=BESIDE_HANDLERS)),
        step(FORKS, lambda: bare_forks(forks)),
        step(FORKED, lambda: pool(bench, forks, *fork)),
        step(FORKED_LARGE, lambda: pool(bench, forks // 2, *fork, megabytes=LARGE_MB)),
    ]


THROUGHPUT = Benchmark(
    "throughput",
    "No-op jobs through `leasehold run --processes 2`, reused and forked per job. From a tenth of a backlog to nine"
    " tenths, at the defaults (fencing, history, statistics, one log line per job). Limits: a bare loop of lease 64 and"
    " settle 64 on one connection; a bare loop of fork, exit and wait of an image like the zygote's. Processor time is"
    " per job, by part; the sum is of all processes, the loops too.",
    ("jobs/s", *SPENT),
    steps,
    (
        Compared("reused / engine alone", REUSED, "jobs/s", (ENGINE,), least=0.6),
        Compared("reused / engine alone, processor time", REUSED, "sum µs", (ENGINE,)),
        Compared("reused / engine alone, jobs-history 0", REUSED_0, "jobs/s", (ENGINE_0,)),
        Compared("async / sync handler", ASYNC, "jobs/s", (REUSED,)),
        Compared("beside each other / one at a time, processor time", BESIDE, "sum µs", (ASYNC,)),
        Compared("fork per job / bare forks", FORKED, "jobs/s", (FORKS,), least=0.7),
        Compared("fork per job / bare forks, processor time", FORKED, "sum µs", (FORKS,)),
        Compared(f"fork per job, {LARGE_MB} MB / small", FORKED_LARGE, "jobs/s", (FORKED,)),
    ),
)
