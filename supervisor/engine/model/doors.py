"""Defines doors: lists of other programs whose entries become jobs. Runs in every process that speaks to Redis.

Must not do I/O. lua/include/door_entries.lua decides what an entry says, and lua/include/door_ends.lua what is left for
the producer when its job has ended.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.engine.model.keys import checked_name

SOURCE_BYTES: Final = 512
MOST_KLASSES: Final = 1000


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of other program. Its `lists`, the most urgent one first, have {} in the place of the door's source.

    `names_klass`: an entry says of which class its job is. `has_clients`: its one list is a pattern, because each
    client has a list of its own, which is there while it has entries.
    """

    program: str
    source: str
    pattern: re.Pattern[str]
    lists: tuple[str, ...]
    names_klass: bool
    has_clients: bool = False


_ANY: Final = re.compile(r".+")
#: As kombu names the lists of the priorities 0 to 9.
_OF_PRIORITIES: Final = ("{}", *(f"{{}}\x06\x16{priority}" for priority in range(1, 10)))

FORMATS: Final[Mapping[str, Format]] = {
    "rwq": Format("redis-work-queue", "the prefix of its keys", _ANY, ("{}:queue",), names_klass=False),
    "hworker": Format("hworker", "its name", _ANY, ("hworker-jobs-{}",), names_klass=False),
    "worqr": Format("Worqr", "a list <prefix>:queues:<queue>", re.compile(r".+:queues:.+"), ("{}",), names_klass=False),
    "client-lists": Format(
        "per-client lists", "what is before :<client>", _ANY, ("{}:*",), names_klass=False, has_clients=True
    ),
    "sidekiq": Format("Sidekiq", "a list queue:<queue>", re.compile(r"(?:.+:)?queue:.+"), ("{}",), names_klass=True),
    "celery": Format("Celery", "a list, the queue's name", _ANY, _OF_PRIORITIES, names_klass=True),
    "rq-json": Format("RQ", "a list rq:queue:<queue>", re.compile(r".+:queue:.+"), ("{}",), names_klass=True),
}


@dataclass(frozen=True, slots=True)
class Door:
    """A list of another program, or several of one queue, whose entries become jobs of a queue.

    `klass`: of all its jobs; None: each entry names its own, or that in `klasses` in its place. `waiting`: how many
    entries are in the lists; None: one is no list any more, or this account may not read it. `client_lists`: up to 100
    lists of clients that were found, the ones seen last first.
    """

    name: str
    format: str
    source: str
    queue: str
    klass: str | None = None
    klasses: Mapping[str, str] | None = None
    waiting: int | None = None
    client_lists: Sequence[str] = ()

    @property
    def has_clients(self) -> bool:
        """Whether each client has a list of its own."""
        return FORMATS[self.format].has_clients

    @property
    def list(self) -> str:
        """The key of the list, or of the most urgent one, or the pattern of those of clients."""
        return self.lists[0]

    @property
    def lists(self) -> tuple[str, ...]:
        """The keys of all lists, the most urgent one first."""
        return tuple(each.format(self.source) for each in FORMATS[self.format].lists)

    @property
    def usual_lists(self) -> tuple[str, ...]:
        """Those where a push must be noticed at once. kombu uses the priorities 0, 3, 6 and 9 by default."""
        return tuple(self.client_lists) if self.has_clients else self.lists[::3]


def checked_door(name: object, format: object, source: object, queue: object, klass: object, klasses: object) -> Door:
    """Return a door. Raises TypeError or ValueError naming the argument."""
    if not isinstance(format, str):
        raise TypeError(f"format must be a str, not {type(format).__name__}: {format!r:.100}")
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}: {format!r:.100}")
    known = FORMATS[format]
    checked_source = checked_name("source", source, SOURCE_BYTES)
    if not known.pattern.fullmatch(checked_source):
        raise ValueError(f"source must be {known.source}, as it is for {known.program}: {source!r:.100}")
    if klass is None and not known.names_klass:
        raise ValueError(f"klass must be given, because an entry of {known.program} names none: {klass!r}")
    if klasses is not None and (klass is not None or not known.names_klass):
        raise ValueError(f"klasses is for entries that name a class, and stands without klass: {klasses!r:.100}")
    return Door(
        checked_name("name", name), format, checked_source, checked_name("queue", queue),
        None if klass is None else checked_name("klass", klass),
        None if klasses is None else _checked_klasses(klasses),
    )  # fmt: skip


def _checked_klasses(klasses: object) -> dict[str, str]:
    if not isinstance(klasses, Mapping):
        raise TypeError(f"klasses must be a mapping, not {type(klasses).__name__}: {klasses!r:.100}")
    if not 1 <= len(klasses) <= MOST_KLASSES:
        raise ValueError(f"klasses must have 1 to {MOST_KLASSES} entries, not {len(klasses)}")
    return {
        checked_name("klasses", foreign, SOURCE_BYTES): checked_name("klasses", klass)
        for foreign, klass in klasses.items()
    }
