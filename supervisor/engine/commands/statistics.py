"""Builds the command that reads the statistics of a queue's day. Runs in applications and commands. Must not do I/O."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor.engine.commands.command import Command, now_ms, parse_fields, parse_numbers
from supervisor.engine.commands.routes import everywhere
from supervisor.engine.model import scripts
from supervisor.engine.model.bins import histogram, parse_counters, runs_in, waits_in
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import in_unix_seconds, milliseconds

_DAY_S = 86400
_COUNTED = ("failures", "failed", "retries", "deaths", "interruptions")
_LAST_DAY_S = 253402300799  # the last second of the year 9999


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a duration in seconds; `variance` and `std` are the sample's.

    The histogram has cells for seconds to a minute (0 to 59), minutes to an hour (60 to 118), quarters of an hour to a
    day (119 to 210), hours to three days (211 to 258) and days (259 to 286: 30 days and more). Older days have no
    histogram: all cells are 0.
    """

    count: int
    mean: float
    variance: float
    std: float
    histogram: list[int] = field(repr=False)

    @property
    def total(self) -> int:
        """Return the count, under qless's name."""
        return self.count


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a queue for one UTC day.

    `wait` lasts from a job's put or return to its lease, `run` from its lease to its completion. `failures` counts
    every failure, `retries` those that were tried again, `failed` those whose jobs are still failed.
    """

    queue: str
    date: datetime.date
    wait: Spread
    run: Spread
    failures: int
    failed: int
    retries: int
    deaths: int
    interruptions: int


def read(queue: str, date: object = None, *, now: float | None = None) -> Command[Stats]:
    """Read a queue's statistics of one UTC day: a date, "YYYY-MM-DD" or unix seconds; None = today."""
    day = "" if date is None else _day_s(date)
    name = checked_name("queue", queue)
    args = now_ms(now), name, day
    return Command(scripts.STATS, args, lambda reply: _parse_stats(name, reply), route=everywhere(_of_all))


def _of_all(answers: list[Stats]) -> Stats:
    """Return the statistics of one queue in all shards."""
    return replace(
        answers[0],
        wait=_all_spreads([one.wait for one in answers]),
        run=_all_spreads([one.run for one in answers]),
        **{count: sum(getattr(one, count) for one in answers) for count in _COUNTED},
    )


def _all_spreads(spreads: list[Spread]) -> Spread:
    count = sum(one.count for one in spreads)
    mean = sum(one.mean * one.count for one in spreads) / count if count else 0.0
    # The squares of all distances from the mean: those within each part, and those of its mean.
    squares = sum(one.variance * (one.count - 1) + one.count * (one.mean - mean) ** 2 for one in spreads if one.count)
    variance = squares / (count - 1) if count > 1 else 0.0
    cells = [sum(each) for each in zip(*(one.histogram for one in spreads), strict=True)]
    return Spread(count, mean, variance, math.sqrt(variance), cells)


def _day_s(date: object) -> int:
    """Return midnight UTC of the day, in unix seconds."""
    date = in_unix_seconds("date", date)
    if isinstance(date, str):
        try:
            date = datetime.date.fromisoformat(date)
        except ValueError:
            raise ValueError(f"date must be YYYY-MM-DD: {date!r:.100}") from None
    if isinstance(date, datetime.date):
        return (date - datetime.date(1970, 1, 1)).days * _DAY_S
    if not isinstance(date, int | float):
        raise TypeError(
            f"date must be a date, YYYY-MM-DD, unix seconds or a datetime, not {type(date).__name__}: {date!r:.100}"
        )
    second = milliseconds("date", date, least=0) // 1000
    if second > _LAST_DAY_S:
        raise ValueError(f"date must be before the year 10000: {date!r}")
    return second - second % _DAY_S


def _parse_stats(queue: str, reply: list[Any]) -> Stats:
    day_s, figures, counters = reply[0], parse_fields(reply[1]), parse_counters(filter(None, reply[3:]))
    cells = parse_numbers(reply[2])  # counted by the release before this one
    return Stats(
        queue=queue,
        date=datetime.date(1970, 1, 1) + datetime.timedelta(seconds=day_s),
        wait=_spread("wait", figures, cells, waits_in(counters)),
        run=_spread("run", figures, cells, runs_in(counters)),
        **{count: int(figures.get(count, 0)) for count in _COUNTED},
    )


def _spread(kind: str, figures: dict[str, str], cells: dict[str, int], bins: Sequence[int]) -> Spread:
    n = int(figures.get(f"{kind}.n", 0))
    variance = float(figures.get(f"{kind}.m2", 0)) / 1e6 / (n - 1) if n > 1 else 0.0
    return Spread(
        count=n,
        mean=float(figures.get(f"{kind}.mean", 0)) / 1000,
        variance=variance,
        std=math.sqrt(variance),
        histogram=[cells.get(f"{kind[0]}{cell}", 0) + times for cell, times in enumerate(histogram(bins))],
    )
