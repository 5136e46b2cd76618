"""Builds the commands that put the jobs of a qless or reqless here. Runs in commands.

Must not do I/O. Both programs have the same keys; throttles are reqless's. What is no valid job here raises ValueError
or TypeError with the reason, so that it can be left where it is.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from supervisor.engine.commands import job_changes
from supervisor.engine.commands.command import Command
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.new_jobs import NewJob, new_job
from supervisor.engine.model.outcomes import failure_json
from supervisor.engine.model.recurring import Recurring, new_recurrence
from supervisor.engine.model.validation import moment_ms

#: The places of a queue's jobs, in the order in which qless would give them out, and whether the first is at the end.
PLACES: Final[Mapping[str, bool]] = {"locks": False, "work": True, "throttled": False, "scheduled": False}
#: A failed job is put with this time before it fails, so that no worker starts it in between: 2100-01-01.
PARKED_UNIX: Final = 4_102_444_800.0
#: The message of the lines in a job's history that hold its history from there.
MOVED: Final = "history in qless"
#: Bytes of entries in one such line.
_LINE_BYTES: Final = 3500
#: A history here keeps its first and its last 99 entries, and a move that goes on counts the lines among them.
_MOST_LINES: Final = 90
MOST_ENTRIES: Final = 200
HISTORY_BYTES: Final = _MOST_LINES * _LINE_BYTES
_FIELDS: Final = ("klass", "state", "queue", "priority", "tags", "retries", "worker", "throttles")
OF_JOB: Final = (*_FIELDS, "time", "remaining", "failure", "scheduled", "history", "data")
OF_RECURRENCE: Final = (*_FIELDS, "interval", "backlog", "data")

Fields = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job of qless. `new` is put for it, and then `logs` add its history. `fail`: if it has failed.

    `mark` is the trace of `new`. A job here has it only if it was put for this one, as it is now.
    """

    jid: str
    klass: str
    queue: str
    new: NewJob
    mark: str
    tags: Sequence[str]
    worker: str
    throttles: Sequence[str]
    depends: Sequence[str]
    fail: Command[bool] | None
    logs: Sequence[Command[bool]]


@dataclass(frozen=True, slots=True)
class OldRecurrence:
    """A recurring job of qless. `recur` creates it here.

    `content`: what the one here has if it was made for this one, as `content_of` returns it.
    """

    jid: str
    klass: str
    queue: str
    throttles: Sequence[str]
    content: Recurring
    recur: Command[str]


def read_job(
    jid: bytes, queue: str, fields: Fields, due_unix: float | None, depends: Iterable[bytes], history: Iterable[bytes]
) -> OldJob:
    """Read a job that lies in a place of `queue`. `due_unix`: when it is due, if it is scheduled."""
    state = text("state", fields["state"])
    if state == "complete":
        raise ValueError("it lies where jobs wait, and its record says that it is complete")
    klass, raw, options = _common(jid, queue, fields)
    name = options["jid"]
    group, fail = _failing(name, fields["failure"]) if state == "failed" else (None, None)
    if fail is not None:
        due_unix = PARKED_UNIX
    else:
        options["retries"] = max(_whole("remaining", fields["remaining"]), 0)
    parents = sorted(text("dependency", parent) for parent in depends) if state == "depends" else []
    if parents:
        options |= {"depends": parents, "on_parent_failure": "wait"}
        due_unix = _number("scheduled", fields["scheduled"] or b"0")
    if due_unix:
        options["at"] = due_unix
    lines = _lines([*_entries(history, fields["history"])][-MOST_ENTRIES:])[-_MOST_LINES:]
    options["trace"] = _mark(raw, queue, klass, options, group, fields["time"], lines)
    return OldJob(
        jid=name,
        klass=klass,
        queue=queue,
        new=new_job("add", queue, klass, orjson.Fragment(raw), options),
        mark=options["trace"],
        tags=options["tags"],
        worker=text("worker", fields["worker"] or b""),
        throttles=_names("throttles", fields["throttles"]),
        depends=parents,
        fail=fail,
        logs=[job_changes.log(name, MOVED, line) for line in lines],
    )


def _mark(raw: bytes, *parts: object) -> str:
    """Return a W3C traceparent that stands for a job with all that it has, so that one write puts and marks it.

    The time of its put is among it, for a history has whole seconds.

    Its flag says that the spans of the job are recorded, as those of a job without a cause are.
    """
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(raw)
    ids = digest.hexdigest()
    return f"00-{ids[:32]}-{ids[32:48]}-01"


def read_recurrence(jid: bytes, queue: str, fields: Fields, next_unix: float, now_unix: float) -> OldRecurrence:
    """Read a recurring job whose next time is `next_unix`, also if that has passed."""
    klass, raw, options = _common(jid, queue, fields)
    options["every"] = _number("interval", fields["interval"])
    if backlog := _whole("backlog", fields["backlog"] or b"0"):
        options["backlog"] = backlog
    new = new_recurrence(queue, klass, orjson.Fragment(raw), options, now_unix)
    first = replace(new, delay_ms="", first_ms=moment_ms("next time", next_unix))
    recur = Command(scripts.RECUR, ("", "recur", "", *first.arguments), lambda _reply: new.jid)
    return OldRecurrence(
        jid=new.jid,
        klass=klass,
        queue=queue,
        throttles=_names("throttles", fields["throttles"]),
        content=Recurring(
            jid=new.jid, queue=queue, klass=klass, raw=raw, is_bytes=False, every_s=int(new.fields["every"]) / 1000,
            cron=None, tz=None, next_unix=0.0, count=0, missed="all", backlog=backlog or None,
            priority=options["priority"], retries=options["retries"], timeout_s=None, max_deaths=None,
            tags=sorted({*options["tags"]}), limit=_sorted_limits(options.get("limit")),
        ),
        recur=recur,
    )  # fmt: skip


def content_of(found: Recurring) -> Recurring:
    """Return all of a recurring job here but its number and next time, to compare with `OldRecurrence.content`."""
    values: dict[str, Any] = {each.name: getattr(found, each.name) for each in dataclasses.fields(Recurring)}
    values |= {"next_unix": 0.0, "count": 0, "tags": sorted(found.tags), "limit": _sorted_limits(found.limit)}
    return Recurring(**values)


def _sorted_limits(limit: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(sorted({limit} if isinstance(limit, str) else {*(limit or ())}))


def _common(jid: bytes, queue: str, fields: Fields) -> tuple[str, bytes, dict[str, Any]]:
    """Return klass, data and options of a job or a recurring job."""
    raw = fields["data"] or b""
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"its data is not JSON: {error}") from None
    options = {
        "jid": text("jid", jid),
        "priority": -_whole("priority", fields["priority"] or b"0"),  # there a higher number runs sooner
        "retries": _whole("retries", fields["retries"]),
        "tags": _names("tags", fields["tags"]),
    }
    if limits := shared(_names("throttles", fields["throttles"])):
        options["limit"] = limits
    return text("klass", fields["klass"]), raw, options


def shared(throttles: Iterable[str]) -> list[str]:
    """Return the throttles that are no queue's own. A job has that of its queue, and may have those of earlier ones."""
    return [name for name in throttles if not name.startswith("ql:q:")]


def _failing(jid: str, stored: bytes | None) -> tuple[str, Command[bool]]:
    """Return the group, and the command that fails the job as it has failed there."""
    found = _decoded("failure", stored)
    if not isinstance(found, dict) or not isinstance(found.get("group"), str):
        raise ValueError(f"its failure has no group: {stored!r:.100}")
    group = checked_name("group", found["group"], GROUP_BYTES)
    when, worker, message = found.get("when"), found.get("worker"), found.get("message", "")
    if not isinstance(message, str):
        raise ValueError(f"the message of its failure is no text: {stored!r:.100}")
    failure = failure_json(
        group,
        message,
        worker if isinstance(worker, str) and worker else None,
        when if isinstance(when, int | float) else 0.0,
        {},
    )
    return group, Command(scripts.FAIL, ("", jid, group, failure, ""), bool)


def text(name: str, value: bytes | None) -> str:
    """Return the text of a field or a name. Raises ValueError."""
    if value is None:
        raise ValueError(f"its record has no {name}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"its {name} is not UTF-8: {value!r:.100}") from None


def _number(name: str, value: bytes | None) -> float:
    said = text(name, value)
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"its {name} is no number: {said!r:.100}")
    return number


def _whole(name: str, value: bytes | None) -> int:
    number = _number(name, value)
    if not number.is_integer():
        raise ValueError(f"its {name} is not a whole number: {number}")
    return int(number)


def _decoded(name: str, value: bytes | None) -> Any:
    try:
        return orjson.loads(value or b"[]")
    except orjson.JSONDecodeError:
        raise ValueError(f"its {name} is not JSON: {value!r:.100}") from None


def _names(name: str, value: bytes | None) -> list[str]:
    """Read a list of names. An empty one of Lua's is an object."""
    found = _decoded(name, value) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"its {name} are no list of names: {value!r:.100}")
    return found


def _entries(history: Iterable[bytes], in_record: bytes | None) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a history: those that versions before 0.10 kept in the record, and the list."""
    old = _decoded("history", in_record)
    yield from (entry for entry in old if isinstance(entry, dict))
    for stored in history:
        found = _decoded("history", stored)
        if isinstance(found, list) and len(found) > 1:
            more = found[2] if len(found) > 2 and isinstance(found[2], dict) else {}
            yield {**more, "what": found[1], "when": found[0]}


def _lines(entries: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the entries by lines of bounded size. A large one keeps its time and its kind."""
    lines: list[list[Mapping[str, Any]]] = []
    free = 0
    for entry in entries:
        size = len(orjson.dumps(entry))
        if size > _LINE_BYTES:
            when = entry.get("when")
            entry = {"what": str(entry.get("what"))[:100], "when": when if isinstance(when, int | float) else None}
            entry["left_out_bytes"] = size
            size = len(orjson.dumps(entry))
        if size > free or not lines:
            lines.append([])
            free = _LINE_BYTES
        lines[-1].append(entry)
        free -= size
    return lines
