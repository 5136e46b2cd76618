"""Builds the commands that read jobs, and parses their replies. Runs in every process that speaks to Redis.

Must not do I/O, nor change anything.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import orjson

from supervisor.engine.commands.command import (
    Command,
    checked_batch,
    checked_page,
    now_ms,
    parse_fields,
    parse_names,
    parse_numbers,
)
from supervisor.engine.commands.routes import (
    Route,
    beginnings,
    each,
    everywhere,
    is_none,
    is_nothing,
    page_of,
    paged,
    summed,
    to,
)
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.entries import opened, payload_of_kind
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import DEFAULT_RETRIES, JobRecord, Progress, limits_in
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.replay import NEVER_MS
from supervisor.engine.model.validation import checked_int

#: The states by which the jobs of a queue are listed. parked: waiting for room in a limit, or for a paused batch.
STATES: Final = ("waiting", "running", "stalled", "scheduled", "depends", "parked", "complete", "failed")
#: A text that is replaced while it is read is read again, so many times.
_READINGS: Final = 5
#: A larger call of a job of RQ is left as it is stored: a page of them would take too long to inflate.
_MOST_OPENED: Final = 64 * 1024
_SHOWN_HISTORY = 100  # entries of a job's history, including the first
#: The most data that one call reads. The server copies it three times and does nothing else meanwhile.
PIECE_BYTES: Final = 8 * 2**20
#: Values left out of a job if too large: attribute of JobRecord → column, and kind for data.lua.
LARGE: Final = {
    "raw": (5, "data"), "failure": (6, "failure"), "result": (7, "result"), "history": (9, "history"),
    "dependencies": (10, "dependencies"), "dependents": (11, "dependents"), "saved": (14, "saved"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A job that was cancelled, or deleted with its queue. `by` names who asked, None if unknown.

    Redis keeps the newest 10,000 for up to seven days.
    """

    jid: str
    when_unix: float
    by: str | None


J = TypeVar("J", covariant=True)


@dataclass(frozen=True)
class Tracked(Generic[J]):
    """The tracked jobs, and the jids of those that are gone; the last tracked first."""

    jobs: Sequence[J]
    expired: list[str]


def cancelled(jid: str) -> Command[Cancelled | None]:
    """Read when a job was cancelled, and by whom; None if that is unknown or forgotten."""
    args, route = (checked_name("jid", jid),), to(jid, is_none)
    return Command(scripts.CANCELLED, args, lambda reply: _parse_cancelled(jid, reply), route=route)


def jobs(jids: Sequence[str], *, now: float | None = None) -> Command[list[JobRecord | None]]:
    """Read up to 1,000 jobs; None for each that does not exist."""
    checked_batch("jids", jids)
    args = now_ms(now), *(checked_name("jid", jid) for jid in jids)
    return Command(scripts.JOB, args, _parse_jobs, route=each(jids, partial(jobs, now=now), is_none))


def row(jid: str, *, now: float | None = None) -> Command[list[Any] | None]:
    """Read the row of a job for `parse_row`; None if there is none."""
    args, route = (now_ms(now), checked_name("jid", jid)), to(jid, is_none)
    return Command(scripts.JOB, args, lambda reply: reply[0] or None, route=route)


def piece(kind: str, jid: str, offset: int) -> Command[tuple[int, bytes]]:
    """Read up to 8 MiB of a text from `offset` on, and the text's size; -1 and nothing if there is none.

    `kind` is "data", "failure", "result" or "saved" of a job, or "recurdata" of a recurrence.
    """
    args = kind, checked_name("jid", jid), checked_int("offset", offset, 0), PIECE_BYTES
    route = to(jid, lambda answer: answer[0] < 0)
    return Command(scripts.DATA, args, lambda reply: (reply[0], reply[1]), route=route)


def elements(kind: str, jid: str) -> Command[list[bytes]]:
    """Read the history of a job, or its first 1,000 dependencies or dependents."""
    args = kind, checked_name("jid", jid), 0, MOST
    return Command(scripts.DATA, args, lambda reply: reply[1] or [], route=to(jid, is_nothing))


def failed_groups(*, now: float | None = None) -> Command[dict[str, int]]:
    """Count the failed jobs of each group."""
    return Command(scripts.FAILED, (now_ms(now), "", 0, 0), parse_numbers, route=everywhere(summed))


def failed_jobs(
    group: str, start: int = 0, limit: int = 25, *, now: float | None = None
) -> Command[tuple[int, list[JobRecord]]]:
    """Read the size of a group, and up to `limit` (0 to 1,000) of its failed jobs, newest first, from `start` on."""
    page = checked_int("start", start, 0), checked_int("limit", limit, 0, MOST)
    args = now_ms(now), checked_name("group", group, GROUP_BYTES), *page
    route = _paged(start, limit, lambda first, most: failed_jobs(group, first, most, now=now), _ended_unix, True)
    return Command(scripts.FAILED, args, _parse_page, route=route)


def listed(
    state: str, queue: str | None = None, offset: int = 0, count: int = 25, *, now: float | None = None
) -> Command[list[JobRecord]]:
    """Read up to `count` (0 to 1,000) jobs of a queue in a state.

    Complete and failed jobs come newest first, out of the 10,000 that ended last, and may be read for all queues
    (None). Jobs in other states come in the order in which they will be leased, expire, become due, or were put or
    parked.
    """
    if state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, recurring: {state!r:.100}")
    if queue is None and state not in ("complete", "failed"):
        raise ValueError(f"state must be complete or failed without a queue: {state!r}")
    name = "" if queue is None else checked_name("queue", queue)
    args = now_ms(now), state, name, *checked_page(offset, count)
    build = partial(_listed, state, queue, now)
    route = paged(offset, count, build, _ORDERS.get(state, _turn), state in ("complete", "failed"))
    return Command(scripts.LIST, args, _parse_list, route=route)


def _listed(state: str, queue: str | None, now: float | None, offset: int, count: int) -> Command[Sequence[JobRecord]]:
    return listed(state, queue, offset, count, now=now)


def _turn(record: JobRecord) -> Any:
    """In the order in which a queue without lanes leases its jobs."""
    return record.priority, record.put_unix


def _ended_unix(record: JobRecord) -> Any:
    return record.history[-1]["when"] if record.history else record.put_unix


#: By state: what the lists of several shards are sorted by.
_ORDERS: Final[dict[str, Callable[[JobRecord], Any]]] = {
    "running": lambda record: record.expires_unix or 0.0,
    "stalled": lambda record: record.expires_unix or 0.0,
    "scheduled": lambda record: math.inf if record.due_unix is None else record.due_unix,
    "depends": lambda record: record.put_unix,
    "parked": lambda record: record.put_unix,
    "complete": _ended_unix,
    "failed": _ended_unix,
}


def _paged(
    offset: int,
    count: int,
    build: Callable[[int, int], Command[tuple[int, list[JobRecord]]]],
    key: Callable[[JobRecord], Any],
    newest_first: bool = False,
) -> Route:
    """Return the route of a query that answers a number, too."""

    def join(answers: list[tuple[int, list[JobRecord]]]) -> tuple[int, list[JobRecord]]:
        lists = [records for _, records in answers]
        return sum(total for total, _ in answers), page_of(lists, offset, count, key, newest_first)

    return beginnings(offset, count, build, join)


def peek(queue: str, count: int = 1, *, now: float | None = None) -> Command[list[JobRecord]]:
    """Read up to `count` (to 1,000) jobs in the order in which the next leases would take them. They stay in place."""
    args = now_ms(now), checked_name("queue", queue), checked_int("n", count, 0, MOST)
    route = paged(0, count, lambda _, most: peek(queue, most, now=now), _turn)
    return Command(scripts.PEEK, args, _parse_list, route=route)


def tagged(
    tag: str, offset: int = 0, count: int = 25, *, now: float | None = None
) -> Command[tuple[int, list[JobRecord]]]:
    """Read how many jobs have a tag, and up to `count` (0 to 1,000) of them, oldest tagged first."""
    args = now_ms(now), checked_name("tag", tag), *checked_page(offset, count)
    route = _paged(offset, count, lambda first, most: tagged(tag, first, most, now=now), lambda record: record.put_unix)
    return Command(scripts.TAGGED, args, _parse_page, route=route)


def tags(offset: int = 0, count: int = 25) -> Command[dict[str, int]]:
    """Read up to `count` (0 to 1,000) tags with their numbers of jobs, most used first."""

    def all_tags(_offset: int, _count: int) -> Command[dict[str, int]]:
        return tags(0, MOST)  # a tag that is rare in one shard may be frequent in all

    def join(answers: list[dict[str, int]]) -> dict[str, int]:
        rows = sorted(summed(answers).items(), key=lambda row: -row[1])
        return dict(rows[offset : offset + count])

    route = beginnings(offset, count, all_tags, join)
    return Command(scripts.TAGS, checked_page(offset, count), parse_numbers, route=route)


def tracked(offset: int = 0, count: int = MOST, *, now: float | None = None) -> Command[Tracked[JobRecord]]:
    """Read up to `count` (0 to 1,000) of the tracked jobs, the last tracked first."""

    def join(answers: list[Tracked[JobRecord]]) -> Tracked[JobRecord]:
        found = page_of([answer.jobs for answer in answers], 0, count, lambda record: -record.put_unix)
        return Tracked(found, [jid for answer in answers for jid in answer.expired][:count])

    return Command(scripts.TRACKED, (now_ms(now), *checked_page(offset, count)), _parse_tracked, route=everywhere(join))


def parse_row(row: list[Any]) -> JobRecord:
    """Parse the row of a job. An integer in a column of LARGE stands for a value that was left out: it is the size."""
    jid, state, expires_ms, due_ms, finished_ms, data, failure, result, tags, entries, parents, children = row[:12]
    progress, start_by_ms, saved = row[12:15]
    fields = parse_fields(row[15:])
    left_out = {name: row[column] for name, (column, _) in LARGE.items() if isinstance(row[column], int)}
    data, failure, result, saved = (None if isinstance(text, int) else text for text in (data, failure, result, saved))
    entries, parents, children = ([] if isinstance(lines, int) else lines for lines in (entries, parents, children))
    payload = opened(payload_of_kind(fields.get("bytes"), data or b""), _MOST_OPENED)
    token, _, worker = fields.get("owner", "").partition(":")
    held = fields.get("state") == "running"
    return JobRecord(
        jid=jid.decode(),
        state=state.decode(),
        queue=fields["queue"],
        klass=fields["klass"],
        raw=payload.raw,
        is_bytes=payload.is_bytes,
        is_call=payload.is_call,
        priority=int(fields.get("priority", 0)),
        retries=int(fields.get("retries", DEFAULT_RETRIES)),
        timeout_s=int(fields["timeout"]) / 1000 if "timeout" in fields else None,
        max_deaths=int(fields["max_deaths"]) if "max_deaths" in fields else None,
        failures=int(fields.get("failures", 0)),
        deaths=int(fields.get("deaths", 0)),
        interruptions=int(fields.get("interruptions", 0)),
        put_unix=int(fields["put"]) / 1000,
        due_unix=_unix(due_ms) if due_ms < NEVER_MS else None,
        expires_unix=_unix(expires_ms),
        worker=worker if held else None,
        token=int(token) if held and token.isdecimal() else None,
        started=held and "started" in fields,
        failure=_object(failure) if failure else None,
        result=_decoded(result) if result else None,
        tags=tags.decode().split("\n") if tags else [],
        tracked="tracked" in fields,
        dependencies=[parent.decode() for parent in parents],
        dependents=[child.decode() for child in children],
        on_parent_failure=fields.get("policy", "wait"),
        history=_history(fields, entries, finished_ms),
        spawned_from=fields.get("spawned"),
        lane=fields.get("lane"),
        limit=limits_in(fields.get("limit")),
        parked=fields.get("parked", "0") not in ("0", "klass"),
        unique=_claim(fields.get("unique")),
        start_by_unix=_unix(start_by_ms),
        persistent="persistent" in fields,
        at_most_once=fields.get("once") == "1",
        progress=_progress(progress) if progress else None,
        saved=_decoded(saved) if saved else None,
        waiting_for=fields.get("waits_for") if state == b"scheduled" else None,
        signal_count=int(fields.get("signals", 0)),
        trace=fields.get("trace"),
        batch=fields.get("batch"),
        unknown_unix=_unix(fields.get("unknown")) if state in {b"scheduled", b"waiting"} else None,
        has_own_retries="retries" in fields,
        left_to_others=fields.get("parked") == "klass",
        left_out=left_out,
        kind=fields.get("bytes"),
    )


def read_whole(jid: str, now: Callable[[], float | None]) -> Steps[JobRecord | None]:
    """Read a job completely. Attributes that are too large for one reply come in pieces."""
    found = yield row(jid, now=now())
    if found is None:
        return None
    record = yield from whole(jid, found, LARGE)
    is_gone = not record.raw and (yield row(jid, now=now())) is None
    return None if is_gone else record


def whole(jid: str, row: list[Any], names: Iterable[str]) -> Steps[JobRecord]:
    """Return the job of a row, after reading the attributes `names` that were left out.

    They are empty if the job has gone.
    """
    for name in names:
        column, kind = LARGE[name]
        if isinstance(row[column], int):
            is_text = kind not in ("history", "dependencies", "dependents")
            row[column] = (yield from text_of(kind, jid)) if is_text else (yield elements(kind, jid))
    return parse_row(row)


def text_of(kind: str, jid: str) -> Steps[bytes | None]:
    """Return all pieces of a text, or None if there is none.

    Reading begins again if the text's size changes meanwhile.
    """
    for _ in range(_READINGS):
        size, stored = yield piece(kind, jid, 0)
        pieces, read, is_same = [stored], len(stored), True
        while is_same and read < size:
            new_size, more = yield piece(kind, jid, read)
            pieces.append(more)
            read, is_same = read + len(more), new_size == size
        if size < 0:
            return None
        if is_same:
            return b"".join(pieces)
    raise LeaseholdError(f"the {kind} of job {jid} was replaced again and again while it was read: ask again")


def _parse_cancelled(jid: str, reply: list[Any] | None) -> Cancelled | None:
    return Cancelled(jid, reply[0] / 1000, reply[1].decode() if reply[1] else None) if reply else None


def _claim(key: str | None) -> str | bool | None:
    """Parse a claim. Only claims by content begin with a control character."""
    return True if key and key[0] == "\1" else key


def _progress(stored: bytes) -> Progress | None:
    match _decoded(stored):
        case [int() | float() as fraction, str() as text, int() | float() as when_unix]:
            return Progress(fraction, text, when_unix)
    return None  # another program has written something else


def _decoded(text: bytes) -> Any:
    """Decode JSON. Return invalid JSON as text: one damaged value must not hide the others of a list."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode("utf-8", "replace")


def _object(text: bytes) -> dict[str, Any]:
    found = _decoded(text)
    return found if isinstance(found, dict) else {"message": found}


def _history(fields: dict[str, str], entries: list[bytes], finished_ms: int) -> list[dict[str, Any]]:
    """Merge the history. The record holds the first entry and the last ones, the list those between."""
    born_ms, _, queue = fields.get("born", f"{fields['put']}:{fields['queue']}").partition(":")
    history: list[dict[str, Any]] = [{"what": "put", "when": int(born_ms) / 1000, "queue": queue}]
    history += ({"what": "?", "when": 0.0, **_object(entry)} for entry in entries)
    told = fields.get("told")
    if "popped" in fields and fields.get("state") in ("running", "complete") and not told:
        worker = fields.get("owner", "").partition(":")[2]
        history.append({"what": "popped", "when": int(fields["popped"]) / 1000, "worker": worker})
    if finished_ms and fields.get("state") == "complete" and told != "completed":
        history.append({"what": "completed", "when": finished_ms / 1000})
    return history[:1] + history[1:][1 - _SHOWN_HISTORY :]


def _parse_jobs(reply: list[Any]) -> list[JobRecord | None]:
    return [parse_row(row) if row else None for row in reply]


def _parse_list(reply: list[Any]) -> list[JobRecord]:
    return [parse_row(row) for row in reply]


def _parse_page(reply: list[Any]) -> tuple[int, list[JobRecord]]:
    return reply[0], _parse_list(reply[1:])


def _parse_tracked(reply: list[Any]) -> Tracked[JobRecord]:
    return Tracked(_parse_list(reply[0]), parse_names(reply[1]))


def _unix(ms: int | str | None) -> float | None:
    return int(ms) / 1000 if ms else None
