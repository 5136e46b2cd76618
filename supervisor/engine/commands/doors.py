"""The calls about doors: lists of other programs whose entries become jobs. Runs in every process that speaks to Redis.

Must not do I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.engine.commands.command import Command, checked_by, now_ms
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.doors import Door, checked_door
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int


@dataclass(frozen=True, slots=True)
class TakenEntries:
    """How many entries were taken, and whether there are more.

    `again_s`: look again after this, because the format has entries whose coming nobody is told of; None: when one is
    pushed.
    """

    count: int
    has_more: bool
    again_s: float | None


def add(
    name: str,
    format: str,
    source: str,
    queue: str,
    klass: str | None = None,
    klasses: object = None,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[bool]:
    """Add a door, or change the one of this name. Answers whether anything has changed. `by` names who asks."""
    door = checked_door(name, format, source, queue, klass, klasses)
    return Command(scripts.DOOR, (now_ms(now), door.name, _text(door), door.list, checked_by(by)), bool)


def remove(name: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Remove a door. Its jobs go on. Answers False if there was none. `by` names who asks."""
    return Command(scripts.DOOR, (now_ms(now), checked_name("name", name), "", "", checked_by(by)), bool)


def read() -> Command[list[Door]]:
    """Read all doors, by name."""
    return Command(scripts.DOORS, (), lambda reply: sorted((_door(*row) for row in reply), key=lambda each: each.name))


def take(names: Sequence[str], most: int, *, now: float | None = None) -> Command[TakenEntries]:
    """Put the next entries of some doors as jobs, up to `most` (1 to 1,000) and about 512 KiB of them."""
    checked = [checked_name("name", name) for name in names]
    return Command(scripts.DOORTAKE, (now_ms(now), checked_int("most", most, 1, MOST), *checked), _parse_taken)


def _text(door: Door) -> str:
    """Return a door as the scripts keep it."""
    lines = [door.format, "\t".join(door.lists), door.source, door.queue, door.klass or ""]
    return "\n".join([*lines, *(f"{foreign}\t{klass}" for foreign, klass in (door.klasses or {}).items())])


def _door(name: bytes, text: bytes, waiting: int) -> Door:
    format, _lists, source, queue, klass, *mapped = text.decode().split("\n")
    klasses = dict(line.split("\t", 1) for line in mapped) or None
    return Door(name.decode(), format, source, queue, klass or None, klasses, None if waiting < 0 else waiting)


def _parse_taken(reply: list[Any]) -> TakenEntries:
    count, more, again_ms = reply
    return TakenEntries(count, more == b"1", again_ms / 1000 if again_ms else None)
