"""Computes the times of cron expressions: the next one, and those that were missed. Runs in producers and workers.

Must not do I/O. Times are in UTC or the recurrence's own zone, and a script takes each one exactly once. The scripts
compute intervals themselves. The package cronsim is an extra.
"""

import datetime
import math
import zoneinfo
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_text

#: One step takes so many missed times; the next step takes the rest.
MOST_AT_ONCE: Final = 1000
BACKLOG_MOST: Final = MOST_AT_ONCE - 1
#: A time counts as missed when it is later than this. lua/include/recurrence.lua has the same figure for intervals.
PROMPT_S: Final = 60.0
SKIP = -1  # the backlog of the policy skip
_CRON_CHARS = 256


class CronMissing(LeaseholdError):
    """The next time of a recurring job cannot be computed here: cronsim or the time zone is not installed."""


@dataclass(frozen=True, slots=True)
class DueCron:
    """A cron recurrence that is due, as a lease or a sweep reports it."""

    jid: str
    cron: str
    tz: str | None
    due_ms: int
    backlog: int | None  # None = all, -1 = skip

    @property
    def due_unix(self) -> float:
        """Return the due time in unix seconds."""
        return self.due_ms / 1000


#: The times that get a job under the policy for missed times, oldest first, at most 1,000; and the next time, or None.
Following = tuple[list[float], float | None]


def parse_due(row: Sequence[Any]) -> DueCron:
    """Read a row: jid, cron, tz | "", time in ms, backlog | "".

    A damaged row has no cron, so `following` refuses it.
    """
    try:
        jid, cron, tz, due_ms, backlog = row
        return DueCron(jid.decode(), cron.decode(), tz.decode() or None, due_ms, int(backlog) if backlog else None)
    except ValueError:  # a bad number, invalid UTF-8, or a row that ends early
        return DueCron(row[0].decode(errors="replace"), "", None, 0, None)


def checked_cron(value: object) -> str:
    """Return the expression with single spaces if it has five fields. Raises TypeError, ValueError, CronMissing."""
    text = " ".join(checked_text("cron", value).split())
    if text.count(" ") != 4 or len(text) > _CRON_CHARS:
        raise ValueError(f"cron must have five fields, minute hour day month weekday: {value!r:.100}")
    try:
        _cronsim().CronSim(text, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    except _cronsim().CronSimError as error:
        raise ValueError(f"cron must be minute hour day month weekday ({error}): {value!r:.100}") from None
    return text


def checked_tz(value: object) -> str | None:
    """Return the value if it names a time zone, None for UTC. Raises TypeError or ValueError naming the argument."""
    if value is None or checked_text("tz", value) == "UTC":
        return None
    assert isinstance(value, str)
    if _zone(value) is None:
        raise ValueError(f"tz must be a time zone known here, like Europe/Berlin: {value!r:.100}")
    return checked_name("tz", value)


def _cronsim() -> Any:
    try:
        import cronsim  # an optional dependency, the extra [cron]
    except ImportError:
        raise CronMissing("cron needs the package cronsim: pip install 'leasehold[cron]'") from None
    return cronsim


def _zone(tz: str | None) -> datetime.tzinfo | None:
    """Return the time zone, or None if this machine does not have it."""
    if tz is None:
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # also a path out of the database, or a folder
        return None


def _times(cron: str, tz: str | None, from_unix: float, backwards: bool = False) -> Iterator[float]:
    """Yield the times from a moment on, until the calendar ends. Raises CronMissing."""
    zone = _zone(tz)
    if zone is None:
        raise CronMissing(f"the time zone {tz} of a recurring job is not known here; pip install tzdata may help")
    cronsim = _cronsim()
    try:
        moments = cronsim.CronSim(cron, datetime.datetime.fromtimestamp(from_unix, zone), reverse=backwards)
    except (cronsim.CronSimError, ValueError, OverflowError, OSError) as error:
        raise CronMissing(f"there is no time of cron {cron!r}: {error}") from None
    while True:
        try:
            time = next(moments).timestamp()
        except (StopIteration, OverflowError, ValueError):  # the calendar ends with the years 1 and 9999
            return
        yield time


def time_after(cron: str, tz: str | None, unix: float) -> float | None:
    """Return the first time after a moment, or None if there is none within 50 years.

    When the clock is put forward, a time in the gap comes at its end. When the clock is put back, a time of day comes
    once; `*` as minute or hour goes on.
    """
    return next(iter(times_after(cron, tz, unix, 1)), None)


def times_after(cron: str, tz: str | None, unix: float, count: int) -> list[float]:
    """Return the first `count` times after a moment, fewer if there are no more. Raises CronMissing."""
    times = (time for time in _times(cron, tz, math.floor(unix)) if time > unix)
    return list(islice(times, count))


def following(due: DueCron, now_unix: float) -> Following:
    """Return the times of a due recurrence that get a job under its policy for missed times. Raises CronMissing."""
    steps = following_in_steps(due, now_unix)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typeshed types a generator's return value as Any


def following_in_steps(due: DueCron, now_unix: float) -> Generator[None, None, Following]:
    """Do the same in steps of at most about 20 ms, so that an event loop can do other work between them.

    Raises CronMissing for any fault of the record, because no recurrence may end or block its worker.
    """
    if not due.cron:
        raise CronMissing(f"the record of the recurring job {due.jid} is damaged; make it anew, or unrecur it")
    now_unix = max(now_unix, due.due_unix)
    try:
        if due.backlog is None:
            return (yield from _all_missed(due, now_unix))
        return (yield from _latest_missed(due, due.backlog, now_unix))
    except CronMissing:
        raise
    except Exception as error:  # a fault of a library must not end the worker
        raise CronMissing(f"there is no time of cron {due.cron!r}: {error!r}") from error


def _all_missed(due: DueCron, now_unix: float) -> Generator[None, None, Following]:
    """Return the oldest 1,000 times until now, and the next time, which may be past."""
    times = [due.due_unix]
    for time in _times(due.cron, due.tz, math.floor(due.due_unix)):
        if time > now_unix or len(times) == MOST_AT_ONCE:
            return times, time
        if time > due.due_unix:
            times.append(time)
            yield
    return times, None


def _latest_missed(due: DueCron, backlog: int, now_unix: float) -> Generator[None, None, Following]:
    """Return the latest times until now.

    The search goes backwards, so years of missed times cost no more than `backlog`.
    """
    wanted = min(max(backlog, 0), BACKLOG_MOST) + 1
    latest: list[float] = []
    for time in _times(due.cron, due.tz, math.floor(now_unix) + 1, backwards=True):
        if time < due.due_unix or len(latest) == wanted:
            break
        if time <= now_unix:
            latest.append(time)
            yield
    times = latest[::-1] or [due.due_unix]
    if backlog == SKIP and now_unix - times[-1] > PROMPT_S:
        times = []
    return times, time_after(due.cron, due.tz, now_unix)
