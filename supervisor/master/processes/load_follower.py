"""Decides how many processes the work needs, between a fewest and a most. Runs in the master. Does no I/O.

There should be one idle process beside the busy ones. The count grows when all processes have been busy for most of the
last moment, by twice as many each time if the last growth was not enough. It shrinks to the most that was needed in the
last half minute, so a load that comes and goes within that time changes nothing.
"""

import math
from typing import Final

from supervisor.master.jobs.admission import Admission
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import Slots
from supervisor.master.timers import Timers

#: The share of the time in which all processes are busy is averaged over this time.
_MOMENT_S: Final = 0.02
#: From this share on, there are too few processes.
_FULL: Final = 0.7
#: If all processes are busy again within this time after a growth, there is a backlog.
_BACKLOG_S: Final = 2.0
#: Fewer processes must have been enough for this time.
_LULL_S: Final = 30.0
#: The key of the timer.
SCALING: Final = "scaling"


class LoadFollower:
    def __init__(self, slots: Slots, pace: Pace, admission: Admission, timers: Timers) -> None:
        self._slots = slots
        self._pace = pace
        self._admission = admission
        self._timers = timers
        self._looked_at = 0.0
        self._was_full = False
        self._fullness = 0.0  # share of the last moment in which all processes were busy
        self._step = 1  # processes that the last growth added
        self._grown_at = -math.inf
        self._lull_since_at = math.inf  # fewer processes have been enough since then (monotonic s)
        self._needed = 0  # the most since then

    def wanted(self, now_at: float, fewest: int, most: int) -> tuple[int, str] | None:
        """Return the new process count and the reason for it; None: no change. Called in each turn."""
        slots, busy = self._slots, self._slots.busy
        kept = math.exp((self._looked_at - now_at) / _MOMENT_S)
        self._fullness = self._fullness * kept + (1 - kept if self._was_full else 0)
        self._looked_at = now_at
        # While jobs wait for room or run one at a time, more processes would not help.
        may_start = not self._admission.waits_for_room and not self._admission.is_serial
        self._was_full = busy >= slots.processes and may_start
        if not self._was_full:
            return self._shrunk(max(fewest, busy + 1), now_at)
        self._lull_since_at = math.inf
        if self._fullness < _FULL or slots.processes >= self._limit(most):
            return None
        return self._grown(now_at, most), "all were busy"

    def plan(self, most: int) -> None:
        """Have the loop turn when the count may change, if nothing happens before."""
        self._timers.set(SCALING, self._due_at(most))

    def _due_at(self, most: int) -> float:
        if self._was_full and self._slots.processes < self._limit(most):
            left = (1 - _FULL) / (1 - min(self._fullness, _FULL))
            return self._looked_at + max(0.001, -_MOMENT_S * math.log(left))
        return self._lull_since_at + _LULL_S

    def end_lull(self) -> None:
        """The process count has changed: measure from now on whether fewer are enough."""
        self._lull_since_at = math.inf

    def _limit(self, most: int) -> int:
        return min(most, self._pace.useful_processes)

    def _grown(self, now_at: float, most: int) -> int:
        self._step = 2 * self._step if now_at < self._grown_at + _BACKLOG_S else 1
        self._grown_at, self._fullness, self._was_full = now_at, 0.0, False
        return min(self._slots.processes + self._step, self._limit(most))

    def _shrunk(self, needed: int, now_at: float) -> tuple[int, str] | None:
        if needed >= self._slots.processes:
            self._lull_since_at = math.inf
        elif self._lull_since_at == math.inf:
            self._lull_since_at, self._needed = now_at, needed
        else:
            self._needed = max(self._needed, needed)
            if now_at >= self._lull_since_at + _LULL_S:
                return self._needed, f"more were not needed for {_LULL_S:g} s"
        return None
