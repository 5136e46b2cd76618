"""A zygote's end, from the kernel's report to the next start. Runs in the master.

Also reaps the orphans that the kernel gives to PID 1 or to a subreaper.
"""

import os
import signal
from typing import Final

from supervisor import clock
from supervisor.linux import removal, strays
from supervisor.master.inbox import Inbox
from supervisor.master.model import outcome_rules
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_reaper import ChildReaper
from supervisor.master.processes.poison_detector import PoisonDetector
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.ops.events import Events

#: A zygote that has closed its control socket most likely exits within this time.
_EXIT_S: Final = 0.2
#: When the supervisor ends, zygotes must have ended their children within this time.
_LAST_EXIT_S: Final = 2.0
#: Why the children of a lost zygote are killed.
_ZYGOTE_LOST: Final = "zygote-lost"


class ZygoteReaper:
    def __init__(
        self,
        inbox: Inbox,
        events: Events,
        zygotes: Zygotes,
        starts: ZygoteStarts,
        child_reaper: ChildReaper,
        rolling_reload: RollingReload,
        poison_detector: PoisonDetector,
    ) -> None:
        self._inbox = inbox
        self._events = events
        self._zygotes = zygotes
        self._starts = starts
        self._child_reaper = child_reaper
        self._rolling_reload = rolling_reload
        self._poison_detector = poison_detector

    def reap(self) -> None:
        """Reap all processes that have ended. A zygote keeps its wait status for `lose`."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for zygote in self._zygotes:
                zygote.strangers.discard(pid)  # another process may get this pid
                if zygote.pid == pid:
                    zygote.status = status

    def lose(self, zygote: ZygoteHandle) -> None:
        """The zygote has closed its control socket, or has ended: settle its children, and plan the next start.

        The end of a zygote takes its children along. Their jobs were interrupted, because the cause most likely lies
        elsewhere.
        """
        self._inbox.forget(zygote.control)
        zygote.let_go()
        is_current = zygote is self._zygotes.current
        self._zygotes.remove(zygote)
        status = self._wait_status_of(zygote)
        was_forking, was_leaving = zygote.state is ZygoteState.CURRENT, zygote.state is ZygoteState.LEAVING
        if zygote.state not in (ZygoteState.RETIRED, ZygoteState.LEAVING):
            zygote.become(ZygoteState.RETIRED)
        children = self._child_reaper.kill_all_of(zygote, _ZYGOTE_LOST)
        if was_forking:
            self._poison_detector.zygote_lost(children)
        if not was_leaving or status:  # else the zygote itself has ended what was below it
            self._end_strangers(zygote)
        removal.remove_beside(zygote.workdir)  # what no thread can remove now goes with the master's directory
        if was_forking or any(child.sent for child in children):
            self._say_lost(zygote, status, children)
        why = "lost" if was_forking and self._poison_detector.is_poison else _ZYGOTE_LOST
        for child in children:
            self._child_reaper.settle(child, None, why)
        self._plan_next(zygote, status, is_current)
        zygote.stacks.close()
        self._zygotes.reserve_memory()
        zygote.become(ZygoteState.GONE)

    def _wait_status_of(self, zygote: ZygoteHandle) -> int:
        """Return the zygote's wait status. Kill the zygote if it has only closed its socket.

        The kernel may not let go of it for now, as in a call that waits for a disk. Then the status is that of the
        kill, and `reap` reaps the zygote later.
        """
        if zygote.status is None:
            zygote.await_end(_EXIT_S)  # if it exits by itself, its status tells the cause
            pid, status = os.waitpid(zygote.pid, os.WNOHANG)
            zygote.status = status if pid else int(signal.SIGKILL)
        return zygote.status

    def _end_strangers(self, zygote: ZygoteHandle) -> None:
        """End what the zygote's children had started, before their jobs run again. The kernel has given it to us.

        A zygote that the kernel has not let go of yet is spared: no wait ends it.
        """
        own = zygote.strangers | {zygote.pid, *(other.pid for other in self._zygotes)}
        strays.end_strays(own, clock.monotonic() + strays.TRY_S)

    def _say_lost(self, zygote: ZygoteHandle, status: int, children: list[ChildHandle]) -> None:
        running = sum(1 for child in children if child.sent)
        reason = outcome_rules.death_reason(status)
        self._events.emit("zygote.lost", zygote=zygote.number, status=reason, running=running)
        if zygote.failure is not None:
            self._events.warn(zygote.failure.message)

    def _plan_next(self, zygote: ZygoteHandle, status: int, was_current: bool) -> None:
        """Fail the reload if the zygote was its candidate. Plan the next start if no zygote forks."""
        wait_s = self._poison_detector.wait_s
        if zygote is self._zygotes.candidate:
            self._rolling_reload.fail(self._starts.failure_of(zygote, status))
        elif was_current:
            is_killed = zygote.failure is None and status == signal.SIGKILL
            failure = self._starts.failure_of(zygote, status)
            wait_s = max(wait_s, self._starts.record_end(zygote, failure, is_killed))
        may_start = self._starts.proven or (was_current and self._starts.failure is None)
        if self._zygotes.current is None and may_start:
            self._starts.plan(wait_s)

    def close(self, patience_s: float) -> None:
        """End all zygotes, and with them all children. Kill those that take longer than `patience_s`, at most 2 s.

        A zygote that still imports does not hear the end of its socket, and has no children.
        """
        kill_at = clock.monotonic() + min(patience_s, _LAST_EXIT_S)
        for zygote in self._zygotes:
            self._inbox.forget(zygote.control)
            zygote.let_go()
        for zygote in self._zygotes:
            left_s = max(0.0, kill_at - clock.monotonic())
            zygote.await_end(min(left_s, _EXIT_S) if zygote.state is ZygoteState.BOOTING else left_s)
        for zygote in self._zygotes:
            self._end_strangers(zygote)  # of a zygote that was importing, or was killed
