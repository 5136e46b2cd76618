"""The master's timers: which callback is due when. Runs in the master. Must not read the clock.

Each part sets, moves and cancels the timers of its own deadlines. That costs one store into a dict, because every job
moves deadlines and most of them never come.
"""

import math
from collections.abc import Callable, Hashable


def _turn(_now_at: float) -> None:
    """Do nothing: the turn that the timer brings about does what is due."""


class Timers:
    def __init__(self) -> None:
        self._timers: dict[Hashable, tuple[float, Callable[[float], None]]] = {}
        #: No timer is due before (monotonic s). The first one may be due later, if it was moved or cancelled.
        self.due_at = math.inf

    def set(self, key: Hashable, at: float, callback: Callable[[float], None] = _turn) -> None:
        """Call `callback(now_at)` once, at that time (monotonic s). Replaces the timer of `key`. inf: never.

        Without a callback the timer only has the loop turn.
        """
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
        """Return when the timer is due; inf: it is not set."""
        timer = self._timers.get(key)
        return math.inf if timer is None else timer[0]

    def run_due(self, now_at: float) -> None:
        """Call the callbacks that are due, the earliest first. If one raises, the later ones stay due.

        A callback may cancel or move later timers. One that is moved and still due is called in this call, too. A
        timer that a callback adds is left for the next call, even if due.
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
