"""Defines how a queue or lane is emptied, slice by slice, and forgotten. Runs in applications and commands.

Must not do I/O, and must never run in zygote or child.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor.engine.commands import job_queries, lanes, queue_counts
from supervisor.engine.commands.command import Command, checked_by, checked_jids, now_ms, parse_names
from supervisor.engine.commands.lanes import LaneCounts
from supervisor.engine.commands.steps import Steps, Told, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.jobs import JobRecord
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import checked_int, to_data

_JUDGED = 20  # entries read in one call; each may have some megabytes
_PASSES = 5  # over all places; producers may add jobs during each pass
ENDINGS: Final = ("finish", "stop")  # what happens to running jobs of a deleted queue or lane
SLICE: Final = 250  # jobs in one call: Redis does nothing else for some milliseconds


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a deletion: how many jobs were dropped, and how many were running ("stop" has stopped those)."""

    dropped: int
    running: int

    @staticmethod
    def of_all(parts: "list[Deleted]") -> "Deleted":
        """Return the result of deletions in several shards."""
        return Deleted(sum(part.dropped for part in parts), sum(part.running for part in parts))


class Dropped(NamedTuple):
    """The reply for one slice.

    `next_offset`: where the next slice begins, -1 after the last. `jids`: the dropped jobs. `unjudged`: jobs whose data
    only Python can compare.
    """

    next_offset: int
    dropped: int
    jids: list[str]
    unjudged: list[str]


class Content(NamedTuple):
    """The data of the wanted jobs, as it is stored."""

    kind: str
    raw: bytes


def cancel_equal(queue: str, data: object, now: Callable[[], float], by: str | None = None) -> Steps[list[str]]:
    """Cancel every job of a queue whose data is equal, and return their jids. `by` names who asks."""
    clearing = _Clearing(queue, None, Content(*to_data("data", data)), by, now)
    for _ in range(_PASSES):
        dropped = yield from clearing.once()
        dropped += yield from clearing.drop_from("running")
        if not dropped:
            break
    return list(clearing.jids)


def delete(
    queue: str, lane: str | None, running: str, now: Callable[[], float], by: str | None = None, told: Told = ignored
) -> Steps[Deleted]:
    """Drop all jobs of a queue or lane that do not run, and the persistent ones. "stop" drops running jobs, too.

    An emptied queue is forgotten. `by` names who asks.
    """
    stop = checked_ending(running) == "stop"
    clearing = _Clearing(queue, lane, None, by, now, told)
    dropped = stopped = 0
    for _ in range(_PASSES):
        found = yield from clearing.once()
        # A persistent job would come back into the deleted queue.
        ran = yield from clearing.drop_from("running" if stop else "persistent")
        dropped, stopped = dropped + found, stopped + ran
        if not found and not ran:
            break
    if lane is not None:
        left: LaneCounts = yield lanes.read_one(queue, lane, now=now())
        return Deleted(dropped, stopped + left.running + left.stalled)
    counts: queue_counts.Counts = (yield queue_counts.counts([queue], now=now()))[queue]
    if not counts.total:
        yield from _forget_unless_used(queue, by, now)
    return Deleted(dropped, stopped + counts.running + counts.stalled)


def forget(queue: str, now: Callable[[], float], by: str | None = None) -> Steps[bool]:
    """Remove an empty queue from the list of queues. Returns False if it was not there. `by` names who asks."""
    while (was_known := (yield forget_once(queue, by=by, now=now()))) is None:
        pass
    return bool(was_known)


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
    """Delete the wanted jobs of one slice of a place: all, or those of this lane with this data."""
    of_lane = "" if lane is None else f"={checked_name('lane', lane)}"
    wanted = content or Content("", b"")
    args = checked_name("queue", queue), place, checked_int("offset", offset, 0), count, of_lane
    return Command(scripts.DROP, (now_ms(now), *args, wanted.kind, wanted.raw, checked_by(by)), _parse_dropped)


def drop_given(queue: str, jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[Dropped]:
    """Delete these jobs of a queue, in any state except complete and failed."""
    place = checked_name("queue", queue), "given", 0, SLICE, "", "", ""
    args = now_ms(now), *place, checked_by(by), *checked_jids("jids", jids)
    return Command(scripts.DROP, args, _parse_dropped)


def forget_once(queue: str, *, by: str | None = None, now: float | None = None) -> Command[bool | None]:
    """Remove a queue from the list of queues. Answers False if it was not there, None if another call is needed.

    `by` names who asks. Redis answers an error beginning with REFUSED if the queue is not empty.
    """
    args = now_ms(now), checked_name("queue", queue), checked_by(by)
    return Command(scripts.FORGET, args, lambda found: None if found < 0 else bool(found))


def checked_ending(running: object) -> str:
    """Return the value if it is one of ENDINGS. Raises ValueError naming `running`."""
    if running not in ENDINGS:
        raise ValueError(f"running must be finish or stop: {running!r:.100}")
    return str(running)


def _forget_unless_used(queue: str, by: str | None, now: Callable[[], float]) -> Steps[None]:
    try:
        yield from forget(queue, now, by)
    except (StoreUnavailable, OutcomeUnknown):
        raise
    except LeaseholdError:
        pass  # REFUSED: a producer has put a job meanwhile, so the queue stays known


class _Clearing:
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
        filled = yield from lanes.waiting(self._queue, self._now)
        return ["waiting", *(f"lane:{name.decode()}" for name, number in filled.items() if name and number)]

    def drop_from(self, *places: str) -> Steps[int]:
        """Drop the wanted jobs of these places. Return how many."""
        counts: dict[str, queue_counts.Counts] = yield queue_counts.counts([self._queue], now=self._now())
        dropped = 0
        for place in places:
            offset, left = 0, counts[self._queue].total + 2 * SLICE  # bounds the loop while producers keep adding jobs
            while left > 0:
                found: Dropped = yield drop(
                    self._queue, place, offset, lane=self._lane, content=self._content, by=self._by, now=self._now()
                )
                judged = yield from self._judge(found.unjudged)
                self.jids.update(dict.fromkeys((*found.jids, *judged)))
                dropped += found.dropped + len(judged)
                self._number += found.dropped + len(judged)
                self._told(self._number)
                if found.next_offset < 0:
                    break
                left -= max(found.dropped + found.next_offset - offset, 1)
                offset = max(found.next_offset - len(judged), 0)
        return dropped

    def _judge(self, jids: Sequence[str]) -> Steps[list[str]]:
        """Delete the jobs whose data is equal. Only Python can compare entries and JSON objects."""
        content, equal = self._content, list[str]()
        if content is None:
            return []
        for first in range(0, len(jids), _JUDGED):
            records: list[JobRecord | None] = yield job_queries.jobs(jids[first : first + _JUDGED], now=self._now())
            for record in records:
                if record and "raw" in record.left_out:
                    record = yield from job_queries.read_whole(record.jid, self._now)
                if record and _has(record, content):
                    equal.append(record.jid)
        if not equal:
            return []
        found: Dropped = yield drop_given(self._queue, equal, by=self._by, now=self._now())
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


def _parse_dropped(reply: list[Any]) -> Dropped:
    return Dropped(reply[0], reply[1], parse_names(reply[2]), parse_names(reply[3]))
