"""Summarises the figures of several rounds. Ratios are formed within a round, then their median is shown."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

#: The figures of one round: row -> column -> figure.
Figures = Mapping[str, Mapping[str, float]]


def series(rounds: Sequence[Figures], row: str, column: str) -> list[float]:
    """Return one figure of each round that has it."""
    return [found[row][column] for found in rounds if column in found.get(row, ())]


def ratios(rounds: Sequence[Figures], row: str, column: str, over: Iterable[tuple[str, str]], best: str) -> list[float]:
    """Return for each round the figure over the `best` ("most" or "least") of the others that the round has."""
    choose = max if best == "most" else min
    others = list(over)
    found = []
    for figures in rounds:
        against = [figures[other][named] for other, named in others if named in figures.get(other, ())]
        if column in figures.get(row, ()) and against and choose(against):
            found.append(figures[row][column] / choose(against))
    return found


def number(value: float) -> str:
    """Write a number with up to three significant digits, or with all its digits before the point."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or not size else f"{value:.2g}"


def spread(values: Sequence[float]) -> str:
    """The median, and from least to most; a dash for nothing."""
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} - {number(max(values))})"


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
