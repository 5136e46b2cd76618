"""Real supervisors under test: started as a user starts them, watched through their log, the ledger and Redis.

A Stage is one test's world: a directory, a namespace, a ledger, gates, and the pools it starts.
"""

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job
from supervisor.engine.worker.push_listeners import MOST_LISTENERS
from supervisor.linux import removal
from tests.environment import without_settings
from tests.layouts import set_options
from tests.lengths import PATIENCE, SOON_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Keys that a namespace may keep for good, by the part after its prefix.
_KEPT = (
    "batch:",
    "batchcalls:",
    "stream:",
    "job:",
    "data:",
    "failure:",
    "result:",
    "history:",
    "tags:",
    "tag:",
    "failed:",
    "stats:",
    "histogram:",
    "bins:",
    "recent:",
    "course:",
    "progress:",
    "saved:",
    "parents:",
    "readers:",
    "keptresult:",
    "keptfailure:",
    "replay:",
    "schema:",
)
_KEPT_WHOLE = {
    "batches-ended",
    "complete",
    "failed",
    "groups",
    "queues",
    "idle",
    "quiet",
    "seq",
    "token",
    "config",
    "options",
    "tracked",
    "workers",
    "failed-dropped",
    "days",
    "histograms",
    "tags",
    "tag-counts",
    "cancelled",
    "cancelled-by",
    "audit",
    "unheard",
    "declared",
    "kept",
}


@dataclass(frozen=True)
class Start:
    """One line of the ledger: a job has started."""

    jid: str
    attempt: int
    pid: int
    unix: float


class Ledger:
    """The starts that handlers report through a named pipe: each line whole, in the order of the writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._starts: list[Start] = []
        self._left: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read the lines that have come. Callable from any thread."""
        with self._lock:
            while True:
                try:
                    chunk = os.read(self.fd, 65536)
                except BlockingIOError:
                    return
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    jid, attempt, pid, unix, _klass = line.decode().split(" ", 4)
                    if attempt == "left":
                        self._left.append((jid, int(pid)))
                    else:
                        self._starts.append(Start(jid, int(attempt), int(pid), float(unix)))

    def starts(self, *jids: str) -> list[Start]:
        """Return all starts, or those of these jobs, in their order."""
        self.read()
        with self._lock:
            return [start for start in self._starts if not jids or start.jid in jids]

    def order(self) -> list[str]:
        """Return the jids in the order of their starts."""
        return [start.jid for start in self.starts()]

    def left_behind(self, jid: str) -> list[int]:
        """Return the pids of processes that the job has left."""
        self.read()
        with self._lock:
            return [pid for owner, pid in self._left if owner == jid]

    def close(self) -> None:
        os.close(self.fd)


class Pool:
    """One supervisor, started by `command`. `is_present`: it has no PID namespace of its own."""

    def __init__(self, stage: "Stage", command: list[str], environment: dict[str, str],
                 directory: Path, *, is_present: bool = True) -> None:  # fmt: skip
        self.stage = stage
        self.number = len(stage.pools) + 1
        self.is_present = is_present
        self.said: list[str] = []  # lines that are not events
        self.events: list[dict[str, Any]] = []
        self._children: dict[int, bool] = {}
        self.closed = False
        self.push_listeners = 0  # how many wait when it is idle
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)
        assert self.process.stderr is not None
        self._pipe = self.process.stderr
        self._reader = threading.Thread(target=self._read_log, name=f"log-{self.number}", daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        for line in self._pipe:
            with self.stage.news:
                try:
                    event = json.loads(line)
                    self.events.append(event)
                    self._count_child(event)
                    self.stage.note(self, event)
                except ValueError:
                    self.said.append(line.decode(errors="replace"))
                self.stage.news.notify_all()

    # what it says

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events so far with this name and these fields."""
        return [e for e in list(self.events) if e["event"] == event and _has(e, fields)]

    def wait_for(self, event: str, *, nth: int = 1, timeout_s: float = 20.0, **fields: Any) -> dict[str, Any]:
        """Return the nth event of this name and with these fields. The deadline is an assertion."""
        self.stage.wait_until(
            lambda: len(self.find(event, **fields)) >= nth, f"{event} {fields} number {nth} from {self}", timeout_s
        )
        return self.find(event, **fields)[nth - 1]

    def wait_ready(self) -> "Pool":
        """Wait until it has connected and its children are ready."""
        self.wait_for("master.started")
        self.wait_for("child.ready")
        return self

    # what it does

    @property
    def zygote_pid(self) -> int:
        """Return the pid of the last zygote."""
        self.wait_for("zygote.spawned")  # its handlers may be imported before the log is read
        return int(self.find("zygote.spawned")[-1]["pid"])

    @property
    def worker(self) -> str:
        return str(self.find("master.started")[0]["worker"])

    def child_pids(self) -> list[int]:
        """Return the pids of children that are spawned and not reaped, by the log."""
        return list(self._children)

    def _count_child(self, event: dict[str, Any]) -> None:
        if event["event"] == "child.spawned":
            self._children[event["pid"]] = True
        elif event["event"] == "child.reaped":
            self._children.pop(event["pid"], None)

    def send(self, signo: int) -> float:
        """Send the master a signal. Return when (monotonic s)."""
        now_at = time.monotonic()
        signal.pidfd_send_signal(self.pidfd, signo)
        return now_at

    def send_group(self, signo: int) -> None:
        """Send a signal to the master's group and every child, as a terminal or a service manager does."""
        os.killpg(self.pid, signo)
        for pid in self.child_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signo)

    def wait(self, timeout_s: float = 40.0) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(timeout_s * PATIENCE)
        self._reader.join(SOON_S)
        return code

    def drain(self, timeout_s: float = 40.0) -> int:
        """Send SIGTERM, and return the exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    def close(self) -> None:
        """Kill it if it still runs. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.process.wait()
        self._reader.join(1.0)
        os.close(self.pidfd)

    def __repr__(self) -> str:
        return f"pool {self.number}"


class Stage:
    def __init__(self, directory: Path, server: Any, namespace: str, client: Any) -> None:
        self.directory = directory
        self.server = server
        self.namespace = namespace
        self.prefix = f"{{{namespace}}}:"
        self.client = client
        self.queue = client.queue("default")
        self.news = threading.Condition()
        self.pools: list[Pool] = []
        self.mark = f"menu-{uuid.uuid4().hex}"
        self._seen: dict[int, float] = {}  # pid -> create time
        self._gates: list[int] = []
        (directory / "tmp").mkdir()
        (directory / "gates").mkdir()
        for handlers in ("menu", "together.py"):
            (directory / handlers).symlink_to(HERE / handlers)
        self.ledger = Ledger(directory / "ledger")
        self._closing, closed = os.pipe2(os.O_CLOEXEC)
        self._close_pipe = closed
        self._ledger_reader = threading.Thread(target=self._read_ledger, name="ledger", daemon=True)
        self._ledger_reader.start()

    @contextlib.contextmanager
    def at(self, server: Any) -> Iterator[None]:
        """Play at another server than the shared one, with a client of it."""
        shared = self.server, self.client, self.queue
        with Client(server.url, self.namespace) as client:
            self.server, self.client, self.queue = server, client, client.queue("default")
            yield
        self.server, self.client, self.queue = shared

    def _read_ledger(self) -> None:
        poll = select.poll()
        poll.register(self.ledger.fd, select.POLLIN)
        poll.register(self._closing, select.POLLIN | select.POLLHUP)
        while not any(fd == self._closing for fd, _ in poll.poll()):
            self.ledger.read()
            with self.news:
                self.news.notify_all()

    def note(self, pool: Pool, event: dict[str, Any]) -> None:
        """Remember each process that a log names, with its creation time, because pids are reused. The pids of a pool
        in a PID namespace of its own are not comparable.
        """
        pid = event.get("pid") if pool.is_present else None
        if pid and pid not in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen[pid] = psutil.Process(pid).create_time()

    # beginning

    def start(
        self,
        *,
        environment: dict[str, str] | None = None,
        prefix: Iterable[str] = (),
        redis_url: str | None = None,
        directory: Path | None = None,
        **flags: Any,
    ) -> Pool:
        """Start a supervisor: `jobs_per_child=0` is `--jobs-per-child 0`, a list is the flag several times.

        `directory`: the working directory, by this name, as a shell sets it.
        """
        given: dict[str, Any] = {"redis_url": redis_url or self.server.url, **flags}
        if "LEASEHOLD_REDIS_URL" in (environment or {}):
            del given["redis_url"]
        clean = without_settings()
        full = {
            **clean, "PYTHONPATH": f"{ROOT}:{HERE}", "TMPDIR": str(self.directory / "tmp"),
            "MENU_LEDGER": str(self.ledger.path), "MENU_GATES": str(self.directory / "gates"), "MENU_MARK": self.mark,
            "PWD": str(directory or self.directory), **(environment or {}),
        }  # fmt: skip
        command = [*prefix, sys.executable, "-m", "supervisor", "run", *self.arguments(given)]
        pool = Pool(self, command, full, directory or self.directory, is_present="--pid" not in command)
        queues = given.get("queue", "default")
        named = [queue for queue in ([queues] if isinstance(queues, str) else queues) if not set(queue) & set("!*?[")]
        pool.push_listeners = min(len(named), MOST_LISTENERS)
        return self.add(pool)

    def arguments(self, flags: dict[str, Any]) -> list[str]:
        """Return the words behind `run`: these flags, and those that each test of this stage has."""
        given = {"namespace": self.namespace, "handlers": "menu", "processes": 1, "log": "json", "log_level": "debug"}
        words: list[str] = []
        for name, value in {**given, **flags}.items():
            for one in value if isinstance(value, list) else [value]:
                words += ["--" + name.replace("_", "-"), str(one)]
        return words

    def run_command(self, *words: str, url: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
        """Run `leasehold WORDS` for this namespace: `redis_poll="1s"` is LEASEHOLD_REDIS_POLL=1s."""
        given = {"redis_url": url or self.server.url, "namespace": self.namespace, **settings}
        variables = {f"LEASEHOLD_{name.upper()}": value for name, value in given.items()}
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *words], cwd=self.directory,
            env={**without_settings(), "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def put_to_start_s(self, pool: Pool) -> float:
        """Put a job, wait until the pool has completed it, and return how long its start took."""
        put_unix = time.time()
        (start,) = self.wait_for_starts(self.queue.put("good.noop"))
        pool.wait_for("job.completed", jid=start.jid)
        return start.unix - put_unix

    def add(self, pool: Pool) -> Pool:
        """Take a pool that has just been started into the stage."""
        self.pools.append(pool)
        self._seen[pool.pid] = psutil.Process(pool.pid).create_time()
        return pool

    def config(self, **options: float) -> None:
        """Set options of the configuration in Redis."""
        set_options(self.server.redis, self.prefix, {k.replace("_", "-"): v for k, v in options.items()})

    def gate(self, name: str) -> str:
        """Make a closed gate, and return its name."""
        os.mkfifo(self.directory / "gates" / name)
        return name

    def open_gate(self, name: str) -> None:
        """Open a gate for those that wait and all that come."""
        self._gates.append(os.open(self.directory / "gates" / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))

    # waiting

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
        """Wait until `holds()` is true, and check it at each line of a log or the ledger."""
        deadline_at = time.monotonic() + timeout_s * PATIENCE
        with self.news:
            while not holds():
                left_s = deadline_at - time.monotonic()
                if left_s <= 0 or not self.news.wait(left_s):
                    assert holds(), f"not within {timeout_s:g} s: {what}\n{self.last_words()}"
                    return

    def wait_for_starts(self, jid: str, count: int = 1, timeout_s: float = 20.0) -> list[Start]:
        """Wait until the job has started so many times."""
        self.wait_until(lambda: len(self.ledger.starts(jid)) >= count, f"start {count} of {jid}", timeout_s)
        return self.ledger.starts(jid)

    def wait_until_start_is_known(self, jid: str) -> None:
        """Wait until the handler runs and Redis knows that it does. Either may come first."""
        self.wait_for_starts(jid)

        def is_known() -> bool:
            job = self.client.job(jid)
            return job is not None and job.started

        self.wait_until_counted(is_known)

    def ended(self) -> dict[str, str]:
        """Return how jobs ended, by the logs of all pools: jid -> completed or failed."""
        ends: dict[str, str] = {}
        for pool in self.pools:
            for event in list(pool.events):
                if event["event"] in ("job.completed", "job.failed"):
                    ends[event["jid"]] = event["event"].removeprefix("job.")
                elif event["event"] == "job.died" and event["state"] == "failed":
                    ends[event["jid"]] = "failed"
        return ends

    def wait_until_ended(self, jids: Iterable[str], timeout_s: float = 30.0) -> None:
        """Wait until each of these jobs is completed or failed, by the logs."""
        wanted = set(jids)
        self.wait_until(lambda: wanted <= self.ended().keys(), f"the end of {len(wanted)} jobs", timeout_s)

    def wait_until_settled(self, jids: Iterable[str], timeout_s: float = 30.0) -> None:
        """Wait for the same in Redis: a killed supervisor may not have written its last lines."""
        wanted = sorted(jids)
        self.wait_until_counted(lambda: set(self.states(wanted)) <= {"complete", "failed"}, timeout_s)

    def wait_until_counted(self, holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Poll until a condition holds that only Redis shows."""
        deadline_at = time.monotonic() + timeout_s * PATIENCE
        while not holds():
            assert time.monotonic() < deadline_at, f"not within {timeout_s:g} s\n{self.last_words()}"
            time.sleep(0.01)  # no log line tells of it

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of all pools with this name and these fields."""
        return [found for pool in self.pools for found in pool.find(event, **fields)]

    def let_time_pass(self, seconds: float) -> None:
        """Sleep, for conditions that only time brings about: a limit, an outage, an idle minute."""
        time.sleep(seconds)

    def wait_until_idle(self, count: int) -> None:
        """Wait until so many masters wait for wake-ups, and their push listeners for the queues that they name."""
        living = sorted(pool.push_listeners for pool in self.pools if pool.process.poll() is None)
        self._wait_until_blocked("idle", blpop=count, blmove=sum(living[:count]))

    def wait_until_heard(self, count: int) -> None:
        """Wait until so many masters, busy or idle, wait for mail."""
        self._wait_until_blocked("listening", blpop=count)

    def _wait_until_blocked(self, what: str, **wanted: int) -> None:
        deadline_at = time.monotonic() + SOON_S
        # One look must show all waits. Between two looks one wait may end before the other begins.
        while not wanted.items() <= self._blocked(wanted).items():
            assert time.monotonic() < deadline_at, f"not {wanted['blpop']} {what} masters\n{self.last_words()}"
            time.sleep(0.005)  # the server does not say when a client begins to wait

    def _blocked(self, wanted: dict[str, int]) -> dict[str, int]:
        """Return by command how many connections are blocked, up to as many as are wanted."""
        waiting = [client["cmd"] for client in self.server.redis.client_list() if "b" in client["flags"]]
        return {command: min(count, waiting.count(command)) for command, count in wanted.items()}

    def finish_elsewhere(self, killed: Pool, jid: str) -> Job:
        """Have another pool complete the job that a killed one has left. Check that nothing of either is left."""
        pool = self.start(processes=1).wait_ready()
        pool.wait_for("job.completed", jid=jid)
        job = self.client.job(jid)
        assert job is not None
        self.client.deregister(killed.worker)
        assert pool.drain() == 0
        self.assert_nothing_left()
        return job

    # looking

    def states(self, jids: Iterable[str]) -> list[str]:
        wanted = list(jids)
        found: list[str] = []
        for first in range(0, len(wanted), 1000):
            jobs = self.client.jobs(*wanted[first : first + 1000])
            found += ["lost" if job is None else job.state for job in jobs]
        return found

    def last_words(self) -> str:
        lines = []
        for pool in self.pools:
            lines.append(f"-- {pool}, pid {pool.pid}, exit code {pool.process.poll()}")
            lines += pool.said[-10:]
            usual = ("job.", "child.", "lease.")
            notable = [event for event in pool.events[:-25] if not event["event"].startswith(usual)]
            lines += [json.dumps(event)[:240] for event in (*notable[-15:], *pool.events[-25:])]
        return "\n".join(lines)

    def relatives(self) -> dict[int, str]:
        """Return each live process that came from our pools: by pid and birth, session, group, directory or mark."""
        ours = {**self._seen}
        found: dict[int, str] = {}
        me = os.getpid()
        for process in psutil.process_iter():
            pid = process.pid
            try:
                if pid == me or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                line = {pid, os.getsid(pid), os.getpgid(pid)}
                if any(_is_still(each, ours[each]) for each in line & ours.keys()) or self._is_here(pid):
                    found[pid] = _describe(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, FileNotFoundError, PermissionError):
                continue
        return found

    def _is_here(self, pid: int) -> bool:
        try:
            cwd = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # so deep that only its mark tells whose it is
                raise
            cwd = ""
        if cwd and Path(cwd).is_relative_to(self.directory):
            return True
        return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()

    def assert_no_zombies(self, within_s: float = 10.0) -> None:
        """Check that the running masters have no zombies, apart from processes that are just ending."""
        running = [psutil.Process(pool.pid) for pool in self.pools if pool.process.poll() is None]

        def zombies() -> list[psutil.Process]:
            below = [process for master in running for process in master.children(recursive=True)]
            return [process for process in below if _status(process) == psutil.STATUS_ZOMBIE]

        deadline_at = time.monotonic() + within_s * PATIENCE
        while left := zombies():
            assert time.monotonic() < deadline_at, f"zombies: {left}"
            time.sleep(0.01)  # there is no event for the reaping of a foreign child

    def files(self) -> list[str]:
        """Return the contents of the directory in which working directories are made."""
        return sorted(str(path.relative_to(self.directory)) for path in (self.directory / "tmp").rglob("*"))

    def keys(self) -> dict[str, int]:
        """Return the temporary keys of the namespace, without the prefix, with the number of their elements.

        A wake-up key may keep one token that was not needed. The next lease that meets lanes and limits without jobs
        forgets them.
        """
        left: dict[str, int] = {}
        redis = self.server.redis
        for raw in redis.scan_iter(f"{self.prefix}*", count=1000):
            key = raw.decode().removeprefix(self.prefix)
            if key in _KEPT_WHOLE or key.startswith(_KEPT) or _is_index(key):
                continue
            kind = redis.type(raw)
            size = redis.llen(raw) if kind == b"list" else redis.zcard(raw) if kind == b"zset" else 1
            if not (key.startswith("bell:") and size <= 1):
                left[key] = size
        return left

    def forget(self, pool: Pool) -> None:
        """Forget a killed worker, whose record would live until max-worker-age."""
        self.client.deregister(pool.worker)
        self.server.redis.delete(f"{self.prefix}mail:{pool.worker}")

    def assert_nothing_left(self, *, waiting: Iterable[str] = (), directories: bool = False) -> None:
        """Assert that all pools have ended and have left no process, file, lease, worker, mail or wake-up key.

        `waiting`: queues in which jobs lie on purpose. `directories`: of a master and a zygote that were both killed,
        which no process is left to remove.
        """
        for pool in self.pools:
            assert pool.process.poll() is not None, f"{pool} runs"
        deadline_at = time.monotonic() + 10.0  # what was killed needs a moment to be gone
        while (left := self.relatives()) and time.monotonic() < deadline_at:
            await_ends(left, deadline_at - time.monotonic())
        assert left == {}, f"processes are left: {left}"
        assert directories or self.files() == []
        places = {f"queue:{queue}:{part}" for queue in waiting for part in ("waiting", "front", "scheduled")}
        left_keys = {key: size for key, size in self.keys().items() if key not in places}
        assert left_keys == {}, f"keys are left: {left_keys}"

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        deadline_at = time.monotonic() + 5.0
        while (left := self.relatives()) and time.monotonic() < deadline_at:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await_ends(left, 1.0)
        for gate in self._gates:
            os.close(gate)
        os.close(self._close_pipe)
        self._ledger_reader.join(5.0)
        os.close(self._closing)
        self.ledger.close()
        removal.remove(str(self.directory / "tmp"))  # there may be trees deeper than Python recurses


def await_ends(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Wait until these processes have ended (zombies have). Return those that have not."""
    poll = select.poll()
    waiting: dict[int, int] = {}
    for pid in pids:
        try:
            waiting[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
        except OSError as error:
            assert error.errno == errno.EINVAL, error  # not a thread group's leader, so no process of ours
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    deadline_at = time.monotonic() + timeout_s
    left = dict(waiting)
    while left and (left_s := deadline_at - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left_s * 1000):
            poll.unregister(pidfd)
            del left[pidfd]
    for pidfd in waiting:
        os.close(pidfd)
    return list(left.values())


def quantiles(seconds: Iterable[float]) -> str:
    """Return p50, p99 and the largest, in ms, as text."""
    ms = sorted(1000 * s for s in seconds)
    p99 = ms[min(len(ms) - 1, int(len(ms) * 0.99))]
    return f"n={len(ms)} p50={ms[len(ms) // 2]:.1f} p99={p99:.1f} max={ms[-1]:.1f} ms"


def _has(event: dict[str, Any], fields: dict[str, Any]) -> bool:
    return all(event.get(name) == value for name, value in fields.items())


def _is_index(key: str) -> bool:
    """Return whether a key is an index of lanes or limits. Jobs lie in the keys below it."""
    return key.endswith((":lanes", ":limits", ":klasses")) or (
        key.startswith(("limited:", "apart:")) and key.count("\n") < 2
    )


def _is_still(pid: int, created_unix: float) -> bool:
    """Return whether a pid still means the same process, or one that it has left, and not another test's."""
    try:
        return psutil.Process(pid).create_time() == created_unix
    except psutil.NoSuchProcess:
        return True


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _describe(process: psutil.Process) -> str:
    return f"{process.status()}, parent {process.ppid()}: {' '.join(process.cmdline())[:200]}"
