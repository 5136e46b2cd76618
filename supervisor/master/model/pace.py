"""Estimates how long handlers and forks take. Runs in the master. Decides nothing by itself."""

from typing import Final

from supervisor.setting_values import MOST_PROCESSES

#: A run shorter than the estimate lowers it by this share of the difference. A longer run replaces it at once.
_DECAY: Final = 0.1
#: Passing a job on costs at least this. No estimate is lower, so the number of jobs sent ahead is bounded.
_FLOOR_S: Final = 20e-6
#: Jobs expected to run longer are reported as started at once, so that a crash of the master counts as a death. No such
#: job is leased for a child that is not ready yet.
SHORT_S: Final = 0.001
#: Upper bound of the master's own time per job. More children do not help when jobs are shorter than this.
_FEED_S: Final = 100e-6


class Pace:
    """Decaying maxima of recent run times, by klass, for the last `capacity` klasses that came."""

    def __init__(self, capacity: int = 1024) -> None:
        self._estimate_s: dict[str, float] = {}
        self._capacity = capacity
        self.recent_s: float | None = None  # the estimate over all klasses; None: no job has run yet
        self.fork_s: float | None = None  # the estimate for a child, from the request for a fork until it is ready

    def learn(self, klass: str, run_s: float) -> None:
        known_s = self._estimate_s.get(klass)
        if known_s is None and len(self._estimate_s) >= self._capacity:
            del self._estimate_s[next(iter(self._estimate_s))]  # one that runs still is learnt again by its next end
        self._estimate_s[klass] = _follow(known_s, run_s)
        self.recent_s = _follow(self.recent_s, run_s)

    def learn_fork(self, took_s: float) -> None:
        self.fork_s = _follow(self.fork_s, took_s)

    def of(self, klass: str) -> float | None:
        """Return the seconds that the next run of `klass` will hardly exceed, or None if no run is known."""
        return self._estimate_s.get(klass)

    @property
    def is_quick(self) -> bool:
        """True if recent jobs took less time than the master needs for each."""
        return self.recent_s is not None and self.recent_s < _FEED_S

    @property
    def useful_processes(self) -> int:
        """How many processes the master can keep busy at the recent pace."""
        return MOST_PROCESSES if self.recent_s is None else 1 + int(self.recent_s / _FEED_S)


def _follow(estimate_s: float | None, run_s: float) -> float:
    if run_s < _FLOOR_S:
        run_s = _FLOOR_S
    if estimate_s is None or run_s >= estimate_s:
        return run_s
    return estimate_s + _DECAY * (run_s - estimate_s)
