"""Reads what children say and print, and pauses children that print too much. Runs in the master."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.master.inbox import Inbox
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.output import LONGEST_REST_S
from supervisor.master.model.states import ChildState
from supervisor.master.processes.crash_loop_guard import CrashLoopGuard
from supervisor.master.timers import Timers

#: The pause of a child that prints too much grows by one unit for every four other children that are paused.
_PAUSED_PER_UNIT: Final = 4
#: The key of the timer.
_OUTPUT: Final = "children.output"


class ChildReader:
    def __init__(
        self,
        inbox: Inbox,
        timers: Timers,
        dispatcher: Dispatcher,
        guard: CrashLoopGuard,
        counts: MasterCounts,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change()` is called when a child may have got ready, or may have passed its probation."""
        self._inbox = inbox
        self._timers = timers
        self._dispatcher = dispatcher
        self._guard = guard
        self._counts = counts
        self._on_change = on_change
        self._paused_until: dict[ChildHandle, float] = {}  # children whose output is not read (monotonic s)
        self._report_dropped_at: dict[ChildHandle, float] = {}  # children whose lines were dropped, unreported yet

    def watch(self, child: ChildHandle) -> None:
        self._inbox.watch(child.talk.fd, partial(self._on_talk, child))
        self._inbox.watch(child.output.fd, partial(self._on_printed, child))

    def forget(self, child: ChildHandle) -> None:
        """Stop reading, before the child's sockets are closed."""
        self._inbox.forget(child.talk.fd)
        self._inbox.forget(child.output.fd)
        self._paused_until.pop(child, None)
        self._report_dropped_at.pop(child, None)
        self._counts.lines_dropped += child.output.dropped

    def _on_talk(self, child: ChildHandle) -> None:
        self._read_talk(child)
        if child.talk.at_end:
            self._inbox.forget(child.talk.fd)  # it stays readable for ever

    def _read_talk(self, child: ChildHandle) -> None:
        was_spawning = child.state is ChildState.SPAWNING
        self._dispatcher.on_spoke(child)
        if was_spawning or self._guard.is_failing:
            self._on_change()

    def _on_printed(self, child: ChildHandle) -> None:
        """Read the output. Pause a child that prints too much, and longer if others do so too."""
        self._read_talk(child)  # outcomes that came before these lines
        output = child.output
        dropped = output.dropped
        output.read()
        if output.dropped > dropped:
            held = child.printing if child.shared is None else None
            job = (held.lease.jid, held.lease.klass) if held else (None, None)
            self._counts.lines_dropped_last = (clock.monotonic(), *job)
        if output.untold_at < math.inf:
            self._report_dropped_at[child] = output.untold_at
            self._run_at(output.untold_at)
        now_at = clock.monotonic()
        if output.at_end:
            self._inbox.forget(output.fd)
        elif output.rests_until_at > now_at:
            self._inbox.forget(output.fd)
            pause_s = (output.rests_until_at - now_at) * (1 + len(self._paused_until) // _PAUSED_PER_UNIT)
            self._paused_until[child] = now_at + min(pause_s, LONGEST_REST_S)
            self._run_at(self._paused_until[child])

    def _run_at(self, at: float) -> None:
        if at < self._timers.at(_OUTPUT):
            self._timers.set(_OUTPUT, at, self._run_due)

    def _run_due(self, now_at: float) -> None:
        for child in [child for child, until_at in self._paused_until.items() if now_at >= until_at]:
            del self._paused_until[child]
            self._inbox.watch(child.output.fd, partial(self._on_printed, child))
        for child in [child for child, at in self._report_dropped_at.items() if now_at >= at]:
            del self._report_dropped_at[child]
            child.output.open_window(now_at)
        pending = (*self._paused_until.values(), *self._report_dropped_at.values())
        self._timers.set(_OUTPUT, min(pending, default=math.inf), self._run_due)
