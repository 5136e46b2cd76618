"""Other queues on Redis: how each is started, fed and ended. Their own code for it lies in apps/, as do all jobs."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.benchmark import Unmeasured
from tests.bench.marks import VARIABLE

APPS = Path(__file__).parent / "apps"


@dataclass(frozen=True)
class Peer:
    """`worker` is the command of one main process, `producer` that which puts jobs; {home} stands for the peer's
    folder, {url} for the server. `needs` are files there, and programs of the PATH. `tells_version` is the command that
    prints its version, if that is not the one of a package in its environment.
    """

    name: str
    worker: tuple[str, ...]
    jobs: int  # of some seconds
    mains: int = 1  # 2: it has no pool, so there is one for each worker process
    producer: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    package: str = ""
    interpreter: str = "{home}/bin/python"
    tells_version: tuple[str, ...] = ()
    puts_many: bool = True  # it has a call for that, or asyncio in which puts are in flight together


def _python(
    name: str, program: str, *arguments: str, jobs: int, mains: int = 1, package: str = "", puts_many: bool = True
) -> Peer:
    """Return a peer that lies in a virtual environment."""
    worker = f"{{home}}/bin/{program}"
    producer = ("{home}/bin/python", "produce.py", f"{name}_app")
    return Peer(name, (worker, *arguments), jobs, mains, producer, (worker,), package or name, puts_many=puts_many)


PYTHON = (
    _python("taskiq", "taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING", jobs=30_000),
    _python("huey", "huey_consumer", "-k", "process", "-w", "2", "-q", "huey_app.huey", jobs=25_000, puts_many=False),
    _python("saq", "saq", "saq_app.settings", "--workers", "2", jobs=18_000),
    _python("dramatiq", "dramatiq", "dramatiq_app", "-p", "2", jobs=18_000, puts_many=False),
    _python("rwq", "python", "rwq_app.py", jobs=14_000, mains=2, package="redis_work_queue"),
    _python("celery", "celery", "-A", "celery_app", "worker", "-c", "2", "-l", "WARNING", jobs=5_000, puts_many=False),
    _python("tasktiger", "python", "tasktiger_app.py", jobs=2_000, mains=2, puts_many=False),
    _python("arq", "arq", "arq_app.WorkerSettings", "--custom-log-dict", "arq_app.LOG", jobs=1_000, mains=2),
    _python("rq", "rq", "worker-pool", "-q", "-n", "2", "-u", "{url}", "default", jobs=600),
)
OTHERS = (
    Peer(
        "sidekiq", ("sidekiq", "-r", "./sidekiq_app.rb"), 100_000, 2, ("ruby", "sidekiq_app.rb"), ("sidekiq", "ruby"),
        interpreter="ruby", tells_version=("sidekiq", "--version"),
    ),
    Peer(
        "bullmq", ("node", "bullmq_app.js", "work"), 35_000, 2, ("node", "bullmq_app.js"),
        ("node", "{home}/node_modules/bullmq", "{home}/node_modules/ioredis"),
        interpreter="node", tells_version=("node", "-p", "require('{home}/node_modules/bullmq/package.json').version"),
    ),
)  # fmt: skip
ALL = (*PYTHON, *OTHERS)


class Installed:
    """A peer that is there, on one server."""

    def __init__(
        self, peer: Peer, folder: Path | None, url: str, marks: str, log: Path, path: Sequence[str] = ()
    ) -> None:
        self._peer = peer
        self._producer = command(peer.producer, peer, folder, url)
        self._worker = command(peer.worker, peer, folder, url)
        self._log = log
        self._environment = os.environ | {
            "BENCH_URL": url, "BENCH_HOME": home(peer, folder), VARIABLE: marks,
            "PYTHONPATH": os.pathsep.join((str(APPS), *path)),
        }  # fmt: skip

    def put(self, first: int, count: int) -> None:
        self._produce("backlog", first, count)

    def put_paced(self, count: int, gap_s: float) -> list[float]:
        """The moment before each."""
        return list(json.loads(self._produce("paced", count, gap_s).splitlines()[-1]))

    def rate(self, how: str, count: int) -> tuple[float, float]:
        """Seconds, and seconds of processor time, that so many puts take, "one" by one or "many" in a call."""
        took_s, spent_s = json.loads(self._produce("rate", how, count).splitlines()[-1])
        return took_s, spent_s

    def _produce(self, *arguments: object) -> str:
        done = subprocess.run(
            [*self._producer, *map(str, arguments)],
            cwd=APPS, env=self._environment, capture_output=True, text=True, timeout=600, start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            raise Unmeasured(f"it takes no jobs: {' '.join(done.stderr.split()[-20:])}")
        return done.stdout

    @contextmanager
    def working(self) -> Iterator[list[int]]:
        """Run two worker processes, and yield the pids of the mains that they need. All are killed in the end."""
        mains = [self._start() for _ in range(self._peer.mains)]
        try:
            yield [main.pid for main in mains]
        finally:
            killed = _kill_trees(main.pid for main in mains)
            for main in mains:
                main.wait()
            _reap(killed)

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._worker, cwd=APPS, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def home(peer: Peer, folder: Path | None) -> str:
    return str(folder / peer.name) if folder else ""


def missing(peer: Peer, folder: Path | None) -> str | None:
    """Return why a peer cannot be measured here. None: it can."""
    for need in peer.needs:
        if need.startswith("{home}"):
            if folder is None:
                return "no --peers DIR was given"
            if not Path(need.format(home=home(peer, folder))).exists():
                return f"there is no {need.format(home=peer.name)} in the folder of --peers"
        elif shutil.which(need) is None:
            return f"{need} is not on PATH"
    return None


def command(parts: Iterable[str], peer: Peer, folder: Path | None, url: str = "") -> list[str]:
    return [part.format(home=home(peer, folder), url=url) for part in parts]


def _kill_trees(mains: Iterable[int]) -> list[int]:
    """Kill processes and all their descendants, and return their pids, parents first.

    All of them are stopped before the first is killed, so that none starts another meanwhile.
    """
    found: dict[int, psutil.Process] = {}
    new = [process for pid in mains for process in _living(pid)]
    while new:
        for process in new:
            found[process.pid] = process
            _send(process.suspend)
        below = [child for process in found.values() for child in _below(process)]
        new = [process for process in below if process.pid not in found]
    for process in found.values():
        _send(process.kill)
    return list(found)


def _reap(pids: Iterable[int]) -> None:
    """Reap processes that their parents have left to us. The time that they used then counts as ours."""
    for pid in pids:
        with suppress(ChildProcessError):  # its parent has, or it is not ours as we are no subreaper
            os.waitpid(pid, 0)


def _living(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _send(signal: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        signal()
