"""The report of a run, as Markdown for people and as JSON for programs. Pure: figures go in, text comes out."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench.benchmark import BEFORE, Compared, Result, Verdict, judge
from tests.bench.figures import ratios, series, spread

Header = Mapping[str, str]
#: The line of the header that is no fact of the machine, but what follows from them for a reader.
NOTE = "note"


def markdown(header: Header, results: Sequence[Result]) -> str:
    """The whole report."""
    return "\n".join([*_head(header), *(line for result in results for line in _section(result))])


def check(header: Header, results: Sequence[Result]) -> str:
    """The bars alone."""
    return "\n".join([*_head(header), *_bars(verdicts(results))])


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    return [verdict for result in results for verdict in judge(result)]


def as_json(header: Header, results: Sequence[Result]) -> dict[str, Any]:
    """Return all figures, round by round."""
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
    disturbances = [{row: found._asdict() for row, found in one.items()} for one in result.disturbances]
    return {
        "rounds": list(result.rounds), "missing": dict(result.missing), "compared": compared,
        "disturbances": disturbances,
    }  # fmt: skip


def _head(header: Header) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield from _table(("this run", ""), [(name, value) for name, value in header.items() if name != NOTE])
    yield ""
    yield "Median (least - most) of the rounds; ratios are formed within a round."
    if header.get(NOTE):
        yield from ("", f"**{header[NOTE]}**")


def _section(result: Result) -> Iterator[str]:
    benchmark = result.benchmark
    yield from ("", f"## {benchmark.name}", "", benchmark.about, "")
    columns = [name for name in benchmark.columns if any(series(result.rounds, row, name) for row in result.rows)]
    figures = {row: [spread(series(result.rounds, row, column)) for column in columns] for row in result.rows}
    rows = [(_marked(result, row), *figures[row], *_watched(result, row)) for row in result.rows]
    yield from _table(("what", *columns, "steal %", "others %", "disturbed"), rows)
    yield from _disturbed(result)
    yield from _beside_before(result, columns)
    compared = [line for each in benchmark.compared for line in _compared(result, each)]
    if compared:
        yield ""
        yield from _table(("compared, round by round", "measured", "bar", ""), compared)
    if result.missing:
        yield ""
        yield from (f"- {row}: {why}" for row, why in result.missing.items())


def _marked(result: Result, row: str) -> str:
    """A star: the machine was disturbed, and stayed so when the row was measured again."""
    return f"{row} *" if result.disturbed_rounds([row]) else row


def _watched(result: Result, row: str) -> tuple[str, ...]:
    found, disturbed = result.disturbances_of(row), result.disturbed_rounds([row])
    shares = (spread([getattr(each, share) * 100 for each in found]) for share in ("steal", "others"))
    return *shares, f"{disturbed} of {len(found)}" if disturbed else ""


def _disturbed(result: Result) -> Iterator[str]:
    disturbed = [row for row in result.rows if result.disturbed_rounds([row])]
    if disturbed:
        row = max(disturbed, key=lambda row: max(each.size for each in result.disturbances_of(row)))
        worst = max(result.disturbances_of(row), key=lambda each: each.size)
        yield ""
        yield f"\\* The machine was disturbed in the rounds told by the last column. At the most by {worst}: {row}."


def _beside_before(result: Result, columns: Sequence[str]) -> Iterator[str]:
    """Yield each figure over that of the earlier version, which was measured in turn with it."""
    rows = [
        (row, *(spread(ratios(result.rounds, row, column, [(row + BEFORE, column)], "most")) for column in columns))
        for row in result.rows
        if row + BEFORE in result.rows
    ]
    if rows:
        yield ""
        yield from _table(("now / before, round by round", *columns), rows)


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
