"""Counts what has happened since the master began, and how long it took. Runs in the master. No I/O, no decision.

A bounded number of queues, klasses and reasons is counted apart. All further ones count together as OTHER. Numbers that
equal a count of events are taken from `ops/events.py` and not counted here.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from supervisor.master.model.outcome_rules import INTERRUPTIONS

#: Most pairs of a queue and a klass that are counted apart.
MOST_PAIRS: Final = 200
#: Most of these pairs whose klass has no handler here. A producer can invent any number of klasses, and those that run
#: must find room.
MOST_UNKNOWN_PAIRS: Final = 20
#: Most queues that are counted apart.
MOST_QUEUES: Final = 100
#: Most reasons of deaths, over all pairs. A handler may exit with any status.
MOST_REASONS: Final = 50
#: By it an exchange counts for the recent ones, so about the last 20 do.
_WEIGHT_OF_ONE: Final = 0.1
#: The name for all that is beyond these bounds.
OTHER: Final = "other"
#: The reason of an interruption that the handler raised by itself.
_BY_HANDLER: Final = "handler"
#: Most remembered deaths whose jobs have not started again here. Peers have the jobs of the oldest.
_MOST_DEATHS: Final = 1000
#: `longest_turn_s` covers one to two of these windows.
_WINDOW_S: Final = 30.0

#: Upper bounds of the histograms' cells: for the times of jobs, and for the master's own times.
JOB_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1800.0, 3600.0)
OWN_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: The ends that a supervisor sums up in its status.
SUMMED: Final = ("completed", "retried", "failed", "died", "released", "returned", "suspended")
#: How a job, or one of its runs, may end.
OUTCOMES: Final = (*SUMMED, "unknown", "misfit", "stale")


class Histogram:
    """How many took how long. The last cell counts times above all bounds."""

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
    """The counts of one klass in one queue."""

    __slots__ = (*OUTCOMES, "deaths", "interruptions", "run", "started", "wait")

    def __init__(self) -> None:
        self.started = 0
        self.completed = 0
        self.retried = 0
        self.failed = 0
        self.died = 0
        self.released = 0
        self.returned = 0
        self.suspended = 0
        self.unknown = 0
        self.misfit = 0
        self.stale = 0
        self.deaths: dict[str, int] = {}  # by reason
        self.interruptions: dict[str, int] = {}  # of released jobs, by reason
        self.wait = Histogram(JOB_BOUNDS_S)
        self.run = Histogram(JOB_BOUNDS_S)


class MasterCounts:
    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], JobCounts] = {}
        self._unknown_pairs = 0
        self._queues: set[str] = set()
        self._reasons: set[str] = set()
        self._deaths: dict[str, float] = {}  # jid -> when the kernel reported it; until the job starts again here
        self.fork = Histogram(OWN_BOUNDS_S)  # from the request of a child until it is ready
        self.restart = Histogram(OWN_BOUNDS_S)  # from the kernel's report of a death until the job has started again
        self.exchange = Histogram(OWN_BOUNDS_S)
        self.recent_exchange_s: float | None = None  # the mean of the last ones, weighted; None: there was none
        self.granted = 0  # leases
        self.renewed = 0  # leases
        self.lost = 0  # leases
        self.handed_back = 0  # jobs handed back to the front, never started
        self.swept = 0  # jobs of lost workers
        self.link_lost: tuple[float, str] | None = None  # when the last connection to Redis was lost (monotonic s), why
        self.lines_dropped = 0  # printed lines that were too many for the log, of children that are closed
        #: When printed lines were too many for the log last (monotonic s), and jid and klass of their job, if known.
        self.lines_dropped_last: tuple[float, str | None, str | None] | None = None
        self._turns = (0.0, 0.0)  # the longest turn of the previous window and of this one
        self._window_until_at = 0.0

    def add_exchange(self, seconds: float) -> None:
        self.exchange.add(seconds)
        recent_s = self.recent_exchange_s
        self.recent_exchange_s = seconds if recent_s is None else recent_s + (seconds - recent_s) * _WEIGHT_OF_ONE

    # jobs

    def of(self, queue: str, klass: str) -> JobCounts:
        """Return the counts of this pair, or of OTHER if there are too many pairs."""
        return self._jobs.get((queue, klass)) or self._first_of(queue, klass)

    def of_unknown(self, queue: str, klass: str) -> JobCounts:
        """Return the counts of a pair whose klass has no handler here."""
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
        """Return all counts with their queue and klass."""
        return ((queue, klass, counts) for (queue, klass), counts in self._jobs.items())

    def ended_as(self, counts: JobCounts, outcome: str, reason: str | None = None) -> None:
        """Count one more run that ended as `outcome`. `reason`: of a death or an interruption."""
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
        """How many runs ended as each outcome, over all queues and klasses."""
        return {name: sum(getattr(each, name) for each in self._jobs.values()) for name in SUMMED}

    @property
    def deaths(self) -> dict[str, int]:
        """How many deaths there were for each reason, over all queues and klasses."""
        found: dict[str, int] = {}
        for counts in self._jobs.values():
            for reason, count in counts.deaths.items():
                found[reason] = found.get(reason, 0) + count
        return found

    # restarts

    def note_death(self, jid: str, reported_at: float) -> None:
        """Remember when a job's child died, until the job starts again here."""
        while len(self._deaths) >= _MOST_DEATHS:
            del self._deaths[next(iter(self._deaths))]
        self._deaths[jid] = reported_at

    def note_start(self, jid: str, now_at: float) -> None:
        """A job starts. Measure the restart if its death here is remembered."""
        reported_at = self._deaths.pop(jid, None)
        if reported_at is not None:
            self.restart.add(now_at - reported_at)

    # the loop

    def turned(self, began_at: float, now_at: float) -> None:
        """A turn of the loop has ended."""
        before, longest = self._turns
        if now_at >= self._window_until_at:
            before = longest if now_at < self._window_until_at + _WINDOW_S else 0.0
            longest, self._window_until_at = 0.0, now_at + _WINDOW_S
            self._turns = before, longest
        if now_at - began_at > longest:
            self._turns = before, now_at - began_at

    @property
    def longest_turn_s(self) -> float:
        """The longest turn of the last 30 to 60 s."""
        return max(self._turns)
