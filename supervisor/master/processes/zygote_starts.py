"""Decides when the next zygote starts, with which code, and when to give up. Runs in the master.

Numbers the zygotes, and follows each one until it has imported the handlers. Its later life is `ZygoteManager`'s.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.linux import kernel
from supervisor.master.model import memory, outcome_rules
from supervisor.master.model.breaker import Breaker
from supervisor.master.model.stacks import WRITE_S
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of, fork_warnings, sandbox_warnings
from supervisor.master.processes.crash_loop_guard import REFUSED_RETRY_S
from supervisor.master.processes.launch_directory import LaunchDirectory
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import BootFailed, Ready, zygote_directory
from supervisor.ops.events import Events

_HIDDEN: Final = (
    "/proc hides zygote and children from us, as they are not dumpable: no job can be measured, and no memory limit"
    " holds; mount it without hidepid=, or take ProtectProc= out of the unit"
)


class ZygoteStarts:
    def __init__(
        self,
        config: RunConfig,
        workdir: Path,
        environment: Mapping[str, str],
        events: Events,
        zygotes: Zygotes,
        on_started: Callable[[ZygoteHandle], None],
    ) -> None:
        """`environment`: of the zygotes. `on_started(zygote)` is to watch the control socket of a new zygote."""
        self._config = config
        self._workdir = workdir.absolute()  # zygotes change their directory
        self._environment = environment
        self._events = events
        self._zygotes = zygotes
        self._on_started = on_started
        self._launch_directory = LaunchDirectory.here()
        self._directory = self._launch_directory.now()  # of the code that the next zygote loads
        self._open_files = kernel.allow_open_files()  # limit of a child
        self._started = 0
        self._failures = Breaker()  # zygotes in a row of which no child got ready
        self._closing = False
        self.due_at = math.inf  # when the next zygote starts (monotonic s)
        self.proven = False  # a zygote has imported the handlers
        self.failure: BootFailed | None = None  # why another zygote would fail as well

    # starting

    def start_next(self) -> None:
        """Start a zygote with the code of the one before, because no other code has proved itself.

        If that code's directory is gone, load the code from the launch directory. Raises OSError if the very first
        zygote cannot be started. Later ones are tried again.
        """
        self.due_at = math.inf
        is_gone = self._directory and not os.path.isdir(self._directory)
        try:
            self._zygotes.current = self._start(self.code_directory() if is_gone else self._directory)
        except OSError as error:
            if self._started == 1:
                raise
            self._events.warn(f"no zygote can be started ({error}); trying again in {REFUSED_RETRY_S:g} s")
            self.plan(REFUSED_RETRY_S)

    def start_candidate(self) -> None:
        """Start a zygote with the code that the launch directory has now. Raises OSError."""
        self._zygotes.candidate = self._start(self.code_directory())

    def code_directory(self) -> str:
        """Return the directory that the launch directory's name leads to now."""
        return self._launch_directory.now()

    def _start(self, directory: str) -> ZygoteHandle:
        self._started += 1
        workdir = Path(zygote_directory(str(self._workdir), self._started))
        workdir.mkdir(mode=0o700, parents=True)
        boot = boot_of(self._config, workdir, self._open_files, directory)
        deadline_at = clock.monotonic() + self._config.boot_timeout_s
        zygote = ZygoteHandle(self._started, boot, self._environment, deadline_at)
        self._zygotes.add(zygote)
        self._on_started(zygote)
        self._events.emit("zygote.spawned", zygote=zygote.number, pid=zygote.pid)
        return zygote

    def plan(self, wait_s: float) -> None:
        """Start the next zygote after `wait_s`, unless one is planned already, or the supervisor drains."""
        if self.due_at == math.inf and not self._closing:
            self.due_at = clock.monotonic() + wait_s

    def close(self) -> None:
        """Start no zygote any more."""
        self._closing, self.due_at = True, math.inf

    # until it has imported the handlers

    def on_ready(self, zygote: ZygoteHandle, report: Ready) -> None:
        """The zygote has imported the handlers: say so, and warn of what is wrong with them."""
        boot_s = clock.monotonic() - zygote.started_at
        self.proven = True
        zygote.has_booted(report)
        is_edit = self._config.watch and bool(self._zygotes.handlers)
        emit = self._events.emit_quietly if is_edit else self._events.emit  # `reload.completed` says it
        emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(zygote.handlers),
            boot_ms=round(boot_s * 1000), threads=report.threads or None, descriptors=report.descriptors or None,
        )  # fmt: skip
        for warning in fork_warnings(report):
            self._events.warn(warning)
        if report.sandbox != self._zygotes.sandbox:
            self._say_sandbox(zygote, report)

    def _say_sandbox(self, zygote: ZygoteHandle, report: Ready) -> None:
        self._events.emit("sandbox.reported", zygote=zygote.number, sandbox=self._config.sandbox, parts=report.sandbox)
        for warning in sandbox_warnings(report):
            self._events.warn(warning)
        if memory.of(zygote.pid) is None:  # its children will be as invisible
            self._events.warn(_HIDDEN)

    def on_overdue(self, zygote: ZygoteHandle, now_at: float) -> None:
        """Kill a zygote that has not imported the handlers, or not exited, in time. Have an import write its stacks."""
        if zygote.state is ZygoteState.BOOTING and zygote.failure is None:
            zygote.failure = BootFailed(
                f"{self._config.handlers!r} was not imported within {self._config.boot_timeout_s:g} s;"
                " import less, or raise --boot-timeout",
                "",
            )
            zygote.write_stacks()
            zygote.deadline_at = now_at + WRITE_S
        else:
            zygote.deadline_at = None
            zygote.kill()

    def failure_of(self, zygote: ZygoteHandle, status: int) -> BootFailed:
        """Return why none of the zygote's children got ready, if none did. `status`: its wait status."""
        failure = zygote.failure
        reason = outcome_rules.death_reason(status)
        if failure is None and zygote.report is not None:
            message = f"the process that forks the children ended ({reason}) before any of them was ready"
            failure = BootFailed(message, "")
        elif failure is None:
            failure = BootFailed(
                f"the process that imports {self._config.handlers!r} ended meanwhile ({reason});"
                " look for the module that exits or crashes when it is imported",
                "",
            )
        return replace(failure, traceback=failure.traceback or zygote.stacks.read())

    # the next one

    def use_code_of(self, zygote: ZygoteHandle) -> None:
        """Load this zygote's code in the zygotes after it."""
        self._directory = zygote.directory

    def on_takeover(self) -> None:
        """A zygote with a ready child has taken over: forget all failures."""
        self.due_at, self.failure = math.inf, None
        self._failures.succeed()

    def give_up(self, failure: BootFailed) -> None:
        self.failure = self.failure or failure

    def record_end(self, zygote: ZygoteHandle, failure: BootFailed, is_killed: bool = False) -> float:
        """The current zygote forks no more. Return how long to wait before the next one starts (s).

        `failure`: what is wrong if none of its children got ready. `is_killed`: a foreign SIGKILL ended it while it
        booted, as the kernel does when memory runs out. That says nothing about the code, so even the first zygote is
        started again.
        """
        if zygote.proven:
            self._failures.succeed()
            return 0.0
        if not (self.proven or is_killed):
            self.give_up(failure)
            return 0.0
        wait_s = self._failures.fail()
        self._events.emit(
            "zygote.failed", zygote=zygote.number, message=failure.message, traceback=failure.traceback or None
        )
        if self._failures.broken:
            self.give_up(failure)
        else:
            what = f"no child of zygote {zygote.number} was ready{self._failures.in_words}"
            self._events.warn(f"{what}; the next one is started in {wait_s:g} s")
        return wait_s
