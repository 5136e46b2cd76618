"""`leasehold demo`: runs a real pool on a real server, with deliberate crashes, in one command.

Runs in the demo's process. Owns the temporary directory, its server and the `run` subprocess, and removes all of them.
Must not conclude from the log: the proof comes from the engine.
"""

import argparse
import os
import select
import shutil
import signal
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import clock
from supervisor.cli.demo.pool import Log, Pool
from supervisor.cli.lib.connection import arguments
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.progress import ProgressLine
from supervisor.cli.lib.terminal import note, say, table
from supervisor.exit_codes import Exit

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_queues import Queue
    from supervisor.engine.embedded.embedded import Embedded

#: Longest temporary directory. The path below it adds some forty bytes to that of the server's socket.
LONGEST_BASE_BYTES = 50
MOST_JOBS, LEAST_JOBS = 3_000, 1_000
LARGEST_FILE_BYTES = 10**6
#: Twelve failures, each at the job's first attempt only.
TROUBLE = ("segfault", "exit_3", "raise_an_error", "kill_itself", "loop_for_ever", "segfault") * 2
#: The demo takes some seconds. A run of this length has failed.
DEADLINE_S = 300.0
PAGE = 500

EXAMPLES = """\
examples:
  leasehold demo
  leasehold demo --jobs 500

Needs no Redis: it starts a server of its own in a temporary directory. Ctrl-C drains, and reports what was drained."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser(
        "demo",
        description="Tokenize this interpreter's Python files in a real pool, in which a dozen jobs crash on purpose.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--jobs", metavar="N", default=str(MOST_JOBS), help=f"at most so many (default: {MOST_JOBS})")


def run(args: argparse.Namespace) -> int:
    """Run the demo and report. Return 0 if it is proven that no job was lost."""
    if not args.jobs.isdecimal() or not 2 * len(TROUBLE) <= int(args.jobs) <= 100_000:
        raise UsageError(f"--jobs {args.jobs!r} must be a whole number from {2 * len(TROUBLE)} to 100000")
    paths = python_files()
    if not paths:
        raise Refusal("this interpreter has no .py files to work on; its standard library is packed")
    jobs = plan(paths, int(args.jobs))
    with _signals() as signals, _directory() as directory, _server(directory) as server:
        return _perform(jobs, len(set(paths)), server.url, directory, signals)


def python_files() -> list[Path]:
    """Return the .py files of the standard library and site-packages in a fixed order, each once."""
    found: set[Path] = set()
    for scheme in ("stdlib", "purelib", "platlib"):
        for folder, _, names in os.walk(sysconfig.get_paths()[scheme]):
            found.update(Path(folder, name).resolve() for name in names if name.endswith(".py"))
    return sorted(path for path in found if _readable(path))


def plan(paths: Sequence[Path], most: int) -> list[dict[str, Any]]:
    """Return one job per file: a sample of too many files, or too few files repeated."""
    if len(paths) > most:
        chosen = [paths[i * len(paths) // most] for i in range(most)]
    else:
        wanted = max(len(paths), min(most, LEAST_JOBS))
        chosen = [paths[i % len(paths)] for i in range(wanted)]
    jobs = [{"klass": "files.tokens", "data": {"path": str(path)}} for path in chosen]
    for i, name in enumerate(TROUBLE, start=1):
        jobs[i * len(jobs) // (len(TROUBLE) + 1)]["klass"] = f"trouble.{name}"
    return jobs


def _readable(path: Path) -> bool:
    try:
        return path.stat().st_size <= LARGEST_FILE_BYTES and os.access(path, os.R_OK)
    except OSError:  # ENOENT: a dangling link
        return False


def _perform(jobs: list[dict[str, Any]], files: int, url: str, directory: Path, signals: int) -> int:
    from supervisor.engine.client.sync_client import Client

    workdir = directory / "work"
    workdir.mkdir()
    pool = Pool(url, workdir)
    try:
        with Client(url) as client, arguments():
            queue = client.queue("default")
            jids = queue.put_many(jobs)
            interrupted = _watch(pool, queue, len(jobs), signals)
            found = examine(client, queue, jids)
    finally:
        pool.close()
    _report(found, pool.log, interrupted)
    for complaint in pool.log.complaints if not found.proven or pool.exit_code else ():
        note(complaint)
    if pool.exit_code:
        note(f"run ended with exit code {pool.exit_code}")
    return Exit.OK if found.proven and pool.exit_code == 0 else Exit.REFUSED


def _progress_words(log: Log, total: int) -> str:
    words = f"{sum(log.deaths.values())} deaths, {log.raised} exceptions" if log.ready else "importing the handlers"
    return f"{log.settled:,} of {total:,} jobs, {words}"


def _watch(pool: Pool, queue: "Queue", total: int, signals: int) -> bool:
    """Follow the pool until all jobs are settled or a signal comes, then drain it. Return True after a signal."""
    waiter = select.poll()
    for fd in (signals, *pool.filenos()):
        waiter.register(fd, select.POLLIN)
    deadline_at = clock.monotonic() + DEADLINE_S
    look_at = 0.0
    interrupted = False
    with ProgressLine(total, patience_s=0) as progress:
        while pool.running and not interrupted:
            ready = {fd for fd, _ in waiter.poll(200)}
            pool.read_log()
            progress.show(pool.log.settled, _progress_words(pool.log, total))
            now = clock.monotonic()
            if signals in ready:
                os.read(signals, 64)
                interrupted = True
            elif pool.log.settled >= total or now >= look_at:
                look_at = now + 1.0  # the log may have gaps; the engine has none
                if not _left(queue):
                    break
            if now > deadline_at:
                pool.log.complaints.append(f"not done after {DEADLINE_S:g} s")
                break
        if not interrupted:
            pool.end()  # the engine may know of the last outcomes before the log does
            progress.show(pool.log.settled, _progress_words(pool.log, total))
    if interrupted:
        note("draining: what runs may finish, the rest goes back to the queue")
        pool.end()
    return interrupted


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state of every job put, and the queue's size, as the engine reports them after the end."""

    put: int
    states: Counter[str]
    left: int
    lines: int
    code: int
    tokens: int

    @property
    def back(self) -> int:
        """Jobs that wait for another pool."""
        return self.states["waiting"] + self.states["scheduled"]

    @property
    def ended(self) -> int:
        """Jobs with an outcome."""
        return self.states["complete"] + self.states["failed"]

    @property
    def proven(self) -> bool:
        """True if no job is lost: each has an outcome or waits, and the queue holds exactly those that wait."""
        return self.put == self.ended + self.back and self.back == self.left


def examine(client: "Client", queue: "Queue", jids: Sequence[str]) -> FinalState:
    """Read every job in pages, and the queue's counts."""
    states: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for start in range(0, len(jids), PAGE):
        for job in client.jobs(*jids[start : start + PAGE]):
            states[job.state if job else "lost"] += 1
            if job and job.state == "complete":
                sums.update(job.result)
    return FinalState(len(jids), states, _left(queue), sums["lines"], sums["code"], sums["tokens"])


def _left(queue: "Queue") -> int:
    """Return the number of jobs in the queue, in any state."""
    counts = queue.counts()
    return counts.waiting + counts.running + counts.stalled + counts.scheduled


def _report(found: FinalState, log: Log, interrupted: bool) -> None:
    rows: list[tuple[str, object]] = [
        ("files done", found.states["complete"]),
        ("lines", found.lines),
        ("lines with code", found.code),
        ("tokens", found.tokens),
        ("seconds", f"{log.busy_s:.1f}"),
        ("jobs/s", round(log.settled / log.busy_s) if log.busy_s else None),
        ("exceptions, retried", log.raised),
        *((f"deaths by {reason}", count) for reason, count in sorted(log.deaths.items())),
    ]
    if log.again_s:
        p50, worst = sorted(log.again_s)[len(log.again_s) // 2], max(log.again_s)
        rows.append(("a dead child's job ran again after", f"p50 {p50 * 1000:.1f} ms, max {worst * 1000:.1f} ms"))
    table(("what", "how much"), rows)
    if interrupted:
        say(f"Drained: {found.states['complete']:,} completed, {found.back:,} back in the queue.")
    say(
        f"{'Proven' if found.proven else 'NOT PROVEN'}: {found.put:,} put = {found.states['complete']:,} completed"
        f" + {found.states['failed']:,} failed" + (f" + {found.back:,} waiting" if found.back or interrupted else "")
        + f"; left in the queue: {found.left:,}."
    )  # fmt: skip
    if log.dropped:
        note(f"the log has a gap of {log.dropped} lines; times and deaths above may be more")


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor that is readable after Ctrl-C, TERM or HUP, so that the demo ends in order from anywhere."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: None) for number in handled]
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextmanager
def _directory() -> Iterator[Path]:
    # `run` gets the path of the server's socket, which may have about a hundred bytes.
    base = tempfile.gettempdir()
    fits = len(os.fsencode(base)) <= LONGEST_BASE_BYTES
    directory = Path(tempfile.mkdtemp(prefix="leasehold-demo-", dir=base if fits else "/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _server(directory: Path) -> Iterator["Embedded"]:
    """Yield the embedded server of `directory`. Wait for its end, so that the directory can be removed."""
    from supervisor.engine.embedded import keeper
    from supervisor.engine.embedded.embedded import EmbeddedError, acquire

    try:
        server = acquire(directory / "server")
    except EmbeddedError as error:
        raise Refusal(str(error), Exit.UNREACHABLE) from error
    pidfd = os.pidfd_open(int((server.directory / keeper.KEEPER_PID).read_text()))
    try:
        note(f"{server.server} in {directory}, and `leasehold run` with its usual settings")
        with server:
            yield server
    finally:
        select.select([pidfd], [], [], keeper.STOP_S + 5.0)
        os.close(pidfd)
