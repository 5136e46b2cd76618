"""Reads how long the jobs of a queue have waited and run lately. Runs in every process that speaks to Redis.

Must not do I/O: a command is a value, as command.py says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.engine.commands.command import Command, now_ms
from supervisor.engine.commands.routes import Asking, everywhere
from supervisor.engine.model import scripts
from supervisor.engine.model.bins import add_counters, parse_counters, percentile_s, runs_in, waits_in
from supervisor.engine.model.keys import checked_name

_SLICE_S, _HOUR_S, _DAY_S = 600, 3600, 86400


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The number of some times, and the seconds within which half of them and 95 % lie; None if there are none.

    Exact to a millisecond or a quarter below four seconds, to a second or a quarter up to four minutes, above as a
    histogram's cells. What took longer than 31 days counts as that.
    """

    count: int
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class Period:
    """How the jobs of a queue have waited, run and failed in a time up to now.

    `run.count` is the number of runs without a failure: completions, next stages and waits. `since_unix`: where the
    oldest figures begin; None if there are none. What workers of older releases have done is not in them.
    """

    since_unix: float | None
    failures: int
    wait: Percentiles
    run: Percentiles


@dataclass(frozen=True, slots=True)
class Recent:
    """The last hour and day of a queue, in steps of ten minutes, and its last 30 UTC days, today among them."""

    queue: str
    hour: Period
    day: Period
    month: Period


@dataclass(frozen=True, slots=True)
class Latency:
    """How long jobs have waited and run in a part of a period."""

    since_unix: float
    until_unix: float
    wait: Percentiles
    run: Percentiles


@dataclass(frozen=True, slots=True)
class Slices:
    """The counters of a queue for each ten minutes of a day and each of 30 UTC days, the newest first."""

    queue: str
    now_unix: float
    slices: Sequence[bytes | None]
    days: Sequence[bytes | None]

    @property
    def recent(self) -> Recent:
        """Return them together as periods."""
        return Recent(
            self.queue,
            _period(self.now_unix, _SLICE_S, self.slices[: _HOUR_S // _SLICE_S + 1]),
            _period(self.now_unix, _SLICE_S, self.slices),
            _period(self.now_unix, _DAY_S, self.days),
        )


def read(queue: str, *, now: float | None = None) -> Command[Recent]:
    """Read how long the jobs of a queue have waited and run in the last hour, day and 30 days."""
    command = read_slices(queue, now=now)

    def ask(_command: Command[Recent], shards: int) -> Asking[Recent]:
        answers = yield [(shard, command) for shard in range(shards)]
        return added(answers).recent

    return Command(command.script, command.args, lambda reply: command.parse(reply).recent, route=ask)


def read_slices(queue: str, *, now: float | None = None) -> Command[Slices]:
    """Read the same, slice by slice."""
    name = checked_name("queue", queue)
    return Command(
        scripts.RECENT, (now_ms(now), name), lambda reply: Slices(name, reply[0] / 1000, reply[1], reply[2]),
        route=everywhere(added),
    )  # fmt: skip


def added(answers: list[Slices]) -> Slices:
    """Add up the counters of one queue in several shards."""
    first = answers[0]
    slices, days = (
        [add_counters(raws) for raws in zip(*(getattr(one, name) for one in answers), strict=True)]
        for name in ("slices", "days")
    )
    return Slices(first.queue, first.now_unix, slices, days)


def latencies(queues: Sequence[Slices], period: str) -> list[Latency]:
    """Return how long the jobs of all these queues have waited and run, slice by slice, the oldest first."""
    step_s = _DAY_S if period == "month" else _SLICE_S
    number = _HOUR_S // _SLICE_S + 1 if period == "hour" else None
    by_time: dict[float, list[bytes]] = {}
    for each in queues:
        newest = each.now_unix // step_s
        for ago, raw in enumerate((each.days if period == "month" else each.slices)[:number]):
            if raw:
                by_time.setdefault((newest - ago) * step_s, []).append(raw)
    found = []
    for since_unix, raws in sorted(by_time.items()):
        counters = parse_counters(raws)
        waits, runs = _percentiles(waits_in(counters)), _percentiles(runs_in(counters))
        found.append(Latency(since_unix, since_unix + step_s, waits, runs))
    return found


def _period(now_s: float, step_s: int, steps: Sequence[bytes | None]) -> Period:
    """Add up the steps of a period, the newest first."""
    known = [number for number, raw in enumerate(steps) if raw]
    counters = parse_counters(raw for raw in steps if raw)
    return Period(
        since_unix=(now_s // step_s - known[-1]) * step_s if known else None,
        failures=counters[0] if counters else 0,
        wait=_percentiles(waits_in(counters)),
        run=_percentiles(runs_in(counters)),
    )


def _percentiles(bins: Sequence[int]) -> Percentiles:
    return Percentiles(sum(bins), percentile_s(bins, 0.5), percentile_s(bins, 0.95))
