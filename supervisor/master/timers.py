"""The master's timers: what is due when, and what is called then. Runs in the master. Must not read the clock.

Whoever has a deadline sets its timer here, and moves or cancels it. That costs a store into a dict: deadlines are moved
with every job, and most of them never come.
"""

import math
from collections.abc import Callable, Hashable


class Timers:
    def __init__(self) -> None:
        self._timers: dict[Hashable, tuple[float, Callable[[float], None]]] = {}
        #: No timer is due before (monotonic s). The first one may be due later, if it was moved or cancelled.
        self.due_at = math.inf

    def set(self, key: Hashable, at: float, callback: Callable[[float], None]) -> None:
        """Call `callback(now_at)` once, at that time (monotonic s), in place of what `key` was set to. inf: never."""
        if at == math.inf:
            self._timers.pop(key, None)
            return
        self._timers[key] = at, callback
        if at < self.due_at:
            self.due_at = at

    def cancel(self, key: Hashable) -> None:
        """Idempotent."""
        self._timers.pop(key, None)

    def at(self, key: Hashable) -> float:
        """Return when this timer is due; inf: it is not set."""
        timer = self._timers.get(key)
        return math.inf if timer is None else timer[0]

    def run_due(self, now_at: float) -> None:
        """Call back what is due, the earliest first. New timers of a callback are left for the next call, even if due.

        A callback may cancel or move what is due after it. What it moves to another time that has come is called all
        the same. If it raises an exception, what is due after it stays so.
        """
        if now_at < self.due_at:
            return
        timers = self._timers
        due = [key for key, timer in timers.items() if timer[0] <= now_at]
        due.sort(key=self.at)
        try:
            for key in due:
                timer = timers.get(key)
                if timer is not None and timer[0] <= now_at:
                    del timers[key]
                    timer[1](now_at)
        finally:
            self.due_at = min((at for at, _ in timers.values()), default=math.inf)
