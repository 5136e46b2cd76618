"""A child's end, from the kernel's report to the settled job. Runs in the master.

The kernel tells the master by a pidfd, at once. The child's zygote then ends what the child left running, reaps it and
reports its wait status. What the end means for its jobs is decided by `Dispatcher`, what it means for the next start by
`ChildStarts`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.linux import kernel, strays
from supervisor.master.inbox import Inbox
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model import outcome_rules
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.states import ChildState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_starts import FORK_S, ChildStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import Reaped
from supervisor.ops.events import Events

#: After a child's end, its zygote must have ended its leftovers and reported the end within this time.
_REPORT_S: Final = 2.0


class ChildReaper:
    def __init__(
        self,
        inbox: Inbox,
        events: Events,
        zygotes: Zygotes,
        starts: ChildStarts,
        dispatcher: Dispatcher,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change()` is called when `deadline_at` has become sooner."""
        self._inbox = inbox
        self._events = events
        self._zygotes = zygotes
        self._starts = starts
        self._dispatcher = dispatcher
        self._on_change = on_change
        self._report_by_at: dict[ChildHandle, float] = {}  # dead children, and when their zygotes must have reported

    def watch(self, child: ChildHandle, zygote: ZygoteHandle) -> None:
        """Watch a child that its zygote has just forked."""
        # While the zygote forked it could not report: give it time for the reports that became due meanwhile.
        now_at = clock.monotonic()
        for dead, report_by_at in self._report_by_at.items():
            if dead.zygote == zygote.number and now_at >= report_by_at:
                self._report_by_at[dead] = now_at + _REPORT_S
        assert child.pidfd is not None
        self._inbox.watch(child.pidfd, partial(self._on_ended, child))
        self._events.emit("child.spawned", child=child.number, pid=child.pid)

    # the usual way

    def _on_ended(self, child: ChildHandle) -> None:
        """The kernel reports the child's end. The zygote's report is due soon."""
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        child.ended_at = clock.monotonic()
        self._report_by_at[child] = child.ended_at + _REPORT_S
        self._on_change()

    def on_reaped(self, zygote: ZygoteHandle, reaped: Reaped) -> None:
        """The zygote reports the child's end."""
        self._events.emit(
            "child.reaped", child=reaped.child, pid=reaped.pid, status=outcome_rules.death_reason(reaped.status),
            cpu_ms=round(reaped.cpu_s * 1000), max_rss_bytes=reaped.max_rss_bytes,
        )  # fmt: skip
        child = self._starts.find(zygote, reaped.child)
        if child is not None and child.pid == reaped.pid:
            self.settle(child, reaped, child.why_killed)

    def settle(self, child: ChildHandle, reaped: Reaped | None, why_killed: str | None) -> None:
        """Settle the jobs of a dead child, judge whether it was a failed start, and forget the child.

        `reaped`: its zygote's report, if there is one. `why_killed`: why the master killed it, or lost its zygote.
        """
        was_spawning = child.state is ChildState.SPAWNING
        was_unused = child.state in (ChildState.IDLE, ChildState.DOOMED) and not child.served and not child.sent
        self._dispatcher.on_gone(child, reaped, why_killed)
        # The last packet of the child may say that it is ready.
        got_ready = was_spawning and child.state is not ChildState.SPAWNING and child.why_killed is None
        self._starts.note_ready(child, got_ready)
        child.output.read_to_end()
        self._starts.judge_end(child, reaped, was_unused)
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        self._report_by_at.pop(child, None)
        self._starts.forget(child)

    # other ways

    def kill_all_of(self, zygote: ZygoteHandle, why: str) -> list[ChildHandle]:
        """Kill the children of a zygote that has ended, and wait until they have. Returns them, still to be settled."""
        children = self._starts.of(zygote)
        for child in children:
            self._starts.note_ready(child)
            child.kill(why)
        kernel.await_ends([child.pidfd for child in children if child.pidfd is not None], _REPORT_S)
        return children

    def abandon(self, why: str) -> None:
        """Hand back the jobs of children that have not ended although they were killed."""
        for child in self._starts.all():
            if child.sent:
                self.settle(child, None, why)

    # time

    def deadline_at(self) -> float:
        return min(map(self._deadline_of, self._report_by_at), default=math.inf)

    def _deadline_of(self, dead: ChildHandle) -> float:
        report_by_at = self._report_by_at[dead]
        zygote = self._zygotes.get(dead.zygote)
        if zygote is not None and zygote.runs_hooks and any(each.pidfd is None for each in self._starts.of(zygote)):
            return max(report_by_at, zygote.heard_at + FORK_S)  # hooks before a fork may take their time
        return report_by_at

    def run_due(self, now_at: float) -> None:
        """Settle dead children whose zygotes have not reported them in time."""
        for child in [child for child in self._report_by_at if now_at >= self._deadline_of(child)]:
            zygote = self._zygotes.get(child.zygote)
            if zygote is not None:
                zygote.unresponsive = "it does not report the end of a child"
                self._end_strangers_below(zygote, child)
            self.settle(child, None, child.why_killed)

    def _end_strangers_below(self, zygote: ZygoteHandle, dead: ChildHandle) -> None:
        """End what the dead child left running, in place of its zygote, before its job runs again."""
        living = {child.pid for child in self._starts.of(zygote) if child is not dead}
        strays.end_strays_of(zygote.pid, living, clock.monotonic() + strays.TRY_S)
