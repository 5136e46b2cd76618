"""Collects the Python stacks of all children, with the jobs they run. Runs in the master. Must not block."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.timers import Timers

#: Children have this long to write their stacks before the first look.
_WRITTEN_S: Final = 0.2
#: Stacks that are not there after this time are given up.
_LONGEST_S: Final = 1.0
#: The key of the timer.
STACK_DUMP: Final = "stack-dump"


class Seen(NamedTuple):
    """A child and its stacks. `stack` is empty if the child has not written it in time."""

    child: ChildHandle
    stack: str


def describe(child: ChildHandle) -> dict[str, Any]:
    """Return the child's number and pid, and the job that it runs, as plain JSON."""
    running = child.running
    return {
        "child": child.number,
        "pid": child.pid,
        "jid": running and running.lease.jid,
        "klass": running and running.lease.klass,
        "running_s": running and round(clock.monotonic() - running.started_at, 3),
    }


class StackDump:
    """Has all children write their stacks, and reads them a moment later. All that ask meanwhile get the same."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._asked: list[tuple[ChildHandle, int]] = []  # and where in its file its stacks will begin
        self._then: list[Callable[[list[Seen]], None]] = []
        self._began_at = 0.0

    def ask(self, children: Iterable[ChildHandle], then: Callable[[list[Seen]], None]) -> None:
        """Call `then` once, a moment later, with the stacks of those `children` that are ready."""
        self._then.append(then)
        if len(self._then) > 1:
            return
        self._asked = [(child, child.stacks.make_room()) for child in children if child.is_ready]
        for child, _start in self._asked:
            child.write_stacks()
        self._began_at = clock.monotonic()
        self._timers.set(STACK_DUMP, self._began_at + _WRITTEN_S, self._read)

    def _read(self, now_at: float) -> None:
        living = [(child, start) for child, start in self._asked if not child.closed]
        seen = [Seen(child, child.stacks.read(start)) for child, start in living]
        if not all(each.stack for each in seen) and now_at < self._began_at + _LONGEST_S:
            self._timers.set(STACK_DUMP, now_at + _WRITTEN_S / 2, self._read)
            return
        for child, start in living:
            child.stacks.clear(start)  # these stacks must not be shown with the end of a job
        then, self._then, self._asked = self._then, [], []
        for tell in then:
            tell(seen)
