"""The master: leases jobs, hands them to children, settles their outcomes. A process of its own, PID 1 in a container.

Owns the loop, and the beginning and end of the process. Must not import handlers, nor wait anywhere but in its inbox.
"""

import gc
import os
import signal
import socket
import traceback
from typing import Final

from supervisor import clock
from supervisor.config import ConfigError, RunConfig
from supervisor.exit_codes import Exit
from supervisor.linux import cgroups, foreign_files, kernel, removal
from supervisor.master.composition import Parts, place_for_workdir
from supervisor.master.model import environment
from supervisor.master.model.states import Phase
from supervisor.master.report import http_listener
from supervisor.master.report.title_and_notify import SHOW_S
from supervisor.ops.events import Events

_LAST_LINES_S: Final = 1.0
_LAST_CLOSES_S: Final = 1.0
#: Directories of lost zygotes, which are still being removed, get this long.
_LAST_REMOVALS_S: Final = 10.0
#: The zygotes get at least this long to end, even if the time of the drain is over.
_ZYGOTES_S: Final = 1.0
#: The keys of timers.
_DRAIN: Final = "drain"
_FLUSH: Final = "events.flush"


def run(config: RunConfig) -> int:
    """Be the master until it has drained. Return the exit code. `config.redis_url` is set.

    Raises ConfigError if the address for HTTP or the place for working directories cannot be used.
    """
    gc.freeze()
    gc.enable()
    listening = http_listener.listen(config)
    kernel.forbid_dumping(config.sandbox != "none")
    events = Events(2, config.log, config.log_level)
    try:
        return Master(config, events, listening).run()
    finally:
        events.close(_LAST_LINES_S)


class Master:
    def __init__(self, config: RunConfig, events: Events, listening: socket.socket | None) -> None:
        """`listening`: the socket for HTTP; None: there is none."""
        self._config = config
        self._events = events
        self._listening = listening
        self._began_at = clock.monotonic()
        self._parts = parts = Parts(config, events)
        self._inbox, self._timers, self._counts = parts.inbox, parts.timers, parts.counts
        self._sides = parts.sides
        self._zygotes, self._processes = parts.zygotes, parts.processes
        self._placing, self._scaling = parts.placing, parts.scaling
        self._drain, self._title = parts.drain, parts.title

    # the loop

    def run(self) -> int:
        try:
            with self._parts.http.serving(self._listening):
                self._open()
                while self._drain.phase is not Phase.STOPPED:
                    self._turn()
                return self._close()
        except ConfigError:
            raise
        except Exception as error:
            self._events.emit("master.crashed", message=f"{error!r}", traceback=traceback.format_exc())
            raise
        finally:
            # The kernel closes at the exit what is still open, and then nothing interrupts a close that waits.
            foreign_files.finish(_LAST_CLOSES_S)
            removal.finish(_LAST_REMOVALS_S)
            removal.remove(str(self._parts.workdir))

    def _turn(self) -> None:
        """Read all that has come, then see to what is due, then to what follows from both.

        Messages come first: one that makes a deadline void is read before the deadline is acted on.
        """
        # The sides are asked in each turn: their deadlines depend on the content of the ledgers at this instant.
        self._inbox.wait(min(self._timers.due_at, self._sides.deadline_at()))
        now_at = clock.monotonic()
        self._sides.step_woken(now_at)  # a job waits for this lease, and for nothing else of this turn
        self._timers.run_due(now_at)
        self._follow_up(now_at)
        self._counts.turned(self._inbox.turn_began_at, clock.monotonic())

    def _follow_up(self, now_at: float) -> None:
        """End the turn. Each step sees what those before it have done."""
        # Before jobs are placed: a child that is asked for now is under way by then.
        self._processes.fill(now_at)
        # After all that frees a child or makes a job ready, and before the lease that asks how many are free.
        self._placing.place()
        # After the placing: only then it is known which children are idle, and surplus.
        self._scaling.step(now_at)
        # After all that ends jobs, so that one exchange settles them all and leases for all idle children.
        self._sides.step(now_at)
        # Redis has its work: now there is time for what no job waits for.
        self._sides.log_completed()
        # After the exchange has begun: what is in it is on its way, and no step of the drain waits for it.
        self._drain_if_due(now_at)
        # After all that emits events.
        self._events.flush()
        if self._events.pending:
            self._timers.set(_FLUSH, now_at + SHOW_S)
        # Last: title and status show the result of the turn.
        self._title.follow(now_at)

    def _drain_if_due(self, now_at: float) -> None:
        """Begin to drain if the master cannot serve or has no work; take the steps of a drain that are due."""
        if (failure := self._sides.failure) is not None:
            self._drain.begin(None, failure)
        elif not self._drain.has_begun:
            if self._sides.first.session.has_left:
                self._events.emit("master.idle", idle_s=self._config.exit_when_idle_s)
                self._drain.begin(None)
            elif self._processes.has_failed:
                self._drain.begin(None, Exit.HANDLERS)
        if self._drain.has_begun:
            self._timers.set(_DRAIN, self._drain.advance(now_at))

    # the beginning

    def _open(self) -> None:
        self._title.begin(self._config.boot_timeout_s)
        kernel.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        self._parts.signals.open()
        with place_for_workdir():
            self._parts.workdir.mkdir(mode=0o700, parents=True)
        self._warn()
        self._processes.start()
        self._sides.first.connection.open(self._say_started)

    def _warn(self) -> None:
        for warning in self._config.warnings:
            self._events.warn(warning)
        if self._parts.held_back:
            self._events.warn(environment.why_held_back(self._parts.held_back))
        if shell := environment.shell_above():
            self._events.warn(shell)
        if cgroups.kills_as_group():
            self._events.warn(
                "memory.oom.group is 1: if the kernel's OOM killer ends one process of this container it ends all; give"
                " jobs a --memory-limit, or the handlers memory=, so that ours comes first"
            )

    def _say_started(self) -> None:
        config, session = self._config, self._sides.first.session
        self._events.emit(
            "master.started", worker=session.worker, pid=os.getpid(),
            queues=list(config.queue), order=config.order, processes=config.processes,
            processes_reason=config.processes_reason, memory_budget_mb=config.memory_budget_bytes >> 20 or None,
            memory_budget_reason=config.memory_budget_reason, cells=self._parts.cells_where, redis=session.url,
            server=session.server, shards=session.shards if session.shards > 1 else None,
        )  # fmt: skip

    # the end

    def _close(self) -> int:
        self._sides.close()
        self._processes.close(max(_ZYGOTES_S, self._drain.left_s or 0.0))
        self._close_job_cgroups()
        code, last_reload = self._drain.exit, self._zygotes.last_reload
        self._events.emit(
            "master.stopped", exit_code=int(code), **self._counts.ended,
            uptime_s=round(clock.monotonic() - self._began_at, 3),
            # Why the last reload failed: a reader then sees that this end is not the fault of the code before it.
            reload=last_reload["message"] or None if last_reload is not None else None,
        )  # fmt: skip
        failure = self._processes.boot_failure
        if failure is not None and code is not Exit.OK:
            self._events.emit("zygote.failed", message=failure.message, traceback=failure.traceback or None)
        return int(code)

    def _close_job_cgroups(self) -> None:
        job_cgroups = self._parts.job_cgroups
        left = job_cgroups.close() if job_cgroups is not None else []
        if left:
            self._events.warn(f"cgroups of ours cannot be removed: {', '.join(map(str, left))}")
