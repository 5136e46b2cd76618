"""Other queues on Redis: how each is started, fed and ended. Their own code for it lies in apps/, as do all jobs."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.benchmark import Unmeasured
from tests.bench.marks import VARIABLE

APPS = Path(__file__).parent / "apps"


@dataclass(frozen=True)
class Peer:
    """`worker` is the command of one main process; {bin} stands for its environment's folder, {url} for the server."""

    name: str
    worker: tuple[str, ...]
    jobs: int  # of some seconds
    mains: int = 1  # 2: it has no pool, so there is one for each worker process
    forks: bool = False  # for each job

    @property
    def app(self) -> str:
        return f"{self.name}_app"


PYTHON = (
    Peer("taskiq", ("{bin}/taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING"), 30_000),
    Peer("huey", ("{bin}/huey_consumer", "-k", "process", "-w", "2", "-q", "huey_app.huey"), 25_000),
    Peer("saq", ("{bin}/saq", "saq_app.settings", "--workers", "2"), 18_000),
    Peer("dramatiq", ("{bin}/dramatiq", "dramatiq_app", "-p", "2"), 18_000),
    Peer("rwq", ("{bin}/python", "rwq_app.py"), 14_000, mains=2),
    Peer("celery", ("{bin}/celery", "-A", "celery_app", "worker", "-c", "2", "-l", "WARNING"), 5_000),
    Peer("tasktiger", ("{bin}/python", "tasktiger_app.py"), 2_000, mains=2, forks=True),
    Peer("arq", ("{bin}/arq", "arq_app.WorkerSettings", "--custom-log-dict", "arq_app.LOG"), 1_000, mains=2),
    Peer("rq", ("{bin}/rq", "worker-pool", "-q", "-n", "2", "-u", "{url}", "default"), 600, forks=True),
)
SIDEKIQ = Peer("sidekiq", ("sidekiq", "-r", "./sidekiq_app.rb"), 100_000, mains=2)
ALL = (*PYTHON, SIDEKIQ)


class Installed:
    """A peer that is there, on one server."""

    def __init__(self, peer: Peer, folder: Path | None, url: str, marks: str, log: Path) -> None:
        self._peer = peer
        self._programs = {"bin": str(folder / peer.name / "bin") if folder else "", "url": url}
        self._log = log
        self._environment = os.environ | {"BENCH_URL": url, VARIABLE: marks, "PYTHONPATH": str(APPS)}

    def put(self, first: int, count: int) -> None:
        self._produce("backlog", first, count)

    def put_paced(self, count: int, gap_s: float) -> list[float]:
        """The moment before each."""
        return list(json.loads(self._produce("paced", count, gap_s).splitlines()[-1]))

    def _produce(self, *arguments: object) -> str:
        if self._peer is SIDEKIQ:
            command = ["ruby", f"{self._peer.app}.rb"]
        else:
            command = [f"{self._programs['bin']}/python", "produce.py", self._peer.app]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            cwd=APPS, env=self._environment, capture_output=True, text=True, timeout=600, start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            raise Unmeasured(f"it takes no jobs: {_last_line(done.stderr)}")
        return done.stdout

    @contextmanager
    def working(self) -> Iterator[list[int]]:
        """Two worker processes, however many mains that needs: the mains' pids. All of them are killed in the end."""
        command = [part.format(**self._programs) for part in self._peer.worker]
        mains = [self._start(command) for _ in range(self._peer.mains)]
        try:
            yield [main.pid for main in mains]
        finally:
            _kill_trees(main.pid for main in mains)
            for main in mains:
                main.wait()

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=APPS, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def missing(peer: Peer, folder: Path | None) -> str | None:
    """Why it cannot be measured here; None: it can."""
    if peer is SIDEKIQ:
        return None if shutil.which("sidekiq") else "sidekiq is not on PATH"
    if folder is None:
        return "no --peers DIR was given"
    program = Path(peer.worker[0].format(bin=folder / peer.name / "bin"))
    return None if program.exists() else f"there is no {peer.name}/bin/{program.name} in the folder of --peers"


def _kill_trees(mains: Iterable[int]) -> None:
    """These and all below them. They are stopped first, so that none starts another meanwhile."""
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


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it has said nothing"
