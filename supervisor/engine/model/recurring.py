"""Defines recurring jobs, and checks their options. Runs in every process that speaks to Redis. Must not do I/O."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypedDict

import orjson

from supervisor.engine.model.cron_times import (
    BACKLOG_MOST,
    SKIP,
    CronMissing,
    checked_cron,
    checked_tz,
    time_after,
    times_after,
)
from supervisor.engine.model.jobs import DEFAULT_RETRIES, limits_in
from supervisor.engine.model.keys import NAME_BYTES, checked_name
from supervisor.engine.model.new_jobs import checked_options, claim_on, new_jid, ties_of
from supervisor.engine.model.shards import key_of, tied_jid
from supervisor.engine.model.validation import UNSET, Duration, checked_int, duration_ms, to_data, to_new_data

MISSED: Final = ("all", "once", "skip")
_JID_BYTES = NAME_BYTES - 16  # room for the number that each job appends


class RecurOptions(TypedDict, total=False):
    """The options of recur. Those without a comment are as put's, for the recurring job's jobs."""

    every: Duration  # time between two jobs; either every or cron is given
    cron: str  # minute hour day month weekday
    tz: str  # time zone of cron, like Europe/Berlin; default: UTC
    jid: str  # the recurring job's own; its jobs are <jid>-<n>; default: 22 characters
    offset: Duration  # goes with every: the first job comes after this; default 0
    missed: Literal["all", "once", "skip"]  # which of the times that passed without a worker get a job; default all
    backlog: int  # at most so many missed times get a job, beside the last one; default: all
    priority: int
    retries: int
    timeout: Duration
    max_deaths: int
    tags: Sequence[str]
    lane: str | None
    limit: str | Sequence[str] | None
    unique: bool | str | None
    expires: Duration | None
    at_most_once: bool | None
    trace: str | None  # trace of all its jobs; default: none, whatever span is current


class RecurChanges(RecurOptions, total=False):
    """The options of update: recur's without the jid, and queue, klass and data."""

    queue: str
    klass: str
    data: Any


@dataclass(frozen=True, slots=True)
class Recurring:
    """A recurring job as it was at one instant. It holds values only."""

    jid: str
    queue: str
    klass: str
    raw: bytes
    is_bytes: bool
    every_s: float | None  # None if cron is given
    cron: str | None
    tz: str | None  # None = UTC
    next_unix: float
    count: int  # the number of its last job. Numbers start anew after unrecur, and skip jids in use
    missed: str  # all, once or skip
    backlog: int | None  # most jobs for missed times beside the last one; None = no limit, or skip
    priority: int
    retries: int  # of its jobs; the default if none is set
    timeout_s: float | None
    max_deaths: int | None
    tags: list[str]
    lane: str | None = None
    limit: str | tuple[str, ...] | None = None
    unique: str | bool | None = None  # the key that its jobs claim; True: by content
    expires_s: float | None = None  # each job must start within so many seconds of its put
    at_most_once: bool = False
    trace: str | None = None
    #: Data that was too large for the reply is empty: "raw" → its size in bytes.
    left_out: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        rhythm = f"cron={self.cron!r}" if self.every_s is None else f"every={self.every_s:g}s"
        return f"<{type(self).__name__} {self.jid} {self.klass} {rhythm} queue={self.queue}>"

    @property
    def data(self) -> Any:
        """Return the decoded JSON, or the bytes. Raises ValueError for invalid JSON."""
        return self.raw if self.is_bytes else orjson.loads(self.raw)


def next_times(job: Recurring, count: int) -> list[float]:
    """Return the next times of a recurring job in unix seconds, at most `count`.

    Where its cron cannot be computed, that is only the first one.
    """
    if job.every_s is not None:
        return [job.next_unix + n * job.every_s for n in range(count)]
    try:
        return [job.next_unix, *times_after(job.cron or "", job.tz, job.next_unix, count - 1)]
    except CronMissing:
        return [job.next_unix]


def parse_recurring(row: Sequence[Any]) -> Recurring:
    """Read a row: jid, next time in ms, data, tags joined by "\\n" | nil, then the record's fields and values."""
    jid, next_ms, data, tags = row[:4]
    fields = {row[i].decode(): row[i + 1].decode() for i in range(4, len(row), 2)}
    backlog = int(fields["backlog"]) if "backlog" in fields else None
    return Recurring(
        jid=jid.decode(),
        queue=fields["queue"],
        klass=fields["klass"],
        raw=b"" if isinstance(data, int) else data or b"",
        left_out={"raw": data} if isinstance(data, int) else {},
        is_bytes="bytes" in fields,
        every_s=int(fields["every"]) / 1000 if "every" in fields else None,
        cron=fields.get("cron"),
        tz=fields.get("tz"),
        next_unix=next_ms / 1000,
        count=int(fields.get("count", 0)),
        missed="all" if backlog is None or backlog > 0 else "once" if backlog == 0 else "skip",
        backlog=None if backlog == SKIP else backlog,
        priority=int(fields.get("priority", 0)),
        retries=int(fields.get("retries", DEFAULT_RETRIES)),
        timeout_s=int(fields["timeout"]) / 1000 if "timeout" in fields else None,
        max_deaths=int(fields["max_deaths"]) if "max_deaths" in fields else None,
        tags=tags.decode().split("\n") if tags else [],
        lane=fields.get("lane"),
        limit=limits_in(fields.get("limit")),
        unique=_unique(fields.get("unique")),
        expires_s=int(fields["expires"]) / 1000 if "expires" in fields else None,
        at_most_once=fields.get("once") == "1",
        trace=fields.get("trace"),
    )


def _unique(stored: str | None) -> str | bool | None:
    """Read a stored claim. A colon precedes a key; any other claim is by content."""
    if stored is None:
        return None
    return stored[1:] if stored.startswith(":") else True


# The arguments of recur and update, checked before anything is written.


@dataclass(frozen=True, slots=True)
class NewRecurrence:
    """The checked arguments of recur or update.

    An empty text stands for an argument that was not given; as a field's value it removes the field. `delay_ms` is the
    time from now to the first job of an interval, `first_ms` the first time of a cron. `fields` are those of the
    record, and tags joined by "\\n".
    """

    jid: str
    queue: str
    klass: str
    kind: str  # of the data: json, bytes, or "" if not given
    raw: bytes
    delay_ms: int | str
    first_ms: int | str
    fields: Mapping[str, str | int]
    is_own_jid: bool = True  # the jid was given

    def tied(self) -> "NewRecurrence":
        """Return it with a jid that lies in one shard with all that its jobs are tied to, in whatever number of shards.

        Raises ValueError if there is none.
        """
        jid = tied_jid(self.jid, self.is_own_jid, ties_of(self.fields, self.queue), _JID_BYTES)
        if ("{" in jid or "}" in jid) and f"{{{key_of(jid)}}}" not in jid:
            raise ValueError(f"jid must have braces around a part of it only, or none, in several shards: {jid!r}")
        return replace(self, jid=jid)

    @property
    def arguments(self) -> tuple[str | bytes | int, ...]:
        """Return what recur.lua takes, in the order that put.lua has for a job."""
        pairs = (part for pair in self.fields.items() for part in pair)
        head = (self.queue, self.jid, self.klass, self.kind, self.raw, self.delay_ms, self.first_ms)
        return (*head, len(self.fields), *pairs)


def new_recurrence(queue: str, klass: str, data: object, options: Mapping[str, Any], now_unix: float) -> NewRecurrence:
    """Check the arguments of recur. Raises TypeError or ValueError naming the argument, CronMissing without cronsim."""
    _checked_known("recur", options, RecurOptions.__annotations__)
    if ("every" in options) == ("cron" in options):
        raise ValueError("every and cron: give one of them")
    kind, raw = to_data("data", data)
    delay, first, rhythm = _checked_rhythm(options, None, now_unix)
    return NewRecurrence(
        jid=checked_name("jid", options["jid"], _JID_BYTES) if "jid" in options else new_jid(),
        is_own_jid="jid" in options,
        queue=checked_name("queue", queue),
        klass=checked_name("klass", klass),
        kind=kind,
        raw=raw,
        delay_ms=delay if first else delay or 0,
        first_ms=first,
        fields=claim_on({**rhythm, **_checked_fields(options)}, klass, kind, raw),
    )


@dataclass(frozen=True, slots=True)
class Declared:
    """A recurring job that code declares for a klass, whose name is its jid. `digest`: of all but its next time."""

    recurrence: NewRecurrence
    digest: str


def declared(klass: str, declaration: Mapping[str, Any], now_unix: float) -> Declared:
    """Check what code declares for a klass: queue, rhythm and options. Raises as new_recurrence does."""
    options = {**declaration, "jid": klass}
    queue = options.pop("queue", "default")
    new = new_recurrence(queue, klass, None, options, now_unix)
    said = orjson.dumps((new.queue, sorted(new.fields.items())))
    return Declared(new, hashlib.sha1(said, usedforsecurity=False).hexdigest())


def changes_of(known: Recurring, changes: Mapping[str, Any], now_unix: float) -> NewRecurrence:
    """Check the arguments of update. What is not given stays as it is. Raises as new_recurrence does."""
    _checked_known("update", changes, {n: t for n, t in RecurChanges.__annotations__.items() if n != "jid"})
    if not changes:
        raise ValueError("changes must be given: nothing is to be changed")
    if "every" in changes and "cron" in changes:
        raise ValueError("every and cron: give one of them")
    kind, raw = to_new_data("data", changes.get("data", UNSET))
    delay, first, rhythm = _checked_rhythm(changes, known, now_unix)
    return NewRecurrence(
        jid=known.jid,
        queue=checked_name("queue", changes["queue"]) if "queue" in changes else "",
        klass=checked_name("klass", changes["klass"]) if "klass" in changes else "",
        kind=kind,
        raw=raw,
        delay_ms=delay,
        first_ms=first,
        fields=_claimed({**rhythm, **_checked_fields(changes)}, known, changes, kind, raw),
    )


def _claimed(
    fields: dict[str, str | int], known: Recurring, changes: Mapping[str, Any], kind: str, raw: bytes
) -> dict[str, str | int]:
    """Add the new digest if the claim is by content and the content changes."""
    if "unique" not in changes and known.unique is True:
        fields["unique"] = "1"
    klass = changes.get("klass", known.klass)
    return (
        claim_on(fields, klass, kind, raw)
        if kind
        else claim_on(fields, klass, "bytes" if known.is_bytes else "json", known.raw)
    )


def _checked_known(verb: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for option in options:
        if option not in known:
            raise TypeError(f"{verb} has no option {option!r}; it has {', '.join(sorted(known))}")


def _checked_rhythm(
    options: Mapping[str, Any], known: Recurring | None, now_unix: float
) -> tuple[int | str, int | str, dict[str, str | int]]:
    """Return the delay until the first time, that time itself, and the fields.

    An interval that changes without an offset returns neither: recur.lua then moves the next time by the difference,
    because only the script knows for certain which time is next.
    """
    by_cron = "cron" in options or ("every" not in options and known is not None and known.cron is not None)
    if by_cron and "offset" in options:
        raise ValueError("offset goes with every, not with cron")
    if not by_cron and "tz" in options:
        raise ValueError("tz goes with cron, not with every")
    delay: int | str = duration_ms("offset", options["offset"], least=0) if "offset" in options else ""
    if "every" in options:
        return delay, "", {"every": duration_ms("every", options["every"], least=0.001), "cron": "", "tz": ""}
    if not by_cron or not {"cron", "tz"} & set(options):
        return delay, "", {}
    cron = checked_cron(options["cron"] if "cron" in options or known is None else known.cron)
    tz = checked_tz(options["tz"]) if "tz" in options else known.tz if known else None
    first_unix = time_after(cron, tz, now_unix)
    if first_unix is None:
        raise ValueError(f"cron must have a time to come: {cron!r}")
    return "", round(first_unix * 1000), {"every": "", "cron": cron, "tz": tz or ""}


def _checked_fields(options: Mapping[str, Any]) -> dict[str, str | int]:
    fields = checked_options(options)
    if fields.get("priority") == 0:
        fields["priority"] = ""  # records do not store the default
    if "missed" in options or "backlog" in options:
        fields["backlog"] = _checked_backlog(options)
    return fields


def _checked_backlog(options: Mapping[str, Any]) -> int | str:
    missed = options.get("missed", "all")
    if missed not in MISSED:
        raise ValueError(f"missed must be all, once or skip: {missed!r:.100}")
    if options.get("backlog") is None:
        return "" if missed == "all" else 0 if missed == "once" else SKIP
    if missed != "all":
        raise ValueError(f"backlog goes with missed all, not with {missed}")
    return checked_int("backlog", options["backlog"], 0, BACKLOG_MOST)


# The times of a cron expression.
