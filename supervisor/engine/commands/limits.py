"""Defines limits and the calls about them. Runs in every process that speaks to Redis.

Must not do I/O or count anything: the scripts enforce limits.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from supervisor.engine.commands import dividing
from supervisor.engine.commands.command import Command, checked_by, checked_page, now_ms, parse_by
from supervisor.engine.commands.routes import FIRST, Asking, Route, any_of, concatenated, joined
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.shards import shard_of
from supervisor.engine.model.validation import checked_int

MOST_STARTS: Final = 10_000
HALVES: Final = ("running", "rate")  # the two parts of a limit
_MOST_PER_MS = 30 * 86_400_000
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,10})?(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on all jobs with this key, over all queues and workers.

    `in_use` jobs run. `parked` jobs wait for room, in the first 10,000 queues and lanes that have some. `running` or
    `rate` is None if that half is not set. `set_unix` and `set_by` tell the last change, None if unknown.
    """

    key: str
    running: int | None
    rate: str | None
    in_use: int
    parked: int
    set_by: str | None = field(default=None, compare=False)
    set_unix: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """A running job that occupies a slot of a limit.

    `queue` and `worker` are None if the job's record is damaged or gone.
    """

    jid: str
    queue: str | None
    worker: str | None


@dataclass(frozen=True, slots=True)
class ParkedJob:
    """A job that waits for room in its limit."""

    jid: str
    queue: str
    lane: str | None


@dataclass(frozen=True, slots=True)
class LimitJobs:
    """The jobs that hold a limit, in the order of their leases, and the parked jobs, by queue and lane."""

    holders: list[LimitHolder]
    parked: list[ParkedJob]


def read(key: str | None = None, offset: int = 0, count: int = MOST) -> Command[dict[str, Limit]]:
    """Read one limit, set or not, or up to `count` (0 to 1,000) set ones from `offset` on, in the order of their first
    setting.

    A page is shorter if many jobs are parked, but not empty if a limit is left.
    """
    page = checked_page(offset, count)
    args = "" if key is None else checked_name("key", key), *page
    if key is not None:
        return Command(scripts.LIMITS, args, _parse_limits, route=_with_guests(key, _in_both))
    # The pages of one shard follow each other: `all_of_them` goes through the shards.
    return Command(scripts.LIMITS, args, _parse_limits)


def of_all(answers: list[dict[str, Limit]]) -> dict[str, Limit]:
    """Return the limits of all shards."""
    return joined(lambda limits: _in_both([{one.key: one} for one in limits])[limits[0].key])(answers)


def _with_guests(key: str, join: Callable[[list[Any]], Any]) -> Route:
    """Return the route to a limit's shard, and to the first one if guests there have the limit."""

    def ask(command: Command[Any], shards: int) -> Asking[Any]:
        shard = shard_of(key, shards)
        answers = yield [(shard, command)]
        if shard != FIRST:
            [[guests]] = yield [(FIRST, dividing.guests([("limit", key)]))]
            answers += (yield [(FIRST, command)]) if guests else []
        return join(answers)

    return ask


def _in_both(answers: list[dict[str, Limit]]) -> dict[str, Limit]:
    [first, *others] = [limit for answer in answers for limit in answer.values()]
    for other in others:
        settings = first if first.running is not None or first.rate is not None else other
        first = replace(settings, in_use=first.in_use + other.in_use, parked=first.parked + other.parked)
    return {first.key: first}


def jobs(key: str, offset: int = 0, count: int = 25) -> Command[LimitJobs]:
    """Read the jobs that hold a limit, and those parked under it: up to `count` (0 to 1,000) each, from `offset` on.

    The search for parked jobs covers the first 10,000 queues and lanes that have some.
    """
    page = checked_page(offset, count)
    return Command(scripts.LIMITED, (checked_name("key", key), *page), _parse_jobs, route=_with_guests(key, _all_jobs))


def _all_jobs(answers: list[LimitJobs]) -> LimitJobs:
    return LimitJobs(concatenated([one.holders for one in answers]), concatenated([one.parked for one in answers]))


def limit(
    key: str,
    running: int | None = None,
    rate: str | None = None,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[bool]:
    """Set how many jobs of the key may run at once, or start in a time. None keeps a value. `by` names who sets it."""
    most = "" if running is None else checked_int("running", running, 0)
    starts, per_ms = ("", "") if rate is None else checked_rate(rate)
    args = checked_name("key", key), most, starts, per_ms, checked_by(by)
    return Command(scripts.LIMIT, (now_ms(now), *args), bool, route=_with_guests(key, any_of))


def unlimit(key: str, half: str | None = None, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Remove a limit, or one of its HALVES; the jobs that it held up may start. `by` names who asks.

    Return False if there was none.
    """
    if half is not None and half not in HALVES:
        raise ValueError(f"half must be running or rate: {half!r:.100}")
    args = now_ms(now), checked_name("key", key), half or "", checked_by(by)
    return Command(scripts.UNLIMIT, args, bool, route=_with_guests(key, any_of))


def checked_rate(value: object) -> tuple[int, int]:
    """Return the starts and milliseconds of a rate such as `10/s` or `3/10s`.

    Raises TypeError or ValueError naming `rate`.
    """
    if not isinstance(value, str):
        raise TypeError(f"rate must be a str like '10/s', not {type(value).__name__}: {value!r:.100}")
    match = _RATE.fullmatch(value)
    if match is None:
        raise ValueError(
            f"rate must be starts per time, like '10/s', '100/m', '5/h', '1000/d', '3/10s': {value!r:.100}"
        )
    starts, per_ms = int(match[1]), int(match[2] or 1) * _UNITS_MS[match[3]]
    if not 1 <= starts <= MOST_STARTS:
        raise ValueError(f"rate must be 1 to {MOST_STARTS} starts, not {starts}: {value!r:.100}")
    if not 1 <= per_ms <= _MOST_PER_MS:
        raise ValueError(f"rate must be per 1 ms to 30 days: {value!r:.100}")
    return starts, per_ms


def _rate_text(starts: int, per_ms: int) -> str:
    """Return the rate as callers write it, in the largest unit that fits."""
    unit = next(unit for unit, unit_ms in _UNITS_MS.items() if per_ms % unit_ms == 0)
    times = per_ms // _UNITS_MS[unit]
    return f"{starts}/{times if times != 1 else ''}{unit}"


def _parse_limits(reply: list[Any]) -> dict[str, Limit]:
    found = (_parse_limit(*row) for row in reply)
    return {limit.key: limit for limit in found}


def _parse_limit(key: bytes, running: Any, starts: Any, per_ms: Any, in_use: int, parked: int, by: Any) -> Limit:
    set_by, set_unix = parse_by(by)
    return Limit(
        key=key.decode(),
        running=None if running is None else int(running),
        rate=_rate_text(int(starts), int(per_ms)) if starts and per_ms else None,
        in_use=in_use,
        parked=parked,
        set_by=set_by,
        set_unix=set_unix,
    )


def _parse_jobs(reply: list[Any]) -> LimitJobs:
    holders, parked = reply
    return LimitJobs(
        [LimitHolder(jid.decode(), _text(queue), _text(worker)) for jid, queue, worker in holders],
        [ParkedJob(jid.decode(), queue.decode(), _text(lane)) for jid, queue, lane in parked],
    )


def _text(stored: bytes | None) -> str | None:
    return stored.decode() if stored else None
