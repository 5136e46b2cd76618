"""What all children are doing, for whoever asks: which jobs, where in their code. Runs in master. Must not block."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.timers import Timers

#: Between the signal and the first look; and when what is not there is given up.
_WRITTEN_S: Final = 0.2
_LONGEST_S: Final = 1.0
#: The key of the timer.
STACK_DUMP: Final = "stack-dump"


class Seen(NamedTuple):
    """What one child is doing. `stack` is empty where it has not said so in time."""

    child: ChildHandle
    stack: str


def describe(child: ChildHandle) -> dict[str, Any]:
    """Which child it is, and what it runs."""
    running = child.running
    return {
        "child": child.number,
        "pid": child.pid,
        "jid": running and running.lease.jid,
        "klass": running and running.lease.klass,
        "running_s": running and round(clock.monotonic() - running.started_at, 3),
    }


class StackDump:
    """Has all children write their stacks, and reads them a moment later. Who asks meanwhile gets the same."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._asked: list[tuple[ChildHandle, int]] = []  # with where its stacks will be
        self._unknown: list[
            ChildHandle
        ] = []  # of them who has said that it is ready before its zygote has told its pid
        self._then: list[Callable[[list[Seen]], None]] = []
        self._began_at = 0.0

    def ask(self, children: Iterable[ChildHandle], then: Callable[[list[Seen]], None]) -> None:
        """`then` is called with what was seen, a moment later, once."""
        self._then.append(then)
        if len(self._then) > 1:
            return
        self._asked = [(child, child.stacks.make_room()) for child in children if child.is_ready]
        self._unknown = [child for child, _start in self._asked if child.pidfd is None]
        for child, _start in self._asked:
            child.write_stacks()
        self._began_at = clock.monotonic()
        self._timers.set(STACK_DUMP, self._began_at + _WRITTEN_S, self._read)

    def _read(self, now_at: float) -> None:
        living = [(child, start) for child, start in self._asked if not child.closed]
        unknown, self._unknown = self._unknown, []
        for child in unknown:
            if not child.closed:
                child.write_stacks()
        seen = [Seen(child, child.stacks.read(start)) for child, start in living]
        if not all(each.stack for each in seen) and now_at < self._began_at + _LONGEST_S:
            self._timers.set(STACK_DUMP, now_at + _WRITTEN_S / 2, self._read)
            return
        for child, start in living:
            child.stacks.clear(start)  # what was asked for tells nothing of how a job ends
        then, self._then, self._asked = self._then, [], []
        for tell in then:
            tell(seen)
