"""Runs in applications and commands (never in zygote or child). Owns: what a lane is, the calls about lanes, and those
that empty one, or a queue, bit by bit (steps.py: in which order). Must not: do I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.writes import MOST, Command, checked_by, checked_jids, now_ms, parse_by, parse_names
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int

MOST_WEIGHT: Final = 1000
ENDINGS: Final = ("finish", "stop")  # of what runs in a queue or lane that is deleted
SLICE: Final = 250  # jobs in one call: some milliseconds in which Redis does nothing else


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """How many jobs of a lane are in each state; `parked`: their limit is used up. `weight`: how many starts it has for
    each one of a lane of weight 1. `paused`: nothing new starts from it, since `paused_unix`, by the will of
    `paused_by`, which are None where that is not known. Of what runs in the queue, and of what was
    handed back, 10,000 each are looked at.
    """

    waiting: int
    running: int
    stalled: int
    parked: int
    weight: int
    paused: bool
    paused_by: str | None = field(default=None, compare=False)
    paused_unix: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a deletion found: how many jobs were dropped, and how many ran, which were stopped if that was asked for."""

    dropped: int
    running: int


class Dropped(NamedTuple):
    """What one slice answered: where the next one begins (-1: nowhere), how many were dropped, the jids of those that
    were jobs, and of those whose data only a reader can compare.
    """

    next_offset: int
    dropped: int
    jids: list[str]
    unjudged: list[str]


class Content(NamedTuple):
    """The data by which jobs are looked for, as it is stored."""

    kind: str
    raw: bytes


# The calls.


def read(
    queue: str, lane: str | None = None, offset: int = 0, count: int = MOST, *, now: float | None = None
) -> Command[dict[str, LaneCounts]]:
    """One lane, whether there is one or not; else up to `count` (0 to 1,000) of those in which something lies, or that
    were set up, from `offset` on. "" is that of the jobs without one.
    """
    wanted = "" if lane is None else f"={checked_name('lane', lane)}"
    page = checked_int("offset", offset, 0), checked_int("count", count, 0, MOST)
    return Command(scripts.LANES, (now_ms(now), checked_name("queue", queue), wanted, *page), _parse_lanes)


def weigh(queue: str, lane: str, weight: int, *, now: float | None = None) -> Command[bool]:
    """Gives a lane a weight (1 to 1,000). Answers False if it had it."""
    return _set_up(queue, lane, "weight", checked_int("weight", weight, 1, MOST_WEIGHT), now)


def pause(queue: str, lane: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Pauses a lane; `by`: who does. Answers False if it was so."""
    return _set_up(queue, lane, "pause", checked_by(by), now)


def unpause(queue: str, lane: str, *, now: float | None = None) -> Command[bool]:
    """Ends a lane's pause. Answers False if there was none."""
    return _set_up(queue, lane, "unpause", "", now)


def _set_up(queue: str, lane: str, verb: str, argument: int | str, now: float | None) -> Command[bool]:
    args = now_ms(now), checked_name("queue", queue), checked_name("lane", lane), verb, argument
    return Command(scripts.LANE, args, bool)


def drop(
    queue: str,
    place: str,
    offset: int,
    *,
    lane: str | None = None,
    content: Content | None = None,
    count: int = SLICE,
    by: str | None = None,
    now: float | None = None,
) -> Command[Dropped]:
    """Deletes what is wanted of one slice of a place: all, or what is of this lane and has this data."""
    of_lane = "" if lane is None else f"={checked_name('lane', lane)}"
    wanted = content or Content("", b"")
    args = checked_name("queue", queue), place, checked_int("offset", offset, 0), count, of_lane
    return Command(scripts.DROP, (now_ms(now), *args, wanted.kind, wanted.raw, checked_by(by)), _parse_dropped)


def drop_given(queue: str, jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[Dropped]:
    """Deletes these jobs of a queue, in whatever state but complete and failed."""
    place = checked_name("queue", queue), "given", 0, SLICE, "", "", ""
    args = now_ms(now), *place, checked_by(by), *checked_jids("jids", jids)
    return Command(scripts.DROP, args, _parse_dropped)


def in_lane(lane: str, options: Any) -> Any:
    """The options of a put, or the dict of a put of many, with the lane. Raises ValueError if they name another."""
    if not isinstance(options, Mapping):
        return options  # refused by name where it is read
    if options.get("lane", lane) != lane:
        raise ValueError(f"lane must be {lane!r}, or not be given: {options['lane']!r:.100}")
    return {**options, "lane": lane}


def checked_ending(running: object) -> str:
    """The value, if it is one of ENDINGS. Raises ValueError naming `running`."""
    if running not in ENDINGS:
        raise ValueError(f"running must be finish or stop: {running!r:.100}")
    return str(running)


def _parse_lanes(reply: list[Any]) -> dict[str, LaneCounts]:
    return {row[0].decode(): _parse_counts(*row[1:]) for row in reply}


def _parse_counts(waiting: int, running: int, stalled: int, parked: int, weight: Any, pause: Any) -> LaneCounts:
    return LaneCounts(waiting, running, stalled, parked, int(weight), pause != 0, *parse_by(pause))


def _parse_dropped(reply: list[Any]) -> Dropped:
    return Dropped(reply[0], reply[1], parse_names(reply[2]), parse_names(reply[3]))
