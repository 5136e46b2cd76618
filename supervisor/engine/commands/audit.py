"""Reads the record of who did what, and adds to it. Runs in every process that speaks to Redis. Must not do I/O."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from supervisor.engine.commands.command import Command, checked_page, now_ms
from supervisor.engine.commands.routes import Route, beginnings, home
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import BY_BYTES
from supervisor.engine.model.keys import checked_name

#: Kinds of things about which every shard is told, within this time.
_REPEATED: Final = frozenset({"queue", "lane", "option", "worker"})
_SAME_S: Final = 2.0
#: Of these acts on such things, each shard counts its own jobs.
_COUNTING: Final = frozenset({"delete", "sweep"})


@dataclass(frozen=True, slots=True)
class Act:
    """An act of a caller on queues, jobs, limits or supervisors.

    `actor` is what the caller said of itself, None if it said nothing; of a signal its name and sender. `kind` tells
    what `names` are: job, recurrence, queue, lane, limit, option, worker, batch or door; the first 20 of `number`. No
    name stands for all queues. For a queue, a lane or a batch whose jobs were deleted, and for a sweep, `number` counts
    jobs. `queue` is that of a lane, or where jobs went. `value` is what was set or asked for. The same act within a
    minute of the last is the same entry.
    """

    at_unix: float
    actor: str | None
    act: str
    kind: str
    names: tuple[str, ...]
    number: int
    queue: str | None = None
    value: str | None = None


def read(subject: str | None = None, offset: int = 0, count: int = 25) -> Command[list[Act]]:
    """Read up to 1,000 acts, the newest first: all, or those on a job, queue or another thing of this name."""
    wanted = "" if subject is None else checked_name("subject", subject)
    args = wanted, *checked_page(offset, count)
    build = partial(read, subject)
    return Command(
        scripts.AUDIT, args, lambda reply: [act_of(line.decode(errors="replace")) for line in reply],
        route=_once_each(offset, count, build),
    )  # fmt: skip


def _once_each(offset: int, count: int, build: Callable[[int, int], Command[list[Act]]]) -> Route:
    """Return the route that shows once what every shard was told, like a pause, with the jobs of all shards."""

    def join(answers: list[list[Act]]) -> list[Act]:
        acts: dict[tuple[object, ...], Act] = {}
        for act in (act for part in answers for act in part):
            same = (act.actor, act.act, act.kind, act.names, act.queue, act.value, round(act.at_unix / _SAME_S))
            known = acts.setdefault(same if act.kind in _REPEATED else (*same, id(act)), act)
            if known is not act and act.act in _COUNTING:
                acts[same] = replace(known, number=known.number + act.number)
        return sorted(acts.values(), key=lambda act: -act.at_unix)[offset : offset + count]

    return beginnings(offset, count, build, join)


def note(
    worker: str, by: str, act: str, value: Mapping[str, Any] | None = None, *, now: float | None = None
) -> Command[bool]:
    """Record what a worker does because of a signal. `by`: its name and sender, cut after 128 bytes."""
    actor = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", by).encode(errors="replace")[:BY_BYTES].decode(errors="ignore")
    args = checked_name("worker", worker), actor, act, b"" if value is None else orjson.dumps(value)
    return Command(scripts.NOTE, (now_ms(now), *args), bool, route=home)


def act_of(line: str) -> Act:
    """Return the act that acts.lua has written as these lines."""
    when_ms, number, actor, act, kind, queue, value, *names = line.split("\n")
    return Act(int(when_ms) / 1000, actor or None, act, kind, tuple(names), int(number), queue or None, value or None)
