"""Runs benchmarks: round by round, in each round every row once, so that what is compared has the same machine."""

import tempfile
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tests.bench import machine
from tests.bench.bench import Bench, prepared
from tests.bench.benchmark import Benchmark, Result, Step, Unmeasured
from tests.bench.figures import Figures, number
from tests.bench.peers import versions
from tests.bench.report import Header

Say = Callable[[str], None]
Keep = Callable[[Header, Sequence[Result]], None]


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    benchmarks: Sequence[Benchmark]
    rounds: int = 5
    quick: bool = False
    bars_only: bool = False
    peers: Path | None = None


def run(plan: Plan, say: Say, keep: Keep) -> tuple[Header, list[Result]]:
    """The header of the report, and what was measured; `keep` is told what there is of it after each benchmark, as an
    hour is long. Raises Unmeasured where there is no server.
    """
    results: list[Result] = []
    with (
        # The path of a socket may have a hundred bytes.
        tempfile.TemporaryDirectory(prefix="lh-bench-", dir="/tmp") as directory,
        prepared(Path(directory), plan.quick, plan.peers, say) as bench,
    ):
        header = machine.header(bench.server.name, plan.rounds, plan.quick, versions(plan.peers))
        for benchmark in plan.benchmarks:
            results.append(_benchmark(bench, benchmark, plan, say))
            keep(header, results)
    return header, results


def _benchmark(bench: Bench, benchmark: Benchmark, plan: Plan, say: Say) -> Result:
    result = Result(benchmark)
    bench.server.clear()
    with benchmark.steps(bench) as steps:
        wanted = _wanted(steps, benchmark.rows_of_bars if plan.bars_only else None)
        result.missing |= {row: step.missing for step in wanted if step.missing for row in step.rows}
        for number_of_round in range(1, plan.rounds + 1):
            where = f"{benchmark.name} {number_of_round}/{plan.rounds}"
            result.rounds.append(_round(wanted, result, lambda text, where=where: say(f"{where}: {text}")))
    return result


def _wanted(steps: Sequence[Step], rows: Set[str] | None) -> list[Step]:
    return [step for step in steps if rows is None or not rows.isdisjoint(step.rows)]


def _round(steps: Sequence[Step], result: Result, say: Say) -> Figures:
    figures: dict[str, dict[str, float]] = {}
    for step in steps:
        if step.missing:
            continue
        try:
            found = step.measure()
        except Exception as error:  # noqa: BLE001 -- the boundary: for one row an hour of others is not thrown away
            why = str(error) if isinstance(error, Unmeasured) else f"{type(error).__name__}: {error}"
            say(f"{step.rows[0]}: {why}")
            result.missing |= dict.fromkeys(step.rows, why)
            continue
        for row, columns in found.items():
            figures[row] = dict(columns)
            say(f"{row}: " + ", ".join(f"{number(value)} {column}" for column, value in columns.items()))
    return figures
