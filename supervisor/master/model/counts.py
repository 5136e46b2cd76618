"""What has happened since the master began, and how long it took. Runs in master. Numbers only: no I/O, no decision.

Owns what is told apart: so many queues, klasses and reasons; what comes after them counts together, as OTHER. What is
an event of the log is counted there (`ops/events.py`), and not once more here.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from supervisor.master.model.outcome_rules import INTERRUPTIONS

#: Pairs of a queue and a klass that are counted by themselves.
MOST_PAIRS: Final = 200
#: Of these, pairs with a klass that no handler here is for: whoever puts jobs makes up as many of them as he likes, and
#: those that run must find room.
MOST_UNKNOWN_PAIRS: Final = 20
#: And queues.
MOST_QUEUES: Final = 100
#: Reasons of deaths, of all pairs together: a handler may exit with any status.
MOST_REASONS: Final = 50
#: What is beyond these counts as.
OTHER: Final = "other"
#: An interruption that no word of ours explains: its handler has raised it.
_BY_HANDLER: Final = "handler"
#: Deaths whose jobs have not started again here; the oldest are forgotten, as others have their jobs.
_MOST_DEATHS: Final = 1000
#: The longest turn is that of the last one to two of these.
_WINDOW_S: Final = 30.0

#: Upper ends of the cells, in seconds: of what jobs take, and of what we take.
JOB_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1800.0, 3600.0)
OWN_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: How a job, or one of its runs, has ended.
OUTCOMES: Final = ("completed", "retried", "failed", "died", "released", "returned", "unknown", "stale")
#: Those that a supervisor sums up of itself.
SUMMED: Final = ("completed", "retried", "failed", "died", "released", "returned")


class Histogram:
    """How many took how long. The last cell is for what is above all bounds."""

    __slots__ = ("bounds_s", "cells", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.cells = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.cells[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.cells)


class JobCounts:
    """Of the jobs of one klass in one queue."""

    __slots__ = (*OUTCOMES, "deaths", "interruptions", "run", "started", "wait")

    def __init__(self) -> None:
        self.started = 0
        self.completed = 0
        self.retried = 0
        self.failed = 0
        self.died = 0
        self.released = 0
        self.returned = 0
        self.unknown = 0
        self.stale = 0
        self.deaths: dict[str, int] = {}  # of those that died, by reason
        self.interruptions: dict[str, int] = {}  # of those that were released, by reason
        self.wait = Histogram(JOB_BOUNDS_S)
        self.run = Histogram(JOB_BOUNDS_S)


class Counts:
    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], JobCounts] = {}
        self._unknown_pairs = 0
        self._queues: set[str] = set()
        self._reasons: set[str] = set()
        self._deaths: dict[str, float] = {}  # jid -> when the kernel has reported it, until it starts again here
        self.fork = Histogram(OWN_BOUNDS_S)  # from asking for a child until it is ready
        self.restart = Histogram(OWN_BOUNDS_S)  # from the kernel's report of a death until the job has started again
        self.exchange = Histogram(OWN_BOUNDS_S)
        self.granted = 0  # leases
        self.renewed = 0
        self.lost = 0
        self.handed_back = 0  # to the front, never started
        self.swept = 0  # jobs of lost workers
        self._turns = (0.0, 0.0)  # the longest, of the window before and of this one
        self._window_until_at = 0.0

    # of jobs

    def of(self, queue: str, klass: str) -> JobCounts:
        return self._jobs.get((queue, klass)) or self._first_of(queue, klass)

    def of_unknown(self, queue: str, klass: str) -> JobCounts:
        """The same for a klass that no handler here is for."""
        if (queue, klass) not in self._jobs:
            if self._unknown_pairs >= MOST_UNKNOWN_PAIRS:
                return self.of(OTHER, OTHER)
            self._unknown_pairs += 1
        return self.of(queue, klass)

    def _first_of(self, queue: str, klass: str) -> JobCounts:
        if len(self._jobs) < MOST_PAIRS and (queue in self._queues or len(self._queues) < MOST_QUEUES):
            self._queues.add(queue)
        else:
            queue = klass = OTHER
        counts = self._jobs.get((queue, klass))
        if counts is None:
            counts = self._jobs[queue, klass] = JobCounts()
        return counts

    def jobs(self) -> Iterator[tuple[str, str, JobCounts]]:
        """By queue and klass."""
        return ((queue, klass, counts) for (queue, klass), counts in self._jobs.items())

    def ended_as(self, counts: JobCounts, outcome: str, reason: str | None = None) -> None:
        """One run more has ended that way. `reason`: of a death, or an interruption."""
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        if outcome == "died":
            known = self._known(reason or OTHER)
            counts.deaths[known] = counts.deaths.get(known, 0) + 1
        elif outcome == "released":
            known = reason if reason in INTERRUPTIONS else _BY_HANDLER
            counts.interruptions[known] = counts.interruptions.get(known, 0) + 1

    def _known(self, reason: str) -> str:
        if reason not in self._reasons and len(self._reasons) >= MOST_REASONS:
            reason = OTHER
        self._reasons.add(reason)
        return reason

    @property
    def ended(self) -> dict[str, int]:
        """How many have ended which way, over all queues and klasses."""
        return {name: sum(getattr(each, name) for each in self._jobs.values()) for name in SUMMED}

    @property
    def deaths(self) -> dict[str, int]:
        """How many deaths there were for each reason, likewise."""
        found: dict[str, int] = {}
        for counts in self._jobs.values():
            for reason, count in counts.deaths.items():
                found[reason] = found.get(reason, 0) + count
        return found

    # of a death, until the job runs again

    def note_death(self, jid: str, reported_at: float) -> None:
        while len(self._deaths) >= _MOST_DEATHS:
            del self._deaths[next(iter(self._deaths))]
        self._deaths[jid] = reported_at

    def note_start(self, jid: str, now_at: float) -> None:
        """If its death here is remembered, this is its restart."""
        reported_at = self._deaths.pop(jid, None)
        if reported_at is not None:
            self.restart.add(now_at - reported_at)

    # of the loop

    def turned(self, began_at: float, now_at: float) -> None:
        """A turn of the loop is over."""
        before, longest = self._turns
        if now_at >= self._window_until_at:
            before = longest if now_at < self._window_until_at + _WINDOW_S else 0.0
            longest, self._window_until_at = 0.0, now_at + _WINDOW_S
            self._turns = before, longest
        if now_at - began_at > longest:
            self._turns = before, now_at - began_at

    @property
    def longest_turn_s(self) -> float:
        """Of the last half a minute to a minute in which it turned."""
        return max(self._turns)
