"""Defines lanes, the calls about them, and the slices that empty a lane or queue. Runs in applications and commands.

Must not do I/O, and must never run in zygote or child. steps.py decides the order of the slices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from supervisor.engine.commands.command import Command, checked_by, checked_page, now_ms, parse_by
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int

MOST_WEIGHT: Final = 1000


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """How many jobs of a lane are in each state.

    `parked` jobs wait for room in their limit. A lane of weight w gets w starts for each start of a lane of weight 1.
    `paused`: no new job starts from it; `paused_unix` and `paused_by` are None if unknown. The counts cover 10,000 of
    the queue's running jobs, and 10,000 of those that were handed back.
    """

    waiting: int
    running: int
    stalled: int
    parked: int
    weight: int
    paused: bool
    paused_by: str | None = field(default=None, compare=False)
    paused_unix: float | None = field(default=None, compare=False)


# The calls.


def read(
    queue: str, lane: str | None = None, offset: int = 0, count: int = MOST, *, now: float | None = None
) -> Command[dict[str, LaneCounts]]:
    """Read one lane, known or not, or up to `count` (0 to 1,000) lanes from `offset` on.

    Only lanes with jobs or settings are listed; "" stands for the jobs without a lane.
    """
    wanted = "" if lane is None else f"={checked_name('lane', lane)}"
    page = checked_page(offset, count)
    return Command(scripts.LANES, (now_ms(now), checked_name("queue", queue), wanted, *page), _parse_lanes)


def weigh(queue: str, lane: str, weight: int, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Set a lane's weight (1 to 1,000). `by` names who asks. Return False if it had that weight."""
    return _set_up(queue, lane, "weight", checked_int("weight", weight, 1, MOST_WEIGHT), by, now)


def pause(queue: str, lane: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Pause a lane. `by` names who asks. Return False if it was paused."""
    return _set_up(queue, lane, "pause", "", by, now)


def unpause(queue: str, lane: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """End a lane's pause. `by` names who asks. Return False if it was not paused."""
    return _set_up(queue, lane, "unpause", "", by, now)


def _set_up(queue: str, lane: str, verb: str, weight: int | str, by: str | None, now: float | None) -> Command[bool]:
    args = now_ms(now), checked_name("queue", queue), checked_name("lane", lane), verb, weight, checked_by(by)
    return Command(scripts.LANE, args, bool)


def in_lane(lane: str, options: Any) -> Any:
    """Return the options of a put, or the dict of a put of many, with the lane.

    Raises ValueError if they name another.
    """
    if not isinstance(options, Mapping):
        return options  # its reader refuses it by name
    if options.get("lane", lane) != lane:
        raise ValueError(f"lane must be {lane!r}, or not be given: {options['lane']!r:.100}")
    return {**options, "lane": lane}


def _parse_lanes(reply: list[Any]) -> dict[str, LaneCounts]:
    return {row[0].decode(): _parse_counts(*row[1:]) for row in reply}


def _parse_counts(waiting: int, running: int, stalled: int, parked: int, weight: Any, pause: Any) -> LaneCounts:
    return LaneCounts(waiting, running, stalled, parked, int(weight), pause != 0, *parse_by(pause))
