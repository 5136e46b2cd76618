"""Builds the commands of batches, and parses their replies. Runs in every process that speaks to Redis.

Must not do I/O. A batch counts its members in Redis; include/batches.lua has the rules.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor.engine.commands import dividing, job_changes
from supervisor.engine.commands.command import Command, checked_by, checked_page, now_ms, parse_by
from supervisor.engine.commands.routes import FIRST, Asking, Route, beginnings, is_none, is_nothing, page_of, to
from supervisor.engine.commands.steps import Steps, Told, ignored
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import NewJob, new_job
from supervisor.engine.model.shards import Tie, key_of, shard_of
from supervisor.engine.model.validation import checked_text

#: A job to put: its queue, and put's arguments.
Callback = Mapping[str, Any]

DESCRIPTION_BYTES: Final = 1024
CALLBACK_BYTES: Final = 65536
_NOT_LATER: Final = ("delay", "at", "depends", "unique", "batch")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it was at one instant."""

    id: str
    state: str  # open (jobs can be put into it), running, complete, failed or cancelled
    description: str
    parent: str | None  # the batch of which it is a member
    total: int
    pending: int  # members that have not ended
    complete: int
    failed: int
    cancelled: int
    opened_unix: float
    closed_unix: float | None
    ended_unix: float | None
    to_call: list[str]  # the callbacks that were not put yet
    paused: bool  # its waiting members are not leased
    paused_by: str | None
    paused_unix: float | None


class BatchCounts(NamedTuple):
    """How many batches have not ended, are open, are open for more than an hour, and have ended."""

    running: int
    open: int
    open_for_long: int
    ended: int


class Listed(NamedTuple):
    """Some batches, and the numbers of all."""

    counts: BatchCounts
    rows: list[BatchRecord]


class Looked(NamedTuple):
    """One batch, and the jids of some of its failed jobs. `nested`: the failed batches among the same members."""

    record: BatchRecord
    failed: list[str]
    nested: list[str]
    at_ms: int


def checked_callbacks(callbacks: Mapping[str, Callback | None]) -> dict[str, NewJob]:
    """Return the jobs of these callbacks, by their names. Raises TypeError or ValueError naming one."""
    checked: dict[str, NewJob] = {}
    for name, callback in callbacks.items():
        if callback is None:
            continue
        if not isinstance(callback, Mapping):
            raise TypeError(f"{name} must be a job to put, such as handler.job(…): {callback!r:.100}")
        if missing := [key for key in ("queue", "klass") if key not in callback]:
            raise TypeError(f"{name} must be a job to put with its {' and '.join(missing)}: {callback!r:.100}")
        for option in _NOT_LATER:
            if callback.get(option):
                raise ValueError(f"{name} cannot have {option}: it is put when the batch ends")
        rest = {key: value for key, value in callback.items() if key not in {"queue", "klass", "data"}}
        try:
            job = new_job("put", callback["queue"], callback["klass"], callback.get("data"), rest)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        if job.size_bytes > CALLBACK_BYTES:
            raise ValueError(f"{name} has {job.size_bytes} bytes of data; a callback has at most {CALLBACK_BYTES}")
        checked[name] = job
    return checked


def opened(
    batch_id: str, description: str, parent: str | None, callbacks: Mapping[str, NewJob], *, now: float | None = None
) -> Command[bool]:
    """Create a batch. `callbacks` come from `checked_callbacks`.

    Redis answers an error beginning with REFUSED if there is one of this id, or the parent is closed.
    """
    head = now_ms(now), batch_id, description, parent or ""

    def command(jobs: Mapping[str, NewJob], route: Route | None = None) -> Command[bool]:
        args = (argument for name, job in jobs.items() for argument in (name, *job.arguments))
        return Command(scripts.BATCHOPEN, (*head, *args), bool, route=route)

    def ask(_command: Command[bool], shards: int) -> Asking[bool]:
        tie = Tie("its batch", key_of(batch_id))
        tied = {name: job.tied(tie) for name, job in callbacks.items()}
        [answer] = yield [(shard_of(batch_id, shards), command(tied))]
        return bool(answer)

    return command(callbacks, ask)


def closed(batch_id: str, aborted: bool = False, *, now: float | None = None) -> Command[bool]:
    """Close a batch. `aborted`: no callback is put. Answers False if there is none."""
    args = now_ms(now), batch_id, "1" if aborted else ""
    return Command(scripts.BATCHCLOSE, args, bool, route=to(batch_id, is_nothing))


def cancelled(
    batch_id: str, by: str | None = None, *, now: float | None = None
) -> Command[tuple[int, int, list[str]] | None]:
    """Delete up to 1,000 jobs of a batch. Answers how many, how many members are left, and the nested batches.

    Answers None if there is no such batch.
    """

    def parse(reply: Any) -> tuple[int, int, list[str]] | None:
        return None if reply is None else (reply[0], reply[1], [one.decode() for one in reply[2]])

    args = now_ms(now), batch_id, MOST, checked_by(by)
    return Command(scripts.BATCHCANCEL, args, parse, route=to(batch_id, is_none))


def paused(batch_id: str, by: str | None = None, *, now: float | None = None) -> Command[bool]:
    """Pause a batch. Answers False if it was paused. Redis answers an error beginning with REFUSED if there is none."""
    args = now_ms(now), batch_id, "1", checked_by(by), ""
    return Command(scripts.BATCHPAUSE, args, lambda reply: bool(reply[0]), route=_where_it_is(batch_id))


def resumed(
    batch_id: str, rank: int | None = None, by: str | None = None, *, now: float | None = None
) -> Command[tuple[bool, int]]:
    """Let a batch go on, in up to 1,000 queues. Answers if it was paused, and the `rank` of the next call, or 0."""
    args = now_ms(now), batch_id, "", checked_by(by), "" if rank is None else rank
    return Command(scripts.BATCHPAUSE, args, lambda reply: (bool(reply[0]), reply[1]), route=_where_it_is(batch_id))


def _where_it_is(batch_id: str) -> Route:
    """Return the route to the shard that has a batch, which may be a guest of the first one."""

    def ask(command: Command[Any], shards: int) -> Asking[Any]:
        [[is_guest]] = yield [(FIRST, dividing.guests([("batch", batch_id)]))]
        [answer] = yield [(FIRST if is_guest else shard_of(batch_id, shards), command)]
        return answer

    return ask


def look(
    batch_id: str, offset: int = 0, count: int = 0, until_ms: int | None = None, *, now: float | None = None
) -> Command[Looked | None]:
    """Read a batch, and `count` (0 to 1,000) of its failed members. Answers None if there is none.

    `until_ms`: only members that had failed by then (unix ms).
    """
    first, most = checked_page(offset, count)

    def parse(reply: Any) -> Looked | None:
        if reply is None:
            return None
        members = [one.decode() for one in (reply[1] if most else ())]
        nested = [one[1:] for one in members if one.startswith("\n")]
        failed = [one for one in members if not one.startswith("\n")]
        return Looked(_record(batch_id, reply[0]), failed, nested, reply[2])

    args = now_ms(now), batch_id, first, most, until_ms or ""
    return Command(scripts.BATCH, args, parse, route=to(batch_id, is_none))


def listed(offset: int = 0, count: int = 25, *, now: float | None = None) -> Command[Listed]:
    """Read up to 1,000 batches, those that have not ended first."""
    args = now_ms(now), *checked_page(offset, count)

    def parse(reply: Any) -> Listed:
        return Listed(BatchCounts(*reply[:4]), [_record(one.decode(), fields) for one, fields in reply[4]])

    def join(answers: list[Listed]) -> Listed:
        counts = BatchCounts(*(sum(numbers) for numbers in zip(*(answer.counts for answer in answers), strict=True)))
        return Listed(counts, page_of([answer.rows for answer in answers], offset, count, _rank))

    return Command(scripts.BATCHES, args, parse, route=beginnings(offset, count, partial(listed, now=now), join))


def _rank(row: BatchRecord) -> tuple[bool, float]:
    """Those that have not ended first, then the others, the last ended one first."""
    return row.ended_unix is not None, row.opened_unix if row.ended_unix is None else -row.ended_unix


def _record(batch_id: str, flat: Iterable[bytes]) -> BatchRecord:
    texts = [text.decode(errors="replace") for text in flat]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    total, complete, failed, cancelled_count = (
        int(fields.get(name, 0)) for name in ("total", "complete", "failed", "cancelled")
    )
    paused_by, paused_unix = parse_by(fields["paused"].encode() if "paused" in fields else None)
    return BatchRecord(
        id=batch_id,
        state=fields.get("state") or ("running" if "closed" in fields else "open"),
        description=fields.get("description", ""),
        parent=fields.get("parent"),
        total=total,
        pending=total - complete - failed - cancelled_count,
        complete=complete,
        failed=failed,
        cancelled=cancelled_count,
        opened_unix=int(fields.get("opened", 0)) / 1000,
        closed_unix=int(fields["closed"]) / 1000 if "closed" in fields else None,
        ended_unix=int(fields["ended"]) / 1000 if "ended" in fields else None,
        to_call=sorted(fields.get("calls", "").split()),
        paused="paused" in fields,
        paused_by=paused_by,
        paused_unix=paused_unix,
    )


def checked_id(batch_id: object) -> str:
    """Return the id of a batch, a name as that of a job. Raises TypeError or ValueError."""
    return checked_name("id", batch_id)


def checked_description(description: object) -> str:
    """Return the description of a batch. Raises TypeError or ValueError."""
    text = checked_text("description", description)
    if len(text.encode()) > DESCRIPTION_BYTES:
        raise ValueError(f"description must have at most {DESCRIPTION_BYTES} bytes in UTF-8: {text!r:.100}")
    return text


def unknown(batch_id: str) -> LeaseholdError:
    """Return the error for a batch that Redis does not have."""
    return LeaseholdError(f"there is no batch {batch_id}, or it has ended more than seven days ago")


def cancel(
    batch_id: str, by: str | None, now: Callable[[], float | None], told: Told = ignored, *, is_inner: bool = False
) -> Steps[int]:
    """Cancel all jobs of a batch and of the batches in it that have not ended. Return how many.

    An interrupted call can be repeated. Raises LeaseholdError if there is no such batch, but for an inner one.
    """
    total, before = 0, -1
    while True:
        reply: tuple[int, int, list[str]] | None = yield cancelled(batch_id, by, now=now())
        if reply is None:
            if is_inner or before >= 0:  # it was forgotten meanwhile
                return total
            raise unknown(batch_id)
        n, left, nested = reply
        total += n
        told(total)
        for inner in nested:
            total += yield from cancel(inner, by, now, _after(total, told), is_inner=True)
        if left == 0 or left == before:
            return total
        before = left


def _after(total: int, told: Told) -> Told:
    return lambda number: told(total + number)


def resume(batch_id: str, by: str | None, now: Callable[[], float | None]) -> Steps[bool]:
    """Let a batch go on. Return False if it was not paused. An interrupted call can be repeated."""
    was_paused, rank = yield resumed(batch_id, by=by, now=now())
    while rank > 0:
        _, rank = yield resumed(batch_id, rank, now=now())
    return bool(was_paused)


def retry(
    batch_id: str,
    now: Callable[[], float | None],
    by: str | None = None,
    told: Told = ignored,
    *,
    is_inner: bool = False,
) -> Steps[int]:
    """Put the failed jobs of a batch, and of the batches in it, back into their queues. Return how many.

    `by` names who asks. Raises LeaseholdError if there is no such batch, but for an inner one.
    """
    total, skipped, began_ms = 0, 0, None  # what fails again meanwhile is not put back again
    jobs: set[str] = set()
    inner: set[str] = set()
    while True:
        looked = yield look(batch_id, skipped, MOST, began_ms, now=now())
        if looked is None and not is_inner and began_ms is None:
            raise unknown(batch_id)
        if looked is None or not (looked.failed or looked.nested):
            return total
        began_ms = began_ms or looked.at_ms
        #   What is still there cannot be put back.
        skipped += len(jobs.intersection(looked.failed)) + len(inner.intersection(looked.nested))
        failed = [jid for jid in looked.failed if jid not in jobs]
        total += (yield job_changes.unfail_jobs(failed, by=by, now=now())) if failed else 0
        told(total)
        for nested in looked.nested:
            total += 0 if nested in inner else (yield from retry(nested, now, by, _after(total, told), is_inner=True))
        jobs, inner = {*looked.failed}, {*looked.nested}
