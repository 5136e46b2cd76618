"""Runs benchmarks: round by round, in each round every row once, so that what is compared has the same machine.

A row during which the machine was disturbed is measured again, a few times. The least disturbed figures count.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.bench import disturbance, machine, variants
from tests.bench.benchmark import BEFORE, Benchmark, Result
from tests.bench.disturbance import Disturbance
from tests.bench.figures import Figures, number
from tests.bench.measurer import Measurer, Reply, StepSeen, started
from tests.bench.peers.versions import builds
from tests.bench.report import NOTE, Header
from tests.bench.variants import Variant

Say = Callable[[str], None]
Keep = Callable[[Header, Sequence[Result]], None]
#: The runner waits at most this long for a quiet machine before it measures a row again.
PATIENCE_S = 60.0
#: After so many waits in vain in a row, the runner repeats no row until one was not disturbed.
MOST_IN_VAIN = 3


@dataclass(frozen=True)
class Plan:
    """The choices for one run of the benchmarks."""

    benchmarks: Sequence[Benchmark]
    rounds: int = 5
    quick: bool = False
    bars_only: bool = False
    peers: Path | None = None
    python: Path | None = None
    before: Path | None = None
    repeats: int = 2  # how often a disturbed row is measured again
    rows: Sequence[str] = ()  # parts of their names; none: all


class Turn(NamedTuple):
    """One measurement: rows of one variant, as the report calls them."""

    measurer: Measurer
    step: int
    rows: tuple[str, ...]


def run(plan: Plan, say: Say, keep: Keep) -> tuple[Header, list[Result]]:
    """The header of the report, and what was measured; `keep` is told what there is of it after each benchmark, as an
    hour is long. Raises Unmeasured where there is no server.
    """
    results: list[Result] = []
    with ExitStack() as stack:
        chosen = variants.chosen(plan.python, plan.before)
        header = machine.header(plan.rounds, plan.quick, chosen, plan.peers)
        header |= {NOTE: " ".join(variants.notes(chosen, builds(plan.peers)))}
        runner = _Runner(plan, [stack.enter_context(started(each, plan.quick, plan.peers)) for each in chosen], say)
        for benchmark in plan.benchmarks:
            results.append(runner.run(benchmark))
            header["server"] = runner.server
            keep(header, results)
    return header, results


class _Runner:
    """All rounds of one benchmark after the other."""

    def __init__(self, plan: Plan, measurers: Sequence[Measurer], say: Say) -> None:
        self._plan = plan
        self._measurers = measurers
        self._say = say
        self._repeats = Repeats(plan.repeats)
        self.server = ""

    def run(self, benchmark: Benchmark) -> Result:
        result = Result(benchmark)
        turns = self._turns(benchmark, result)
        for number_of_round in range(1, self._plan.rounds + 1):
            where = f"{benchmark.name} {number_of_round}/{self._plan.rounds}"
            # Variants of a row take turns in being the first.
            in_order = [turn for row in turns for turn in (row if number_of_round % 2 else reversed(row))]
            figures, disturbances = self._round(
                in_order, result, lambda text, where=where: self._say(f"{where}: {text}")
            )
            result.rounds.append(figures)
            result.disturbances.append(disturbances)
        return result

    def _turns(self, benchmark: Benchmark, result: Result) -> list[list[Turn]]:
        """Return for each step the turns of all variants. The result explains the rows that are not measured."""
        rows_of_bars = benchmark.rows_of_bars if self._plan.bars_only else None
        if not any(each.variant.suffix == BEFORE for each in self._measurers):
            absent = [row for row in benchmark.rows_of_bars if row.endswith(BEFORE)]
            result.missing |= dict.fromkeys(absent, "no --before DIR was given")
        found: dict[int, list[Turn]] = {}
        for measurer in self._measurers:
            begun = measurer.begin(benchmark.name)
            if not measurer.variant.suffix:
                self.server = begun.server
            for index, step in enumerate(begun.steps):
                rows = tuple(f"{row}{measurer.variant.suffix}" for row in step.rows)
                if not self._is_wanted(rows, rows_of_bars) or not _changes(measurer.variant, step):
                    continue
                if step.missing:
                    result.missing |= dict.fromkeys(rows, step.missing)
                else:
                    found.setdefault(index, []).append(Turn(measurer, index, rows))
        return list(found.values())

    def _is_wanted(self, rows: Collection[str], rows_of_bars: Collection[str] | None) -> bool:
        if rows_of_bars is not None and not any(row in rows_of_bars for row in rows):
            return False
        return not self._plan.rows or any(part in row for part in self._plan.rows for row in rows)

    def _round(self, turns: Sequence[Turn], result: Result, say: Say) -> tuple[Figures, dict[str, Disturbance]]:
        figures: dict[str, Mapping[str, float]] = {}
        disturbances: dict[str, Disturbance] = {}
        for turn in turns:
            reply, found = self._measured(turn, say)
            if reply.why is not None:
                say(f"{turn.rows[0]}: {reply.why}")
                result.missing |= dict.fromkeys(turn.rows, reply.why)
                continue
            for row, columns in reply.figures.items():
                named = f"{row}{turn.measurer.variant.suffix}"
                figures[named], disturbances[named] = columns, found
                say(f"{named}: " + ", ".join(f"{number(value)} {column}" for column, value in columns.items()))
        return figures, disturbances

    def _measured(self, turn: Turn, say: Say) -> tuple[Reply, Disturbance]:
        """Measure a turn, again if the machine was disturbed. Return the least disturbed attempt."""
        attempts = [_watched(turn, say)]
        while self._repeats.is_worthwhile(attempts):
            say(f"{turn.rows[0]}: {attempts[-1][1]}; once more")
            attempts.append(_watched(turn, say))
        return min(attempts, key=lambda attempt: attempt[1].size)


def _changes(variant: Variant, step: StepSeen) -> bool:
    """Return whether a step's figures can differ between this variant and the first one."""
    return not variant.suffix or (step.is_ours and (variant.suffix == BEFORE or step.runs_python))


def _watched(turn: Turn, say: Say) -> tuple[Reply, Disturbance]:
    before = disturbance.look()
    reply = turn.measurer.measure(turn.step, say)
    return reply, disturbance.between(before, disturbance.look(), os.getpid(), os.cpu_count() or 1)


class Repeats:
    """Decides whether a disturbed row is measured again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_vain = 0

    def is_worthwhile(self, attempts: Sequence[tuple[Reply, Disturbance]]) -> bool:
        """Wait for a quiet machine first, unless others have used it without end."""
        reply, disturbed = attempts[-1]
        if not disturbed.is_disturbed:
            self._in_vain = 0
            return False
        if reply.why is not None or len(attempts) > self._most or self._in_vain >= MOST_IN_VAIN:
            return False
        is_quiet = disturbance.wait_for_quiet(os.getpid(), PATIENCE_S)
        self._in_vain = 0 if is_quiet else self._in_vain + 1
        return True
