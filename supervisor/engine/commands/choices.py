"""Chooses jobs by their properties, and finds them in steps. Runs in applications, commands and the web server.

Must not do I/O. An index leads: that of a batch, of a failed group or of a tag, else the places of the queues. A script
compares the rest job by job, at most 1,000 in one step.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.command import Command, now_ms, parse_names
from supervisor.engine.commands.routes import Asking
from supervisor.engine.commands.steps import Steps, Told, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.validation import checked_int, milliseconds

#: The states to choose from. waiting excludes parked jobs, and running stalled ones.
STATES: Final = ("waiting", "scheduled", "depends", "parked", "running", "stalled", "failed", "complete")
_ENDED: Final[Sequence[str]] = ("failed", "complete")
#: The places of a queue that hold jobs of a state.
_PLACES: Final = {
    "waiting": ("front", "waiting", "lanes", "scheduled", "apart"),
    "scheduled": ("scheduled",),
    "depends": ("depends",),
    "parked": ("parked",),
    "running": ("running",),
    "stalled": ("running",),
}
#: The order in which jobs move through the places: one that moves on meanwhile is found all the same.
_AS_THEY_MOVE: Final = ("depends", "scheduled", "parked", "apart", "waiting", "lanes", "front", "running")
#: The order in which people look at them.
_AS_SHOWN: Final = ("running", "front", "waiting", "lanes", "apart", "scheduled", "parked", "depends")
#: Places of ended jobs, which are shown from the end: the newest first.
_NEWEST_FIRST: Final = frozenset({"failed", "complete", "group", "batchfailed"})
_CURSOR_BYTES: Final = 1024
#: What a cursor begins with, if the namespace has several shards.
_OF_SHARD: Final = re.compile(rb"[0-9]{1,2}@")
_SCORE: Final = rb"(?:-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)?"
#: Redis takes cursors of its own walks up to 2^64.
_WALK: Final = rb"(?:(?:turns|paused)[0-9]{1,19})?"
_CURSOR: Final = re.compile(
    rb"[^\n]*\n" + _SCORE + rb"\n-?[a-z]+\n" + _WALK + rb"\n[^\n]*\n" + _SCORE + rb"\n.*", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of jobs. All conditions given must hold, and the state. `part`: of the jid."""

    queue: str | None = None
    tag: str | None = None
    group: str | None = None  # of failed jobs
    states: Sequence[str] = STATES
    klass: str | None = None
    lane: str | None = None
    batch: str | None = None
    first_put_unix: float | None = None  # the put of the present stage
    last_put_unix: float | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in STATES:
                raise ValueError(f"states must be some of {', '.join(STATES)}: {state!r:.100}")
        for name in ("queue", "tag", "klass", "lane", "batch", "part"):
            if (value := getattr(self, name)) is not None:
                checked_name(name, value)
        if self.group is not None:
            checked_name("group", self.group, GROUP_BYTES)

    @property
    def lines(self) -> str:
        """Return what the scripts compare: a line each, as include/chosen.lua has them."""
        times = [
            "" if unix is None else str(milliseconds(name, unix))
            for name, unix in (("first_put_unix", self.first_put_unix), ("last_put_unix", self.last_put_unix))
        ]
        lines = self.queue, f",{','.join(self.states)},", self.group, self.klass, self.tag, self.lane, self.batch
        return "\n".join(line or "" for line in (*lines, *times, self.part))


#: All jobs that can be changed, in whichever state each is: for jobs that are named.
NOT_COMPLETE: Final = Choice(states=STATES[:-1])


class ChoicePage(NamedTuple):
    """Some of the chosen jobs with their states.

    `size`: of the places that are looked through; None for those of all queues. `looked_at`: how many jobs this step
    has examined. `cursor`: where the next one begins; None at the end.
    """

    size: int | None
    looked_at: int
    cursor: bytes | None
    states: dict[str, str]


def find(
    choice: Choice,
    cursor: bytes | None = None,
    count: int = MOST,
    *,
    as_shown: bool = False,
    now: float | None = None,
) -> Command[ChoicePage]:
    """Find up to `count` (1 to 1,000) chosen jobs among the next 1,000 at most, behind a cursor of `ChoicePage`.

    Jobs that leave their place between two steps shift nothing. `as_shown`: in the order of pages, ended jobs newest
    first; else in the order in which jobs move on, first come first.
    """
    of_queues, others = _places(choice, _AS_SHOWN if as_shown else _AS_THEY_MOVE)
    if as_shown:
        others = [f"-{place}" if place in _NEWEST_FIRST else place for place in others]
    args = now_ms(now), ",".join(of_queues), ",".join(others), cursor or b"", choice.lines
    build = partial(find, choice, count=count, as_shown=as_shown, now=now)
    route = partial(_shard_by_shard, cursor, build)
    return Command(scripts.FIND, (*args, checked_int("count", count, 1, MOST)), _parse_found, route=route)


def _shard_by_shard(
    cursor: bytes | None,
    build: Callable[[bytes | None], Command[ChoicePage]],
    _command: Command[ChoicePage],
    shards: int,
) -> Asking[ChoicePage]:
    """Look through one shard after the other. The cursor of the whole begins with the shard's number."""
    number, _, within = (cursor or b"").partition(b"@")
    shard = int(number) if number.isdigit() else 0
    if shard >= shards:
        raise ValueError(f"cursor must be one that the list has given: {cursor!r:.100}")
    page: ChoicePage
    [page] = yield [(shard, build(within or None))]
    if page.cursor is not None:
        return page._replace(cursor=b"%d@%s" % (shard, page.cursor), size=None)
    return page._replace(cursor=b"%d@" % (shard + 1) if shard + 1 < shards else None, size=None)


def found(
    choice: Choice, now: Callable[[], float | None], most: float = math.inf, told: Told = ignored
) -> Steps[dict[str, str]]:
    """Return the states of all jobs that are chosen now, first come first. Jobs put meanwhile may be among them.

    If there are more than `most`, only some are returned: as many, or up to 1,000 more.
    """
    chosen: dict[str, str] = {}
    cursor: bytes | None = None
    while len(chosen) <= most:
        step: ChoicePage = yield find(choice, cursor, now=now())
        chosen |= step.states
        told(len(chosen))
        cursor = step.cursor
        if cursor is None:
            break
    return chosen


def checked_cursor(cursor: bytes) -> bytes:
    """Return a cursor that a stranger gives, if it can be one. Raises ValueError."""
    of_shard = _OF_SHARD.match(cursor)
    within = cursor[of_shard.end() :] if of_shard else cursor
    if len(cursor) > _CURSOR_BYTES or not ((of_shard and not within) or _CURSOR.fullmatch(within)):
        raise ValueError(f"cursor must be one that the list has given: {cursor!r:.100}")
    return cursor


def _places(choice: Choice, order: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the places of each queue, and the others, in which chosen jobs may lie."""
    states = set(choice.states)
    ended = [state for state in _ENDED if state in states]
    if choice.batch is not None:
        pending = ["batchjobs"] if states.difference(_ENDED) else []
        return [], pending + ["batchfailed" if state == "failed" else state for state in ended]
    if choice.group is not None:
        return [], ["group"] if "failed" in states else []
    if choice.tag is not None:
        return [], ["tag"]
    wanted = {place for state in states for place in _PLACES.get(state, ())}
    if choice.lane is not None:
        wanted.discard("waiting")  # it has the jobs without a lane
    return [place for place in order if place in wanted], ended


def _parse_found(reply: list[Any]) -> ChoicePage:
    size, looked_at, cursor = reply[:3]
    words = parse_names(reply[3:])
    states = dict(zip(words[::2], words[1::2], strict=True))
    return ChoicePage(size if size >= 0 else None, looked_at, cursor or None, states)
