"""The report of a run, as Markdown for people and as JSON for programs. Pure: figures go in, text comes out."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench.benchmark import Compared, Result, Verdict, judge
from tests.bench.figures import series, spread

Header = Mapping[str, str]


def markdown(header: Header, results: Sequence[Result]) -> str:
    """The whole report."""
    return "\n".join([*_head(header), *(line for result in results for line in _section(result))])


def check(header: Header, results: Sequence[Result]) -> str:
    """The bars alone."""
    return "\n".join([*_head(header), *_bars(verdicts(results))])


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    return [verdict for result in results for verdict in judge(result)]


def as_json(header: Header, results: Sequence[Result]) -> dict[str, Any]:
    """All that was measured, round by round."""
    return {
        "machine": dict(header),
        "benchmarks": {result.benchmark.name: _json_of(result) for result in results},
        "bars": [
            {"name": each.name, "bar": each.bar, "measured": each.measured, "held": each.held, "reason": each.reason}
            for each in verdicts(results)
        ],
    }


def _json_of(result: Result) -> dict[str, Any]:
    compared = [
        {"name": each.name, "row": each.row, "column": each.column, "over": list(each.over),
         "least": each.least, "most": each.most, "rounds": each.values(result.rounds)}
        for each in result.benchmark.compared
    ]  # fmt: skip
    return {"rounds": list(result.rounds), "missing": dict(result.missing), "compared": compared}


def _head(header: Header) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield from _table(("this run", ""), [(name, value) for name, value in header.items()])
    yield ""
    yield "Median (least - most) of the rounds; ratios are formed within a round."


def _section(result: Result) -> Iterator[str]:
    benchmark = result.benchmark
    yield from ("", f"## {benchmark.name}", "", benchmark.about, "")
    columns = [name for name in benchmark.columns if any(series(result.rounds, row, name) for row in result.rows)]
    rows = [(row, *(spread(series(result.rounds, row, column)) for column in columns)) for row in result.rows]
    yield from _table(("what", *columns), rows)
    compared = [line for each in benchmark.compared for line in _compared(result, each)]
    if compared:
        yield ""
        yield from _table(("compared, round by round", "measured", "bar", ""), compared)
    if result.missing:
        yield ""
        yield from (f"- {row}: {why}" for row, why in result.missing.items())


def _compared(result: Result, each: Compared) -> Iterator[tuple[str, ...]]:
    values = each.values(result.rounds)
    if not values:
        return
    held = "" if not each.is_bar else "held" if each.holds(statistics.median(values)) else "not held"
    yield each.name, spread(values), each.bar, held


def _bars(found: Sequence[Verdict]) -> Iterator[str]:
    yield ""
    yield from _table(("bar", "", "measured", ""), [(each.name, each.bar, each.measured, each.word) for each in found])
    judged = [each.held for each in found if each.held is not None]
    yield ""
    yield f"{sum(judged)} held, {len(judged) - sum(judged)} not held, {len(found) - len(judged)} skipped."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"
