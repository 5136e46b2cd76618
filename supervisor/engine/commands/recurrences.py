"""Builds the commands about recurring jobs, and parses their replies. Runs in every process that speaks to Redis.

Must not do I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from supervisor import clock
from supervisor.engine.commands import dividing, job_changes, job_queries
from supervisor.engine.commands.command import (
    Argument,
    Command,
    checked_batch,
    checked_by,
    checked_page,
    now_ms,
)
from supervisor.engine.commands.routes import FIRST, Asking, Route, is_none, is_nothing, paged, to
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.cron_times import DueCron
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.recurring import (
    Declared,
    NewRecurrence,
    Recurring,
    changes_of,
    new_recurrence,
    parse_recurring,
)
from supervisor.engine.model.shards import shard_of
from supervisor.engine.model.validation import milliseconds

_DECLARED_AT_ONCE: Final = 100


def recur(
    queue: str,
    klass: str,
    data: object,
    options: Mapping[str, Any],
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[str]:
    """Create a recurring job, or replace the one with this jid. Answers the jid. `by` names who asks.

    The first time of a cron is computed here, by this machine's clock if none is injected.
    """
    new = new_recurrence(queue, klass, data, options, clock.unix() if now is None else now)

    def command(new: NewRecurrence, route: Route | None = None) -> Command[str]:
        args = now_ms(now), "recur", checked_by(by), *new.arguments
        return Command(scripts.RECUR, args, lambda _reply: new.jid, route=route)

    def ask(_command: Command[str], shards: int) -> Asking[str]:
        tied = new.tied()
        [[guests]] = yield [(FIRST, dividing.guests([("recurrence", tied.jid)]))]
        [answer] = yield [(FIRST if guests else shard_of(tied.jid, shards), command(tied))]
        return str(answer)

    return command(new, ask)


def update(
    known: Recurring, changes: Mapping[str, Any], *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Change the given settings of a recurring job. Answers False if it no longer exists. `by` names who asks."""
    new = changes_of(known, changes, clock.unix() if now is None else now)
    args = now_ms(now), "update", checked_by(by), *new.arguments

    def ask(command: Command[bool], shards: int) -> Asking[bool]:
        new.tied()  # else its jobs would be put apart from their limit
        return to(known.jid, is_nothing)(command, shards)

    return Command(scripts.RECUR, args, bool, route=ask)


def declare(
    plain: Sequence[str], recurring: Sequence[Declared], only_missing: bool = False, *, now: float | None = None
) -> Command[tuple[list[str], list[str]]]:
    """Put and change the recurring jobs that code declares, and remove those that it has declared before.

    `plain`: klasses of the code that do not recur, at most 1,000. `recurring`: at most 100. What was declared in the
    same way before stays as it is, also if it was changed or removed since; with `only_missing` whatever was declared
    before. Answers the jids put or changed, and those removed.
    """
    checked_batch("recurring", recurring)
    names = "\n".join(checked_name("plain", klass) for klass in plain)
    args: list[Argument] = [now_ms(now), names, int(only_missing)]
    for one in recurring:
        args += (one.digest, *one.recurrence.arguments)
    return Command(scripts.DECLARE, tuple(args), _parse_declared)


def declarations(
    plain: Iterable[str], recurring: Sequence[Declared], only_missing: bool = False, *, now: float | None = None
) -> list[Command[tuple[list[str], list[str]]]]:
    """Return the calls of `declare` for all that code declares. With `only_missing` none of them removes anything."""
    named = [] if only_missing else list(islice(plain, MOST))
    return [
        declare([] if at else named, recurring[at : at + _DECLARED_AT_ONCE], only_missing, now=now)
        for at in range(0, max(1, len(recurring)), _DECLARED_AT_ONCE)
    ]


def unrecur(jid: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Remove a recurring job. Answers False if there was none. `by` names who asks."""
    args = now_ms(now), checked_name("jid", jid), checked_by(by)
    return Command(scripts.UNRECUR, args, bool, route=to(jid, is_nothing))


def tag(jid: str, tags: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[str] | None]:
    """Add tags to a recurring job, for its later jobs. Answers all its tags; None if there is none.

    `by` names who asks.
    """
    return job_changes.retag(scripts.RECURTAG, "add", jid, tags, by, now)


def untag(
    jid: str, tags: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[list[str] | None]:
    """Remove tags from a recurring job. Answers the tags left; None if there is none. `by` names who asks."""
    return job_changes.retag(scripts.RECURTAG, "remove", jid, tags, by, now)


def spawn(due: DueCron, times: Sequence[float], next_unix: float | None, *, now: float | None = None) -> Command[bool]:
    """Put the jobs of a due cron recurrence for these times (at most 1,000) and set its next time; without one it ends.

    Answers False if another process has done so.
    """
    checked_batch("times", times)
    at_ms = [milliseconds("times", time) for time in times]
    args = now_ms(now), due.jid, due.due_ms, "" if next_unix is None else milliseconds("next_unix", next_unix), *at_ms
    return Command(scripts.SPAWN, args, bool, route=to(due.jid, is_nothing))


def read(jid: str) -> Command[Recurring | None]:
    """Read the recurring job with this jid; None if there is none."""
    args = "", checked_name("jid", jid), 0, 1
    route = to(jid, is_none)
    return Command(scripts.RECURRING, args, lambda reply: parse_recurring(reply[0]) if reply else None, route=route)


def in_queue(queue: str, offset: int = 0, count: int = 25) -> Command[list[Recurring]]:
    """Read up to `count` (0 to 1,000) recurring jobs of a queue from `offset` on, the next due first."""
    args = checked_name("queue", queue), "", *checked_page(offset, count)
    route = paged(offset, count, lambda first, most: in_queue(queue, first, most), lambda one: one.next_unix or 0.0)
    return Command(scripts.RECURRING, args, _parse_recurring, route=route)


def _parse_declared(reply: list[list[bytes]]) -> tuple[list[str], list[str]]:
    put, removed = ([jid.decode() for jid in jids] for jids in reply)
    return put, removed


def _parse_recurring(reply: list[Any]) -> list[Recurring]:
    return [parse_recurring(row) for row in reply]


def read_whole(jid: str) -> Steps[Recurring | None]:
    """Read a recurring job completely, in the same way."""
    record: Recurring | None = yield read(jid)
    if record is None or not record.left_out:
        return record
    stored = yield from job_queries.text_of("recurdata", jid)
    return None if stored is None else replace(record, raw=stored, left_out={})
