"""Looks after all zygotes and children: what they report, and what is due of them. Runs in the master.

Each report of a zygote goes to the part that acts on it. One timer calls all parts in their order.
"""

import math
from collections.abc import Callable
from typing import Final

from supervisor.master.model.reload_log import Reloaded
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_reaper import ChildReaper
from supervisor.master.processes.child_starts import ChildStarts
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.processes.zygote_reaper import ZygoteReaper
from supervisor.master.processes.zygotes import Zygotes
from supervisor.master.timers import Timers
from supervisor.messages import BootFailed, Ready, Reaped, Spawned, SpawnFailed

#: The keys of the timers: something is due of a process; children may be asked for again.
PROCESSES: Final = "processes"
_FILL: Final = "processes.fill"


class ProcessManager:
    def __init__(
        self,
        timers: Timers,
        zygotes: Zygotes,
        zygote_manager: ZygoteManager,
        zygote_reaper: ZygoteReaper,
        children: ChildStarts,
        child_reaper: ChildReaper,
        rolling_reload: RollingReload,
    ) -> None:
        self._timers = timers
        self._zygotes = zygotes
        self._zygote_manager = zygote_manager
        self._zygote_reaper = zygote_reaper
        self._children = children
        self._child_reaper = child_reaper
        self._rolling_reload = rolling_reload
        self.has_failed = False  # `boot_failure` was set when `run_due` ran last

    @property
    def boot_failure(self) -> BootFailed | None:
        """Why no handler can run, so that the master is to drain. None while a reload may still mend it."""
        return None if self._rolling_reload.may_mend else self._rolling_reload.failure

    # what the master calls

    def start(self) -> None:
        """Start the first zygote. Raises OSError."""
        self._zygote_manager.start()

    def fill(self, now_at: float) -> None:
        """Ask for the children that are missing. Called in each turn."""
        current = self._zygotes.current
        if current is None or current.state is not ZygoteState.CURRENT:
            return
        if self._children.fill(current, now_at):
            self._timers.set(PROCESSES, min(self._timers.at(PROCESSES), self._due_at()), self.run_due)
        if now_at < self._children.fill_at:
            self._timers.set(_FILL, self._children.fill_at)

    def reap(self) -> None:
        """Reap processes that have ended. Called on SIGCHLD, because the socket of a dead zygote may stay open."""
        self._zygote_reaper.reap()
        self._wake()

    def reload(self, by: str, on_done: Callable[[Reloaded], None] | None) -> None:
        """See `RollingReload.ask`."""
        self._rolling_reload.ask(by, on_done)
        self._wake()

    def fork_no_more(self) -> None:
        """Replace no process that ends from now on."""
        self._zygote_manager.close()
        self._children.close()
        self._rolling_reload.close()
        self._wake()

    def abandon(self, why: str) -> None:
        """Hand back the jobs of children that have not ended although they were killed."""
        self._child_reaper.abandon(why)
        self._wake()

    def close(self, patience_s: float) -> None:
        """End all zygotes and children within `patience_s`, at most 2 s."""
        self._zygote_reaper.close(patience_s)

    # what zygotes report

    def read(self, zygote: ZygoteHandle) -> None:
        """Read the zygote's reports."""
        self._wake()
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid) if fds:
                    child = self._children.on_spawned(zygote, number, pid, fds[0])
                    if child is not None:
                        self._child_reaper.watch(child, zygote)
                case Spawned():
                    # No room for its pidfd: a child that we cannot kill must not have a job.
                    self._zygote_manager.retire(zygote, "the descriptor of a child was lost: too many open files")
                    zygote.kill()
                case Reaped():
                    self._child_reaper.on_reaped(zygote, report)
                case Ready():
                    self._zygote_manager.on_ready(zygote, report)
                case SpawnFailed():
                    self._children.on_spawn_failed(zygote, report)
                case BootFailed():
                    zygote.failure = zygote.failure or report  # it may go on once its stacks are written
                case None:
                    self._zygote_reaper.lose(zygote)

    # time

    def _wake(self) -> None:
        """Call `run_due` in this turn, or at once in the next one."""
        self._timers.set(PROCESSES, -math.inf, self.run_due)

    def _due_at(self) -> float:
        return min(
            self._zygote_manager.deadline_at(), self._children.deadline_at(), self._child_reaper.deadline_at(),
            self._rolling_reload.deadline_at(),
        )  # fmt: skip

    def run_due(self, now_at: float) -> None:
        """Do what is due of all processes. Each step sees what those before it have done."""
        for zygote in self._zygotes:
            # A zygote's children may keep its socket open, so its end may not show there.
            if zygote.status is not None:
                self.read(zygote)
                if zygote in self._zygotes:
                    self._zygote_reaper.lose(zygote)
        self._zygote_manager.start_if_due(now_at)
        self._zygote_manager.kill_overdue(now_at)
        self._children.run_due(now_at)
        self._child_reaper.run_due(now_at)
        # After the children, which tell that a zygote does not answer, and before the reload, which it may fail.
        self._zygote_manager.retire_unresponsive()
        self._rolling_reload.run_due(now_at)
        # Last: all steps above may have ended a child, or the hope that a reload mends a failure.
        self._zygote_manager.finish_retired()
        self.has_failed = self.boot_failure is not None
        self._timers.set(PROCESSES, self._due_at(), self.run_due)
