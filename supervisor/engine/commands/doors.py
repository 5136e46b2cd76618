"""The calls about doors: lists of other programs whose entries become jobs. Runs in every process that speaks to Redis.

Must not do I/O.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.engine.commands.check import SCAN, ScanPage
from supervisor.engine.commands.command import Argument, Command, checked_by, now_ms
from supervisor.engine.commands.routes import home
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.doors import FORMATS, Door, checked_door
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int

#: Keys that one look for lists of clients visits, which takes Redis about 5 ms, and the pause between two looks.
_VISITED: Final = 20_000
FIND_S: Final = 5.0
_MOST_PAGES: Final = 1_000


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
    return Command(scripts.DOORS, (), _parse_doors, route=home)


def take(names: Sequence[str], most: int, *, now: float | None = None) -> Command[TakenEntries]:
    """Put the next entries of some doors as jobs, up to `most` (1 to 1,000) and about 512 KiB of them."""
    checked = [checked_name("name", name) for name in names]
    return Command(scripts.DOORTAKE, (now_ms(now), checked_int("most", most, 1, MOST), *checked), _parse_taken)


class _Find(Command[ScanPage]):
    def wire(self, prefix: str, *_known: str) -> tuple[Argument, ...]:
        return self.args


def find(door: Door, cursor: int) -> Command[ScanPage]:
    """Look among the next keys of the database for lists of a door's clients. A list has at least one entry."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", door.source) + ":*"
    args = ("SCAN", cursor, "MATCH", pattern, "COUNT", _VISITED, "TYPE", "list")
    return _Find(SCAN, args, lambda reply: ScanPage(int(reply[0]), reply[1]))


def remember(door: Door, lists: Sequence[bytes], *, now: float | None = None) -> Command[int]:
    """Keep which lists of clients were found, the first 1,000. Answers how many of them were not known."""
    return Command(scripts.DOORLISTS, (now_ms(now), door.name, door.source, *lists[:MOST]), int)


def find_and_take(name: str, most: int, *, now: float | None = None) -> Steps[TakenEntries]:
    """Take from one door. If its clients have lists of their own, look among all keys for those first."""
    command = take([name], most, now=now)
    found = yield read()
    for door in found:
        page = ScanPage(0, [])
        for _ in range(_MOST_PAGES if door.name == name and door.has_clients else 0):
            page = yield find(door, page.cursor)
            if page.found:
                yield remember(door, page.found, now=now)
            if page.cursor == 0:
                break
    taken: TakenEntries = yield command
    return taken


def _text(door: Door) -> str:
    """Return a door as the scripts keep it."""
    lines = [door.format, "\t".join(door.lists), door.source, door.queue, door.klass or ""]
    return "\n".join([*lines, *(f"{foreign}\t{klass}" for foreign, klass in (door.klasses or {}).items())])


def _parse_doors(reply: list[Any]) -> list[Door]:
    """Return the doors by name. One that is damaged, or of a newer version's format, must not hide the others."""
    doors = []
    for row in reply:
        with contextlib.suppress(ValueError):
            doors.append(_door(*row))
    return sorted((door for door in doors if door.format in FORMATS), key=lambda door: door.name)


def _door(name: bytes, text: bytes, waiting: int, client_lists: list[bytes]) -> Door:
    format, _lists, source, queue, klass, *mapped = text.decode().split("\n")
    return Door(
        name.decode(), format, source, queue, klass or None,
        dict(line.split("\t", 1) for line in mapped) or None,
        None if waiting < 0 else waiting,
        [each.decode(errors="replace") for each in client_lists],
    )  # fmt: skip


def _parse_taken(reply: list[Any]) -> TakenEntries:
    count, more, again_ms = reply
    return TakenEntries(count, more == b"1", again_ms / 1000 if again_ms else None)
