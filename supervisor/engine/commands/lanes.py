"""Defines lanes, the calls about them, and the slices that empty a lane or queue. Runs in applications and commands.

Must not do I/O, and must never run in zygote or child. steps.py decides the order of the slices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from supervisor.engine.commands.command import Command, checked_batch, checked_by, now_ms, parse_by
from supervisor.engine.commands.routes import everywhere, joined, repeated, summed, united
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int

MOST_WEIGHT: Final = 1000
Now = Callable[[], float | None]


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


def read(queue: str, lanes: Sequence[str | bytes], *, now: float | None = None) -> Command[dict[str, LaneCounts]]:
    """Read up to 1,000 lanes, known or not; "" stands for the jobs without a lane."""
    checked_batch("lanes", lanes)
    args = now_ms(now), checked_name("queue", queue), *lanes
    return Command(scripts.LANES, args, _parse_lanes, route=everywhere(joined(_together)))


def read_one(queue: str, lane: str, *, now: float | None = None) -> Command[LaneCounts]:
    """Read one lane, known or not."""
    command = read(queue, (checked_name("lane", lane),), now=now)
    return Command(command.script, command.args, lambda reply: command.parse(reply)[lane], route=everywhere(_together))


def names(queue: str, *, now: float | None = None) -> Command[tuple[dict[bytes, int], list[bytes]]]:
    """Read all lanes that have jobs or settings, with their numbers of waiting jobs, and lanes that were not counted.

    All are of one instant, so that none is missed while jobs come and go.
    """
    args = now_ms(now), checked_name("queue", queue)
    return Command(scripts.LANES, args, _parse_names, route=everywhere(_names_of_all))


def _names_of_all(answers: list[tuple[dict[bytes, int], list[bytes]]]) -> tuple[dict[bytes, int], list[bytes]]:
    further = united([names for _, names in answers])
    counted = summed([counts for counts, _ in answers])
    return {name: number for name, number in counted.items() if name not in set(further)}, further


def _together(answers: list[LaneCounts]) -> LaneCounts:
    """Return the counts of one lane in all shards. Weight and pause are the same in each."""
    waiting, running, stalled, parked = (
        sum(getattr(counts, name) for counts in answers) for name in ("waiting", "running", "stalled", "parked")
    )
    return replace(answers[0], waiting=waiting, running=running, stalled=stalled, parked=parked)


def waiting(queue: str, now: Now) -> Steps[dict[bytes, int]]:
    """Return the number of waiting jobs of each lane that has jobs or settings."""
    found: tuple[dict[bytes, int], list[bytes]] = yield names(queue, now=now())
    counted, further = found
    rest = yield from _read_each(queue, further, now)
    return counted | {name.encode(): counts.waiting for name, counts in rest.items()}


def read_all(queue: str, now: Now) -> Steps[dict[str, LaneCounts]]:
    """Return the lanes of a queue that have jobs or settings, by name."""
    counted, further = yield names(queue, now=now())
    return (yield from _read_each(queue, sorted((*counted, *further)), now))


def fullest(queue: str, most: int, containing: str, now: Now) -> Steps[tuple[dict[str, LaneCounts], int]]:
    """Return the lanes with the most waiting jobs of those whose names contain a text, and the number of all these.

    Of equally full ones the first by name come first.
    """
    part = containing.encode()
    counted = {name: number for name, number in (yield from waiting(queue, now)).items() if part in name}
    chosen = sorted(counted, key=lambda name: (-counted[name], name))[:most]
    return (yield from _read_each(queue, chosen, now)), len(counted)


def _read_each(queue: str, lanes: Sequence[bytes], now: Now) -> Steps[dict[str, LaneCounts]]:
    found: dict[str, LaneCounts] = {}
    for at in range(0, len(lanes), MOST):
        found |= yield read(queue, lanes[at : at + MOST], now=now())
    return found


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
    return Command(scripts.LANE, args, bool, route=repeated)


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
    rows = zip(*[iter(reply)] * 7, strict=True)
    return {name.decode(): _parse_counts(*row) for name, *row in rows}


def _parse_counts(waiting: int, running: int, stalled: int, parked: int, weight: Any, pause: Any) -> LaneCounts:
    return LaneCounts(waiting, running, stalled, parked, int(weight), pause != 0, *parse_by(pause))


def _parse_names(reply: list[Any]) -> tuple[dict[bytes, int], list[bytes]]:
    further, *counted = reply
    return dict(zip(counted[::2], counted[1::2], strict=True)), further
