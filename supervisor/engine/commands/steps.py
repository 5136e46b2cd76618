"""Defines the calls that take more than one command. Runs in applications and commands.

Must not do I/O, and must never run in zygote or child. A client carries out each command and sends its answer back.
"""

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from supervisor.engine.commands import lanes, queries, recurrences, settling
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.concerns import Concerns
from supervisor.engine.commands.concerns import read as read_concerns
from supervisor.engine.commands.lanes import SLICE, Content, Deleted, Dropped, LaneCounts, checked_ending
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.jobs import JobRecord
from supervisor.engine.model.outcomes import LATER, Answer, Outcome
from supervisor.engine.model.recurring import Recurring
from supervisor.engine.model.validation import to_data

T = TypeVar("T")
#: A generator that yields each command, receives its answer or its exception, and returns the result of the call.
Steps = Generator[Command[Any], Any, T]
#: Is called after each step with the number of jobs so far. What it raises ends the call between two steps.
Told = Callable[[int], object]

_JUDGED = 20  # entries read in one call; each may have some megabytes
_PASSES = 5  # over all places; producers may add jobs during each pass


def ignored(_number: int) -> None:
    """Take a number that nobody wants."""


def all_pages(page: Callable[[int], Command[dict[str, T]]], least: int = MOST) -> Steps[dict[str, T]]:
    """Return the rows of all pages of a query, from offset 0 on. Each page but the last has `least` rows or more."""
    found: dict[str, T] = {}
    offset = 0
    while True:
        more: dict[str, T] = yield page(offset)
        found |= more
        offset += len(more)
        if len(more) < least:
            return found


def concerns(now: Callable[[], float | None]) -> Steps[Concerns]:
    """Return what waits for a person, of all queues."""
    offset: int | None = 0
    found = Concerns()
    while offset is not None:
        page, following = yield read_concerns(offset, now=now())
        found, offset = found | page if offset else page, following
    return found


def settle(worker: str, parts: Iterable[Sequence[Outcome]], now: float) -> Steps[list[Answer]]:
    """End leases, one part after the other. All arguments are checked before the first part ends."""
    answers: list[Answer] = []
    for part, command in [(part, settling.settle(worker, part, now=now)) for part in parts]:
        ended: list[Answer] = yield command
        while later := [i for i, answer in enumerate(ended) if answer == LATER]:
            again = yield settling.settle(worker, [part[i] for i in later], now=now)
            for i, answer in zip(later, again, strict=True):
                ended[i] = answer
        answers += ended
    return answers


def job(jid: str, now: Callable[[], float | None]) -> Steps[JobRecord | None]:
    """Read a job completely. Attributes that are too large for one reply come in pieces."""
    row = yield queries.row(jid, now=now())
    if row is None:
        return None
    record = yield from whole(jid, row, queries.LARGE)
    is_gone = not record.raw and (yield queries.row(jid, now=now())) is None
    return None if is_gone else record


def whole(jid: str, row: list[Any], names: Iterable[str]) -> Steps[JobRecord]:
    """Return the job of a row, after reading the attributes `names` that were left out.

    They are empty if the job has gone.
    """
    for name in names:
        column, kind = queries.LARGE[name]
        if isinstance(row[column], int):
            is_text = kind not in ("history", "dependencies", "dependents")
            row[column] = (yield from _text(kind, jid)) if is_text else (yield queries.elements(kind, jid))
    return queries.parse_row(row)


def recurring(jid: str) -> Steps[Recurring | None]:
    """Read a recurring job completely, in the same way."""
    record: Recurring | None = yield recurrences.read(jid)
    if record is None or not record.left_out:
        return record
    stored = yield from _text("recurdata", jid)
    return None if stored is None else replace(record, raw=stored, left_out={})


def _text(kind: str, jid: str) -> Steps[bytes | None]:
    """Return all pieces of a text, or None if there is none.

    Reading begins again if the text's size changes meanwhile.
    """
    for _ in range(_PASSES):
        size, stored = yield queries.piece(kind, jid, 0)
        pieces, read, is_same = [stored], len(stored), True
        while is_same and read < size:
            new_size, more = yield queries.piece(kind, jid, read)
            pieces.append(more)
            read, is_same = read + len(more), new_size == size
        if size < 0:
            return None
        if is_same:
            return b"".join(pieces)
    raise LeaseholdError(f"the {kind} of job {jid} was replaced again and again while it was read: ask again")


def cancel_equal(queue: str, data: object, now: Callable[[], float], by: str | None = None) -> Steps[list[str]]:
    """Cancel every job of a queue whose data is equal, and return their jids. `by` names who asks."""
    sweep = _Sweep(queue, None, Content(*to_data("data", data)), by, now)
    for _ in range(_PASSES):
        dropped = yield from sweep.once()
        dropped += yield from sweep.drop_from("running")
        if not dropped:
            break
    return list(sweep.jids)


def delete(
    queue: str, lane: str | None, running: str, now: Callable[[], float], by: str | None = None, told: Told = ignored
) -> Steps[Deleted]:
    """Drop all jobs of a queue or lane that do not run, and the persistent ones. "stop" drops running jobs, too.

    An emptied queue is forgotten. `by` names who asks.
    """
    stop = checked_ending(running) == "stop"
    sweep = _Sweep(queue, lane, None, by, now, told)
    dropped = stopped = 0
    for _ in range(_PASSES):
        found = yield from sweep.once()
        # A persistent job would come back into the deleted queue.
        ran = yield from sweep.drop_from("running" if stop else "endless")
        dropped, stopped = dropped + found, stopped + ran
        if not found and not ran:
            break
    if lane is not None:
        left: LaneCounts = (yield lanes.read(queue, lane, now=now()))[lane]
        return Deleted(dropped, stopped + left.running + left.stalled)
    counts: queries.Counts = (yield queries.counts([queue], now=now()))[queue]
    if not counts.total:
        yield from _forget_unless_used(queue, by, now)
    return Deleted(dropped, stopped + counts.running + counts.stalled)


def forget(queue: str, now: Callable[[], float], by: str | None = None) -> Steps[bool]:
    """Remove an empty queue from the list of queues. Returns False if it was not there. `by` names who asks."""
    while (was_known := (yield lanes.forget(queue, by=by, now=now()))) is None:
        pass
    return bool(was_known)


def _forget_unless_used(queue: str, by: str | None, now: Callable[[], float]) -> Steps[None]:
    try:
        yield from forget(queue, now, by)
    except (StoreUnavailable, OutcomeUnknown):
        raise
    except LeaseholdError:
        pass  # REFUSED: a producer has put a job meanwhile, so the queue stays known


class _Sweep:
    """Drops the wanted jobs from all places of a queue, slice by slice."""

    def __init__(
        self,
        queue: str,
        lane: str | None,
        content: Content | None,
        by: str | None,
        now: Callable[[], float],
        told: Told = ignored,
    ) -> None:
        self._queue = queue
        self._lane = lane
        self._content = content
        self._by = by
        self._now = now
        self._told = told
        self._number = 0
        self.jids: dict[str, None] = {}

    def once(self) -> Steps[int]:
        """Pass once through all places of jobs that do not run, in the order in which jobs move.

        Return how many were dropped.
        """
        recurring = ("recurring",) if self._lane is None and self._content is None else ()
        dropped = yield from self.drop_from(*recurring, "in", "depends", "scheduled", "parked", "apart")
        lines = yield from self._lines()
        return dropped + (yield from self.drop_from(*lines, "front"))

    def _lines(self) -> Steps[list[str]]:
        if self._lane is not None:
            return [f"lane:{self._lane}"]
        filled = yield from all_pages(lambda offset: lanes.read(self._queue, None, offset, now=self._now()))
        return ["waiting", *(f"lane:{name}" for name, counts in filled.items() if name and counts.waiting)]

    def drop_from(self, *places: str) -> Steps[int]:
        """Drop the wanted jobs of these places. Return how many."""
        counts: dict[str, queries.Counts] = yield queries.counts([self._queue], now=self._now())
        dropped = 0
        for place in places:
            offset = 0
            least = 1 if place == "in" else SLICE  # entries are large, so one call takes fewer of them
            for _ in range(2 + counts[self._queue].total // least):  # bounds the loop while producers keep adding jobs
                found: Dropped = yield lanes.drop(
                    self._queue, place, offset, lane=self._lane, content=self._content, by=self._by, now=self._now()
                )
                judged = yield from self._judge(found.unjudged)
                self.jids.update(dict.fromkeys((*found.jids, *judged)))
                dropped += found.dropped + len(judged)
                self._number += found.dropped + len(judged)
                self._told(self._number)
                if found.next_offset < 0:
                    break
                offset = max(found.next_offset - len(judged), 0)
        return dropped

    def _judge(self, jids: Sequence[str]) -> Steps[list[str]]:
        """Delete the jobs whose data is equal. Only Python can compare entries and JSON objects."""
        content, equal = self._content, list[str]()
        if content is None:
            return []
        for first in range(0, len(jids), _JUDGED):
            records: list[JobRecord | None] = yield queries.jobs(jids[first : first + _JUDGED], now=self._now())
            for record in records:
                if record and "raw" in record.left_out:
                    record = yield from job(record.jid, self._now)
                if record and _has(record, content):
                    equal.append(record.jid)
        if not equal:
            return []
        found: Dropped = yield lanes.drop_given(self._queue, equal, by=self._by, now=self._now())
        return found.jids


def _has(record: JobRecord, content: Content) -> bool:
    if record.is_bytes or content.kind == "bytes":
        return record.is_bytes == (content.kind == "bytes") and record.raw == content.raw
    try:
        return bool(_value(record.raw) == _value(content.raw))
    except (ValueError, RecursionError):
        return record.raw == content.raw  # another program put it, and it is not JSON


def _value(raw: bytes) -> Any:
    """Decode JSON but keep numbers as text, because numbers above 64 bits must not compare equal by rounding."""
    return json.loads(raw, parse_int=_Number, parse_float=_Number)


class _Number(NamedTuple):
    text: str
