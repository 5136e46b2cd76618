"""Starts `leasehold run` for the demo, and reads its log. Used in the demo's process, which owns both.

Must not conclude from the log that no job was lost: only the engine knows that.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from supervisor import clock

_PR_SET_PDEATHSIG = 1
#: Longer than the drain of `run`, which takes 30 s by default.
DRAIN_DEADLINE_S = 40.0


class Log:
    """Progress, deaths, and how soon a dead child's job ran again, as the events tell them."""

    def __init__(self) -> None:
        self.ready = False
        self.completed = self.failed = self.raised = self.dropped = 0
        self.deaths: Counter[str] = Counter()
        self.again_s: list[float] = []
        self.began_unix: float | None = None
        self.ended_unix = 0.0
        #: Errors of the pool itself, in its own words.
        self.complaints: list[str] = []
        self._start_of: dict[str, tuple[int, float]] = {}  # by jid: the child's number and the time
        self._reaped_unix: dict[int, float] = {}  # by child's number: when the kernel's report of its end came
        self._died_unix: dict[str, float] = {}

    @property
    def settled(self) -> int:
        """Jobs that have come to an end."""
        return self.completed + self.failed

    @property
    def busy_s(self) -> float:
        """Seconds from the first job's start to the last one's end."""
        return max(0.0, self.ended_unix - self.began_unix) if self.began_unix else 0.0

    def read(self, line: bytes) -> None:
        """Read one line."""
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:  # printed before the log began, by the command or the interpreter
            self.complaints.append(line.decode("utf-8", "replace").removeprefix("leasehold: "))
            return
        time_unix = float(event["time"])
        match event["event"]:
            case "zygote.ready":
                self.ready = True
            case "job.started":
                self._started(event, time_unix)
            case "child.reaped":
                self._reaped_unix[event["child"]] = time_unix
            case "job.completed":
                self.completed += 1
                self.ended_unix = time_unix
            case "job.failed":
                self.failed += 1
                self.ended_unix = time_unix
            case "job.retried":
                self.raised += 1
            case "job.died":
                self._died(event, time_unix)
            case "log.dropped":
                self.dropped += event["count"]
            case "zygote.failed" | "zygote.lost" | "redis.lost" | "redis.failed":
                self.complaints.append(str(event.get("message") or event["event"]))

    def _started(self, event: Mapping[str, Any], time_unix: float) -> None:
        jid = event["jid"]
        self._start_of[jid] = event["child"], time_unix
        if self.began_unix is None:
            self.began_unix = time_unix
        if jid in self._died_unix:
            self.again_s.append(time_unix - self._died_unix.pop(jid))

    def _died(self, event: Mapping[str, Any], time_unix: float) -> None:
        self.deaths[event["reason"]] += 1
        child, started_unix = self._start_of.get(event["jid"], (-1, time_unix))
        reaped_unix = self._reaped_unix.get(child, 0.0)
        # Numbers are reused: an earlier report than the start concerns the number's previous child.
        self._died_unix[event["jid"]] = reaped_unix if reaped_unix >= started_unix else time_unix
        if event.get("state") == "failed":
            self.failed += 1
            self.ended_unix = time_unix


class Pool:
    """The process `leasehold run` with default settings, except for queue, handlers and log."""

    def __init__(self, redis_url: str, workdir: Path) -> None:
        self.log = Log()
        self._rest = b""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        environment["LEASEHOLD_REDIS_URL"] = redis_url
        command = [sys.executable, "-m", "supervisor", "run", "--handlers", "supervisor.cli.demo.handlers"]
        command += ["--log", "json", "--log-level", "debug", "--workdir", str(workdir)]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_the_demo(os.getpid()),  # safe: this process has one thread
        )
        assert self._process.stderr is not None
        self._pipe = self._process.stderr.fileno()
        os.set_blocking(self._pipe, False)
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def running(self) -> bool:
        """True while the process exists."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal."""
        return self._process.returncode

    def filenos(self) -> Iterator[int]:
        """Descriptors to await: the log and the process."""
        yield from (self._pipe, self._pidfd)

    def read_log(self) -> None:
        """Read what the log holds now. Does not wait."""
        while True:
            try:
                chunk = os.read(self._pipe, 2**18)
            except BlockingIOError:
                return
            if not chunk:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self.log.read(line)

    def end(self) -> None:
        """Drain the process, and wait for its end while reading the log. Kill it at the deadline.

        A terminal's own Ctrl-C within the last second is the same request.
        """
        if self.running:
            self._process.send_signal(signal.SIGINT)
        deadline_at = clock.monotonic() + DRAIN_DEADLINE_S
        waiter = select.poll()
        for fd in self.filenos():
            waiter.register(fd, select.POLLIN)
        while self.running and (left_s := deadline_at - clock.monotonic()) > 0:
            waiter.poll(left_s * 1000)
            self.read_log()
        if self.running:
            self.log.complaints.append(f"run had not drained after {DRAIN_DEADLINE_S:g} s and was killed")
            self._process.kill()
        self._process.wait()
        self.read_log()

    def close(self) -> None:
        """End the process by all means, and close its pipe."""
        if self.running:
            self._process.kill()
        self._process.communicate()
        os.close(self._pidfd)


def _end_with_the_demo(demo_pid: int) -> Any:
    """Return a function for the child before exec: the demo's death, even by SIGKILL, sends SIGTERM to the child."""
    libc = ctypes.CDLL(None)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != demo_pid:
            os._exit(1)

    return arrange
