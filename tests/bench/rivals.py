"""Compares Leasehold with other queues over TCP. Two worker processes run a job that writes its start."""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from supervisor.engine.client.sync_client import Client
from tests.bench import accounts, peers
from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, Unmeasured, step
from tests.bench.latency import COLUMNS, GAP_S, P50, WARM, paced, spread_of, until_started
from tests.bench.marks import VARIABLE
from tests.bench.peers import APPS, Installed, Peer
from tests.bench.pool import BESIDE_HANDLERS, HANDLERS
from tests.bench.server import NAMESPACE
from tests.bench.web_server import WebServer

REUSED, FORKED = "leasehold, reused", "leasehold, fork per job"
BESIDE = "leasehold, 200 beside each other"
OVER_HTTP = "leasehold, over HTTP from Node"
REUSED_0, QUIET = "leasehold, reused, jobs-history 0", "leasehold, reused, log-level warning"
RATE, WORKERS, SERVER, SUM = "jobs/s", "workers µs", "server µs", "sum µs"
REUSE, FORK = ("--jobs-per-child", "0"), ("--jobs-per-child", "1")
WARM_JOBS = 20
#: A peer that has run its first jobs comes to rest in this time.
REST_S = 1.0
#: Puts a number of jobs at an interval (s), and returns the moment before each put.
Paced = Callable[[int, float], Sequence[float]]
PYTHON = tuple(peer.name for peer in peers.PYTHON)
EVERY = tuple(peer.name for peer in peers.ALL)


class Race:
    """Measures a backlog from a tenth to nine tenths of its jobs, by the starts that they have written."""

    def __init__(self, bench: Bench, jobs: int) -> None:
        self._bench = bench
        self._jobs = jobs

    def measure(self, mains: Sequence[int]) -> dict[str, float]:
        began, ended = self._jobs // 10, self._jobs * 9 // 10
        before, after = self._look(mains, began), self._look(mains, ended)
        at = sorted(mark.at for mark in self._bench.marks.all())
        done = after[0] - before[0]
        workers, server = ((after[i] - before[i]) / done * 1e6 for i in (1, 2))
        rate = (ended - began) / (at[ended - 1] - at[began - 1])
        return {RATE: rate, WORKERS: workers, SERVER: server, SUM: workers + server}

    def _look(self, mains: Sequence[int], started: int) -> tuple[int, float, float]:
        """Wait for `started` jobs. Return how many there are, and the processor time of workers and server."""
        self._bench.marks.wait(started, lambda: alive(mains))
        return self._bench.marks.count(), accounts.tree_spent_s(mains), self._bench.server.spent_s()


def alive(mains: Sequence[int]) -> bool:
    """Return whether none of the main processes has ended."""
    return all(accounts.spent_s(pid) > 0 for pid in mains)


def alone(bench: Bench) -> None:
    """Empty the server and the record of starts."""
    bench.server.clear()
    bench.marks.clear()


@contextmanager
def our_pool(bench: Bench, *flags: str, handlers: str = HANDLERS) -> Iterator[list[int]]:
    """Yield the pid of our main process."""
    url, marks = bench.server.tcp_url, bench.marks.path
    with bench.pool("--processes", "2", *flags, url=url, marks=marks, handlers=handlers) as pool:
        yield [pool.pid]


def ours(bench: Bench, jobs: int, *flags: str, handlers: str = HANDLERS, **config: int) -> dict[str, float]:
    alone(bench)
    bench.server.configure(**config)
    with bench.server.client() as client:
        client.queue("default").put_many({"klass": "bench.mark", "data": n} for n in range(jobs))
    with our_pool(bench, *flags, handlers=handlers) as mains:
        return Race(bench, jobs).measure(mains)


def over_http(bench: Bench, jobs: int) -> dict[str, float]:
    """Measure two workers that are no Python and lease 100 jobs per request from one `leasehold web`."""
    alone(bench)
    with bench.server.client() as client:
        client.queue("default").put_many({"klass": "bench.mark", "data": n} for n in range(jobs))
    token = secrets.token_urlsafe()
    with ExitStack() as stack:
        web = stack.enter_context(closing(WebServer(bench.server, bench.directory, bench.server.tcp_url, token)))
        told = {"BENCH_URL": f"http://127.0.0.1:{web.port}", "BENCH_TOKEN": token, VARIABLE: bench.marks.path}
        mains = [web.pid]
        for _ in range(2):
            worker = subprocess.Popen(
                ["node", APPS / "leasehold_http.mjs"], env=os.environ | told, stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            mains.append(worker.pid)
        return Race(bench, jobs).measure(mains)


def theirs(bench: Bench, peer: Peer) -> dict[str, float]:
    alone(bench)
    jobs = bench.amount(peer.jobs, max(200, peer.jobs // 20))
    with peer_at_hand(bench, peer) as found:
        found.put(0, jobs)
        with found.working() as mains:
            return Race(bench, jobs).measure(mains)


@contextmanager
def peer_at_hand(bench: Bench, peer: Peer) -> Iterator[Installed]:
    """Yield a peer that is ready to run. An error that it causes quotes the last line of its log."""
    log = bench.directory / f"{peer.name}.log"
    log.unlink(missing_ok=True)
    try:
        yield Installed(peer, bench.peers, bench.server.tcp_url, bench.marks.path, log)
    except Unmeasured as why:
        words = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        raise Unmeasured(f"{why}; its last words: {words[-1] if words else 'none'}") from why


def of_peers(bench: Bench, measure: Callable[[Bench, Peer], Mapping[str, float]]) -> list[Step]:
    """Return one step for each peer."""
    return [
        Step(
            (peer.name,), lambda peer=peer: {peer.name: measure(bench, peer)}, peers.missing(peer, bench.peers),
            is_ours=False,
        )
        for peer in peers.ALL
    ]  # fmt: skip


@contextmanager
def races(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs, forks = bench.amount(100_000, 5_000), bench.amount(2_000, 200)
    yield [
        step(REUSED, lambda: ours(bench, jobs, *REUSE)),
        step(REUSED_0, lambda: ours(bench, jobs, *REUSE, jobs_history=0)),
        step(QUIET, lambda: ours(bench, jobs, *REUSE, "--log-level", "warning")),
        step(BESIDE, lambda: ours(bench, jobs, handlers=BESIDE_HANDLERS)),
        step(FORKED, lambda: ours(bench, forks, *FORK)),
        Step(
            (OVER_HTTP,), lambda: {OVER_HTTP: over_http(bench, bench.amount(50_000, 5_000))},
            None if shutil.which("node") else "node is not on PATH",
        ),
        *of_peers(bench, theirs),
    ]  # fmt: skip


def put_to_start(bench: Bench, mains: Sequence[int], warm: Callable[[], object], paced: Paced) -> dict[str, float]:
    """Measure an idle pool, after some jobs that are not counted."""
    puts = bench.amount(200, 30)
    warm()
    bench.marks.wait(WARM_JOBS, lambda: alive(mains))
    time.sleep(REST_S)
    moments = paced(puts, GAP_S)
    bench.marks.wait(WARM_JOBS + puts, lambda: alive(mains))
    return spread_of(until_started(bench.marks, moments))


def our_latency(bench: Bench, *flags: str) -> dict[str, float]:
    alone(bench)
    with our_pool(bench, *flags) as mains, Client(bench.server.tcp_url, NAMESPACE) as client:
        queue = client.queue("default")

        def warm() -> None:
            queue.put_many({"klass": "bench.mark", "data": WARM + n} for n in range(WARM_JOBS))

        def put_paced(puts: int, gap_s: float) -> list[float]:
            return paced(puts, gap_s, lambda n: queue.put("bench.mark", n))

        return put_to_start(bench, mains, warm, put_paced)


def their_latency(bench: Bench, peer: Peer) -> dict[str, float]:
    alone(bench)
    with peer_at_hand(bench, peer) as found, found.working() as mains:
        return put_to_start(bench, mains, lambda: found.put(WARM, WARM_JOBS), found.put_paced)


@contextmanager
def latencies(bench: Bench) -> Iterator[Sequence[Step]]:
    yield [
        step(REUSED, lambda: our_latency(bench, *REUSE)),
        step(FORKED, lambda: our_latency(bench, *FORK)),
        *of_peers(bench, their_latency),
    ]


PEERS = Benchmark(
    "peers",
    "Jobs per second and processor time, beside other queues. The same job for all: it appends a record of 24 bytes to"
    " a file in memory, by which it is counted. Two worker processes, everything enqueued beforehand, no results kept,"
    " over TCP; the peers log warnings only, Leasehold by default a line for each job. Workers: all processes on the"
    " worker's side.",
    (RATE, WORKERS, SERVER, SUM),
    races,
    (
        Compared("reused / fastest Python peer", REUSED, RATE, PYTHON, least=5),
        Compared("reused / Sidekiq", REUSED, RATE, ("sidekiq",), least=1.8),
        Compared("reused / fastest Python peer, jobs-history 0", REUSED_0, RATE, PYTHON, least=6),
        Compared("reused / Sidekiq, jobs-history 0", REUSED_0, RATE, ("sidekiq",), least=2),
        Compared("200 beside each other / taskiq", BESIDE, RATE, ("taskiq",), least=2),
        Compared("processor time of a job, 200 beside each other / taskiq", BESIDE, SUM, ("taskiq",)),
        Compared("over HTTP from Node / redis-work-queue", OVER_HTTP, RATE, ("rwq",), least=1),
        Compared("fork per job / RQ", FORKED, RATE, ("rq",), least=6),
        Compared("fork per job / TaskTiger", FORKED, RATE, ("tasktiger",), least=2),
        Compared("processor time of a job / least of all peers", REUSED, SUM, EVERY, most=0.45, best="least"),
        Compared("processor time of a job / least of Python peers", REUSED, SUM, PYTHON, best="least"),
        Compared("processor time of a job, jobs-history 0 / least of all peers", REUSED_0, SUM, EVERY, best="least"),
        Compared("processor time of a job, fork per job / RQ", FORKED, SUM, ("rq",)),
        Compared("processor time of a job, fork per job / TaskTiger", FORKED, SUM, ("tasktiger",)),
        Compared("log-level warning / at defaults", QUIET, RATE, (REUSED,)),
    ),
)  # fmt: skip

PEERS_LATENCY = Benchmark(
    "peers-latency",
    "From just before a put to the job's first line, beside other queues. Idle, a put each 20 ms; else as in `peers`.",
    COLUMNS,
    latencies,
    (
        *(
            Compared(f"put → start, p50 / {peer}, {how}", row, P50, (peer.lower(),), most=1)
            for peer in ("Huey", "Sidekiq")
            for row, how in ((REUSED, "reused"), (FORKED, "fork per job"))
        ),
    ),
)
