"""How many processes the pool has: as many as were asked for, as there is work for, or as the machine has room for.

Runs in master. Owns that number, and who ends when there are to be fewer. Must not fork: who is missing is asked for by
`forks`.

Between a fewest and a most it follows the work: there is to be one idle process beside the busy ones. It grows when all
have been busy for most of the last moment, twice as much each time if that was of no avail, and shrinks to what was
needed at most in the last half minute; so a load that comes and goes within that changes nothing.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from supervisor.config import MOST_PROCESSES, Config, megabytes, usable_cpus
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.ops.events import Events

#: Over what time it is averaged how much of it all are busy, and from which share on there are too few.
_MOMENT_S: Final = 0.02
_FULL: Final = 0.7
#: All busy again within this after they became more: there is a backlog.
_AGAIN_S: Final = 2.0
#: How long fewer must have been enough.
_LULL_S: Final = 30.0
#: What a child costs that nobody sees: page tables, and pages of the zygote that it overwrites.
_CHILD_BYTES: Final = 4 * 2**20

#: The key of the timer.
SCALING: Final = "scaling"
_FEWER: Final = "there are to be fewer processes"
SCALED: Final = "scaled"


class Scaling:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        dispatcher: Dispatcher,
        budget: Budget,
        events: Events,
        timers: Timers,
        cpus: Callable[[], tuple[int, str]] = usable_cpus,
    ) -> None:
        """`cpus()`: how many this process may use, and why so many, in words."""
        self._config = config
        self._slots = slots
        self._dispatcher = dispatcher
        self._budget = budget
        self._events = events
        self._timers = timers
        self._cpus = cpus
        self._fewest, self._most = config.processes, config.processes_most
        self._auto = config.processes_auto
        self._reason = config.processes_reason
        self._child_bytes = 0  # of a child that has run nothing
        self._measured = 0  # the zygote that it came from
        self._again = False  # what there is room for may be another by now
        self._ending = False  # there may be more children than there are to be
        # Of following the work.
        self._looked_at = 0.0
        self._was_full = False
        self._fullness = 0.0  # the share of the last moment in which all were busy
        self._step = 1
        self._grown_at = -math.inf
        self._less_since_at = math.inf  # fewer have been enough since then
        self._needed = 0  # at the most, since then
        dispatcher.on_ready = self.on_child_ready

    # on request

    def more(self, by: By) -> dict[str, Any]:
        """One more, and no following any more. What cannot be is said, and changes nothing."""
        return self._step_to(self._slots.processes + 1, by)

    def fewer(self, by: By) -> dict[str, Any]:
        return self._step_to(self._slots.processes - 1, by)

    def _step_to(self, processes: int, by: By) -> dict[str, Any]:
        try:
            return self.set(processes, processes, by)
        except ValueError as error:
            self._say(self._slots.processes, str(error), by)
            return self._answer(self._slots.processes)

    @property
    def most(self) -> int:
        """How many processes it may become."""
        return self._most

    def set(self, fewest: int, most: int, by: By) -> dict[str, Any]:
        """So many from now on, or between these. Answers what it was and is. Idempotent. Raises ValueError, in a
        sentence, where that cannot be.
        """
        self._check_open()
        if not 1 <= fewest <= most <= MOST_PROCESSES:
            wanted = f"{fewest}" if fewest == most else f"{fewest}:{most}"
            raise ValueError(f"{wanted} processes cannot be: there are at least 1 and at most {MOST_PROCESSES}")
        before = self._slots.processes
        self._fewest, self._most, self._auto = fewest, most, False
        reason = f"as told by {by}"
        self._settle_on(min(max(before, fewest), most), reason, by)
        return self._answer(before)

    def automatic(self, by: By) -> dict[str, Any]:
        """As many as the machine has room for. Raises ValueError while it drains."""
        self._check_open()
        before = self._slots.processes
        self._auto = True
        self._reckon(by)
        return self._answer(before)

    def again(self, by: By | None) -> None:
        """What we may use may be another by now: say so if it is."""
        if self._auto and self._dispatcher.is_open and self._room_for_children()[0] != self._slots.processes:
            self._reckon(by)

    def on_child_ready(self, child: ChildHandle) -> None:
        """The first child of a zygote shows how much memory each takes before it has run anything."""
        if child.zygote == self._measured:
            return
        self._measured, self._child_bytes = child.zygote, child.meter.sample()
        self._again = True  # by `keep_time`: of a reload's zygote it is not known before what that takes itself

    def _check_open(self) -> None:
        if not self._dispatcher.is_open:
            raise ValueError("it is draining: there will be no more processes, whatever their number is to be")

    def _answer(self, before: int) -> dict[str, Any]:
        told = self.status()
        span = f" now, and {told['fewest']} to {told['most']} as there is work" if self._fewest < self._most else ""
        was = f", as before ({self._reason})" if before == told["now"] else f", after {before} ({self._reason})"
        return {"did": f"has {_processes(told['now'])}{span}{was}", "before": before, **told}

    def status(self) -> dict[str, Any]:
        return {"now": self._slots.processes, "fewest": self._fewest, "most": self._most, "reason": self._reason}

    # as the machine has room

    def _reckon(self, by: By | None) -> None:
        processes, reason = self._room_for_children()
        self._fewest = self._most = processes
        self._settle_on(processes, reason, by)

    def _room_for_children(self) -> tuple[int, str]:
        """How many, and why so many."""
        cpus, reason = self._cpus()
        if not self._budget.limit_bytes or not self._measured:
            return cpus, reason
        each_bytes = max(self._child_bytes, _CHILD_BYTES) + self._config.memory_limit_bytes
        left_bytes = max(0, self._budget.limit_bytes - self._budget.base_bytes)
        fitting = max(1, left_bytes // each_bytes)
        if fitting >= cpus:
            return cpus, reason
        return fitting, (
            f"auto: {megabytes(left_bytes)} of the memory budget are left for children, each of which may take"
            f" {megabytes(each_bytes)}; there are CPUs for {cpus}"
        )

    # as there is work

    def keep_time(self, now_at: float) -> None:
        """To be called when jobs have been placed."""
        if not self._dispatcher.is_open:
            return
        if self._again:
            self._again = False
            self.again(None)
        if self._ending:
            self._end_surplus()
        if self._fewest < self._most:
            self._follow(now_at)
            self._timers.set(SCALING, self._due_at(), lambda _now_at: None)  # the turn comes here

    def _due_at(self) -> float:
        """When there may be more, or fewer, to be, if nothing happens before."""
        if self._was_full and self._slots.processes < self._limit():
            left = (1 - _FULL) / (1 - min(self._fullness, _FULL))
            return self._looked_at + max(0.001, -_MOMENT_S * math.log(left))
        return self._less_since_at + _LULL_S

    def _follow(self, now_at: float) -> None:
        slots, busy = self._slots, self._slots.busy
        kept = math.exp((self._looked_at - now_at) / _MOMENT_S)
        self._fullness = self._fullness * kept + (1 - kept if self._was_full else 0)
        self._looked_at = now_at
        self._was_full = busy >= slots.processes and not slots.short and not slots.cautious
        if self._was_full:
            self._less_since_at = math.inf
            if self._fullness >= _FULL and slots.processes < self._limit():
                self._grow(now_at)
        else:
            self._note_lull(max(self._fewest, busy + 1), now_at)

    def _limit(self) -> int:
        return min(self._most, self._slots.useful)

    def _grow(self, now_at: float) -> None:
        self._step = 2 * self._step if now_at < self._grown_at + _AGAIN_S else 1
        self._grown_at, self._fullness, self._was_full = now_at, 0.0, False
        before = self._slots.processes
        self._settle_on(min(before + self._step, self._limit()), "all were busy", None)

    def _note_lull(self, needed: int, now_at: float) -> None:
        if needed >= self._slots.processes:
            self._less_since_at = math.inf
        elif self._less_since_at == math.inf:
            self._less_since_at, self._needed = now_at, needed
        else:
            self._needed = max(self._needed, needed)
            if now_at >= self._less_since_at + _LULL_S:
                self._less_since_at = math.inf
                self._settle_on(self._needed, f"more were not needed for {_LULL_S:g} s", None)

    # the number

    def _settle_on(self, processes: int, reason: str, by: By | None) -> None:
        before, self._reason = self._slots.processes, reason
        self._slots.resize(processes)
        self._less_since_at = math.inf
        self._ending = True  # by `keep_time`: a child that has just got ready may be there to take another's place
        self._say(before, reason, by)

    def _say(self, before: int, reason: str, by: By | None) -> None:
        self._events.emit(
            "master.scaled", processes=self._slots.processes, before=before, fewest=self._fewest, most=self._most,
            reason=reason, **(by.fields if by is not None else {}),
        )  # fmt: skip

    def _end_surplus(self) -> None:
        """Idle ones leave. Of the busy ones those end whose jobs have run for the shortest time, and only as long as
        more jobs run than are to.
        """
        surplus, coming = self._slots.surplus()
        for child in surplus:
            self._dispatcher.dismiss(child, _FEWER, SCALED)
        busy = [child for child in self._slots if child.sent and child.state is not ChildState.DOOMED]
        ending = [child for child in busy if child.end_plan.stop_reason == SCALED]
        excess = max(0, len(busy) - self._slots.processes)
        for child in ending[excess:]:
            child.end_plan.drop_stop(SCALED)  # others have ended before it: it may take its time
        for child in self._youngest(busy, excess - len(ending)):
            self._dispatcher.dismiss(child, _FEWER, SCALED, self._config.drain_timeout_s)
        self._ending = bool(ending or excess or coming)

    def _youngest(self, busy: list[ChildHandle], count: int) -> list[ChildHandle]:
        """What may not start twice would fail of it: those come last."""
        running = [
            (child.sent[0].lease.at_most_once, -child.sent[0].started_at, child.number, child)
            for child in busy
            if child.state is ChildState.BUSY and child.end_plan.stop_reason != SCALED
        ]
        return [child for *_, child in sorted(running)[: max(0, count)]]


def _processes(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"
