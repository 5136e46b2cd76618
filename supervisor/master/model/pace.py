"""How long handlers and forks take, and so how far ahead jobs may be had. Runs in master. Decides nothing by itself."""

from typing import Final

#: A run shorter than the estimate pulls it down by this share; a longer one replaces it at once.
_DECAY: Final = 0.1
#: What passing a job on costs at the least: no estimate is below it, so no depth is without end.
_FLOOR_S: Final = 20e-6


class Pace:
    """Decaying maxima of recent run times, by klass, of the last `capacity` klasses seen."""

    def __init__(self, capacity: int = 1024) -> None:
        self._estimate_s: dict[str, float] = {}
        self._capacity = capacity
        self.recent_s: float | None = None  # the same over all klasses; None: nothing has run yet
        self.fork_s: float | None = None  # the same of children, from being asked for until they are ready

    def learn(self, klass: str, run_s: float) -> None:
        known_s = self._estimate_s.pop(klass, None)  # put in again at the end: who was seen last is forgotten last
        if len(self._estimate_s) >= self._capacity:
            del self._estimate_s[next(iter(self._estimate_s))]
        self._estimate_s[klass] = _follow(known_s, run_s)
        self.recent_s = _follow(self.recent_s, run_s)

    def learn_fork(self, took_s: float) -> None:
        self.fork_s = _follow(self.fork_s, took_s)

    def of(self, klass: str) -> float | None:
        """Seconds that the next run of `klass` will hardly exceed; None: unknown."""
        return self._estimate_s.get(klass)


def _follow(estimate_s: float | None, run_s: float) -> float:
    run_s = max(run_s, _FLOOR_S)
    if estimate_s is None or run_s >= estimate_s:
        return run_s
    return estimate_s + _DECAY * (run_s - estimate_s)
