"""How long handlers and forks took lately. Runs in the master. Decides nothing; `Slots` sends jobs ahead by it."""

from typing import Final

#: A run shorter than the estimate pulls it down by this share; a longer one replaces it at once.
_DECAY: Final = 0.1
#: The least time that passing on a job takes. No estimate is below it, so the number of jobs ahead is bounded.
_FLOOR_S: Final = 20e-6


class Pace:
    """Decaying maxima of recent run times, by klass, of the last `capacity` klasses seen."""

    def __init__(self, capacity: int = 1024) -> None:
        self._estimate_s: dict[str, float] = {}
        self._capacity = capacity
        self.recent_s: float | None = None  # the decaying maximum over all klasses; None: nothing has run yet
        self.fork_s: float | None = None  # the same of forks, from the request until the child is ready

    def learn(self, klass: str, run_s: float) -> None:
        known_s = self._estimate_s.pop(klass, None)  # inserted again at the end: the klass seen last is forgotten last
        if len(self._estimate_s) >= self._capacity:
            del self._estimate_s[next(iter(self._estimate_s))]
        self._estimate_s[klass] = _follow(known_s, run_s)
        self.recent_s = _follow(self.recent_s, run_s)

    def learn_fork(self, took_s: float) -> None:
        self.fork_s = _follow(self.fork_s, took_s)

    def of(self, klass: str) -> float | None:
        """Seconds that the next run of `klass` will hardly exceed. None: unknown."""
        return self._estimate_s.get(klass)


def _follow(estimate_s: float | None, run_s: float) -> float:
    run_s = max(run_s, _FLOOR_S)
    if estimate_s is None or run_s >= estimate_s:
        return run_s
    return estimate_s + _DECAY * (run_s - estimate_s)
