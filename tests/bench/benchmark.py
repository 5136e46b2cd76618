"""Defines a benchmark: rows that are measured in turn, and the comparisons between them.

A row is one contender: a limit of the machine, ourselves in one setting, or a peer.
"""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.bench.disturbance import Disturbance
from tests.bench.figures import Figures, ratios, series, spread

if TYPE_CHECKING:
    from tests.bench.bench import Bench


#: Ends the name of a row that was measured with an earlier version.
BEFORE = ", before"


class Unmeasured(Exception):
    """A row could not be measured, in one sentence."""


@dataclass(frozen=True)
class Step:
    """One turn of a round. A step measures one row, or several that take turns call by call."""

    rows: tuple[str, ...]
    measure: Callable[[], Figures]
    missing: str | None = None  # why it cannot be measured here
    is_ours: bool = True  # what it measures depends on our code
    runs_python: bool = True  # and on the interpreter: it is not all in the server


def step(row: str, measure: Callable[[], Mapping[str, float]]) -> Step:
    """Return the step of one row of ours."""
    return Step((row,), lambda: {row: measure()})


def limit(row: str, measure: Callable[[], Mapping[str, float]]) -> Step:
    """Return the step of one row that does not depend on our code."""
    return Step((row,), lambda: {row: measure()}, is_ours=False)


@dataclass(frozen=True)
class Compared:
    """A figure over the same one of other rows (the best of them), or by itself where there are none; maybe a bar."""

    name: str
    row: str
    column: str
    over: tuple[str, ...] = ()
    over_column: str | None = None
    least: float | None = None
    most: float | None = None
    best: str = "most"  # of the others: the one of the most, or of the least

    @property
    def is_bar(self) -> bool:
        return self.least is not None or self.most is not None

    @property
    def bar(self) -> str:
        """Return the bar in words."""
        unit = "x" if self.over else f" {self.column}"
        if self.least is not None:
            return f">= {self.least:g}{unit}"
        return f"<= {self.most:g}{unit}" if self.most is not None else ""

    def values(self, rounds: Sequence[Figures]) -> list[float]:
        """Return the compared figure of each round that has it."""
        if not self.over:
            return series(rounds, self.row, self.column)
        over = [(other, self.over_column or self.column) for other in self.over]
        return ratios(rounds, self.row, self.column, over, self.best)

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Benchmark:
    """One table of the report."""

    name: str
    about: str
    columns: tuple[str, ...]
    steps: Callable[["Bench"], AbstractContextManager[Sequence[Step]]]
    compared: tuple[Compared, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of what it is about."""
        return self.about.split(". ")[0].rstrip(".")

    @property
    def bars(self) -> list[Compared]:
        return [each for each in self.compared if each.is_bar]

    @property
    def rows_of_bars(self) -> set[str]:
        return {row for each in self.bars for row in (each.row, *each.over)}


@dataclass
class Result:
    """The figures of a benchmark round by round, the rows that lack some, and the disturbances."""

    benchmark: Benchmark
    rounds: list[Figures] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # row -> why it has no figure, or not one in each round
    disturbances: list[Mapping[str, Disturbance]] = field(default_factory=list)  # of each round, by row

    @property
    def rows(self) -> list[str]:
        """Return the rows with a figure, in the order of their first one."""
        return list(dict.fromkeys(row for figures in self.rounds for row in figures))

    def disturbances_of(self, row: str) -> list[Disturbance]:
        """Return the disturbance of a row in each round that measured it."""
        return [found[row] for found in self.disturbances if row in found]

    def disturbed_rounds(self, rows: Collection[str]) -> int:
        """Return in how many rounds one of these rows was disturbed."""
        return sum(any(row in found and found[row].is_disturbed for row in rows) for found in self.disturbances)


@dataclass(frozen=True)
class Verdict:
    """One bar, and what was measured. `held` None: it could not be, for a reason; else the reason is what it lacks."""

    name: str
    bar: str
    measured: str
    held: bool | None
    reason: str = ""

    @property
    def word(self) -> str:
        if self.held is None:
            return f"skipped: {self.reason}"
        return ("held" if self.held else "not held") + (f", {self.reason}" if self.reason else "")


def judge(result: Result) -> list[Verdict]:
    """Judge each bar of a benchmark by the median."""
    return [_judge(result, each) for each in result.benchmark.bars]


def _judge(result: Result, bar: Compared) -> Verdict:
    values = bar.values(result.rounds)
    lacking = {row: result.missing[row] for row in (bar.row, *bar.over) if row in result.missing}
    if not values:
        why = "; ".join(dict.fromkeys(lacking.values())) or "it was not measured"
        return Verdict(bar.name, bar.bar, "-", None, why)
    reasons = [f"without {', '.join(lacking)}"] if lacking else []
    if disturbed := result.disturbed_rounds((bar.row, *bar.over)):
        reasons.append(f"disturbed in {disturbed} of {len(result.rounds)} rounds")
    reason = "; ".join(reasons)
    return Verdict(bar.name, bar.bar, spread(values), bar.holds(statistics.median(values)), reason)
