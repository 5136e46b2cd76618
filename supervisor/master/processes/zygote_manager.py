"""The life of a zygote: it starts, gets ready, is retired, and exits after its last child. Runs in the master.

Its end is `ZygoteReaper`'s. Whether new code takes over is decided by `RollingReload`.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_starts import ChildStarts
from supervisor.master.processes.crash_loop_guard import CrashLoopGuard
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import BootFailed, Ready
from supervisor.ops.events import Events

#: A retired zygote must exit within this time after its last child has ended.
_EXIT_S: Final = 5.0


class ZygoteManager:
    def __init__(
        self,
        events: Events,
        zygotes: Zygotes,
        starts: ZygoteStarts,
        guard: CrashLoopGuard,
        children: ChildStarts,
        rolling_reload: RollingReload,
    ) -> None:
        self._events = events
        self._zygotes = zygotes
        self._starts = starts
        self._guard = guard
        self._children = children
        self._rolling_reload = rolling_reload

    def start(self) -> None:
        """Start the first zygote. Raises OSError."""
        self._starts.start_next()

    def start_if_due(self, now_at: float) -> None:
        if now_at >= self._starts.due_at:
            self._starts.start_next()

    def on_ready(self, zygote: ZygoteHandle, report: Ready) -> None:
        """The zygote has imported the handlers."""
        if zygote.state is not ZygoteState.BOOTING:
            return  # it was discarded meanwhile
        self._starts.on_ready(zygote, report)
        if zygote is self._zygotes.candidate:
            self._rolling_reload.probe(zygote)
        else:
            self._guard.fork_now()
            self._rolling_reload.use_successor(zygote)

    def retire(self, zygote: ZygoteHandle, reason: str) -> None:
        """The zygote does not answer. Its children may go on, and the next ones come from another zygote."""
        zygote.unresponsive = None
        failure = BootFailed(f"no child was ready: {reason}", "")
        if zygote is self._zygotes.candidate:
            self._rolling_reload.fail(failure)
        elif zygote is self._zygotes.current:
            self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
            self._zygotes.retire(zygote)
            self._starts.plan(self._starts.record_end(zygote, failure))
        self._children.forget_unreported(zygote)

    def retire_unresponsive(self) -> None:
        for zygote in self._zygotes:
            if zygote.unresponsive is not None:
                self.retire(zygote, zygote.unresponsive)

    def finish_retired(self) -> None:
        """Let retired zygotes exit whose last child has ended."""
        for zygote in self._zygotes:
            if zygote.state is ZygoteState.RETIRED and not self._children.of(zygote):
                zygote.finish()
                zygote.deadline_at = zygote.deadline_at or clock.monotonic() + _EXIT_S

    def deadline_at(self) -> float:
        deadlines = [zygote.deadline_at for zygote in self._zygotes if zygote.deadline_at is not None]
        return min(self._starts.due_at, *deadlines, math.inf)

    def kill_overdue(self, now_at: float) -> None:
        for zygote in self._zygotes:
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                self._starts.on_overdue(zygote, now_at)

    def close(self) -> None:
        """Start no zygote any more."""
        self._starts.close()
