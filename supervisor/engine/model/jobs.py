"""Runs in every process that speaks to Redis. Owns: what a job may be given, and what a job and a lease are.
Must not: do I/O; what acts through a client is in handles.py.
"""

import binascii
import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypedDict

import orjson

from supervisor.engine.model.entries import payload_of
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.trace_context import checked_trace, current_trace
from supervisor.engine.model.validation import (
    EXACT_INT,
    UNSET,
    Duration,
    checked_flag,
    checked_int,
    checked_lines,
    duration_ms,
    in_seconds,
    in_unix_seconds,
    moment_ms,
    to_data,
)

DEFAULT_RETRIES = 5
MOST_TAGS = 100
MOST_PARENTS = 1000
#: Tags, and twice the parents, of all that one completion puts.
MOST_LINES = 3_000
#: So many tags, or half as many parents, take the server as long as one job without; lua/include/entries.lua says the
#: same.
LINES_A_JOB: Final = 2
#: Of one completion: they are put in one step with it, in which Redis does nothing else.
MOST_FOLLOWERS = 1000
POLICIES = ("wait", "fail", "run")  # for a job whose parent fails


# What a job may be given, checked before anything is written.


class PutOptions(TypedDict, total=False):
    """The options of put and add. One not given keeps its value on a known job, and has its default on a new one."""

    jid: str  # 1 to 64 bytes; default: 22 characters, a UUID in URL-safe base64
    priority: int  # lower runs sooner; default 0
    delay: Duration  # until it may run
    at: float | datetime.datetime  # or the time at which it may: unix seconds, or a datetime with a time zone
    retries: int  # how many failures are tried again; default 5
    timeout: Duration  # that a run may take; 0 = no limit
    max_deaths: int  # how many deaths bury it; 0 = no limit; default: config max-deaths
    tags: Sequence[str]  # at most 100; given ones replace those that it has
    depends: Sequence[str]  # jids that must complete first; unknown ones count as complete
    on_parent_failure: str  # what a failure or cancellation of one of those means: wait (default), fail or run
    lane: str | None  # whose share of the queue it is of: lanes with work have their turns, by weight
    limit: str | None  # it starts only where this limit has room
    unique: bool | str | None  # a key (True: klass and data as put now) that no other job has until this one ends
    expires: Duration | None  # from now, within which it must have started, else it fails in group expired
    persistent: bool | None  # it has no end: whatever ends a run of it, another worker gets it
    at_most_once: bool | None  # it is never started twice: whatever else than its own end ends it fails it
    trace: str | None  # the W3C traceparent of what has caused it; default: that of the current OpenTelemetry span


_OPTIONS = frozenset(PutOptions.__annotations__)


#: Base64 as it may stand in an URL.
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class NewJob(NamedTuple):
    """One checked job of a put or add."""

    jid: str
    size_bytes: int
    arguments: tuple[str | bytes | int, ...]
    lines: int = 0  # tags, and twice the parents

    @property
    def weight(self) -> int:
        """How many jobs without tags and parents take the server as long to put."""
        return 1 + self.lines // LINES_A_JOB


def new_jid() -> str:
    """A fresh jid: 22 characters, of which the first is no "-", which commands would take for a flag."""
    while True:
        drawn = bytearray(os.urandom(16))
        drawn[6], drawn[8] = drawn[6] & 0x0F | 0x40, drawn[8] & 0x3F | 0x80  # a UUID that was drawn: version 4
        jid = binascii.b2a_base64(drawn)[:22].translate(_URL_SAFE).decode()
        if jid[0] != "-":
            return jid


def new_job(verb: Literal["put", "add"], queue: str, klass: str, data: object, options: Mapping[str, Any]) -> NewJob:
    """Checks what put or add was given. Raises TypeError or ValueError naming the argument."""
    checked_name("queue", queue)
    checked_name("klass", klass)
    kind, raw = to_data("data", data)
    trace = current_trace()
    if not options and trace is None:  # as most are
        jid = new_jid()
        return NewJob(jid, len(raw), (verb, queue, jid, klass, kind, raw, "", "", 0))
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"{verb} has no option {option!r}; it has {', '.join(sorted(_OPTIONS))}")
    jid = checked_name("jid", options["jid"]) if "jid" in options else new_jid()
    delay, at = _checked_times(options)
    kept = claim_on(checked_options(options), klass, kind, raw)
    if trace is not None:
        kept.setdefault("trace", trace)
    more = (part for pair in kept.items() for part in pair)
    arguments = verb, queue, jid, klass, kind, raw, delay, at, len(kept), *more
    return NewJob(jid, len(raw), arguments, _lines_of(kept.get("tags")) + 2 * _lines_of(kept.get("depends")))


def _lines_of(names: str | int | None) -> int:
    return 1 + names.count("\n") if isinstance(names, str) and names else 0


def _checked_times(options: Mapping[str, Any]) -> tuple[int | str, int | str]:
    if "delay" in options and "at" in options:
        raise ValueError("at and delay exclude each other")
    delay = duration_ms("delay", options["delay"], least=0) if "delay" in options else ""
    at = moment_ms("at", options["at"]) if "at" in options else ""
    return delay, at


def with_plain_times(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with times as numbers, which can be sent. Raises ValueError naming the option."""
    plain = dict(options)
    for name in ("delay", "timeout", "expires"):
        if name in plain:
            plain[name] = in_seconds(name, plain[name])
    if "at" in plain:
        plain["at"] = in_unix_seconds("at", plain["at"])
    return plain


def checked_options(options: Mapping[str, Any]) -> dict[str, str | int]:
    """The fields that options give the record of a job, or of a recurring one. Raises TypeError or ValueError naming
    the option. A claim by content is said as "1", for `claim_on` to complete.
    """
    fields: dict[str, str | int] = {}
    if "priority" in options:
        fields["priority"] = checked_int("priority", options["priority"], -EXACT_INT)
    if "retries" in options:
        fields["retries"] = checked_int("retries", options["retries"], 0)
    if "timeout" in options:
        fields["timeout"] = duration_ms("timeout", options["timeout"], least=0)
    if "max_deaths" in options:
        fields["max_deaths"] = checked_int("max_deaths", options["max_deaths"], 0)
    if "tags" in options:
        fields["tags"] = checked_lines("tags", options["tags"], MOST_TAGS)
    if "depends" in options:
        fields["depends"] = checked_lines("depends", options["depends"], MOST_PARENTS)
    if "on_parent_failure" in options:
        fields["policy"] = _checked_policy(options["on_parent_failure"])
    for name in ("lane", "limit"):
        if name in options:
            fields[name] = "" if options[name] is None else checked_name(name, options[name])
    if "unique" in options:
        fields["unique"] = _checked_claim(options["unique"])
    if "expires" in options:
        expires = options["expires"]
        fields["expires"] = "" if expires is None else duration_ms("expires", expires, least=0.001)
    if "persistent" in options:
        fields["persistent"] = _flag("persistent", options["persistent"])
    if "at_most_once" in options:
        fields["once"] = _flag("at_most_once", options["at_most_once"])
    if "trace" in options:
        fields["trace"] = "" if options["trace"] is None else checked_trace("trace", options["trace"])
    if fields.get("persistent") == fields.get("once") == "1":
        raise ValueError("persistent and at_most_once exclude each other: True")
    return fields


def _flag(name: str, value: object) -> str:
    """As it is stored; "" for None, which leaves the choice to the default, or to the handler."""
    return "" if value is None else "1" if checked_flag(name, value) else "0"


def _checked_claim(unique: object) -> str:
    """What the scripts take: ":" and a key, "" none; and "1" by content, which they take as "=" and a digest."""
    if unique is None or isinstance(unique, bool):
        return "1" if unique else ""
    return ":" + checked_name("unique", unique)


def claim_on(fields: dict[str, str | int], klass: str, kind: str, raw: bytes) -> dict[str, str | int]:
    """The fields with the claim by content completed: objects are equal in whatever order their keys are."""
    if fields.get("unique") == "1":
        import hashlib  # here, for children import this module, and would all carry OpenSSL

        content = orjson.dumps(orjson.loads(raw), option=orjson.OPT_SORT_KEYS) if kind == "json" else raw
        digest = hashlib.sha1(f"{klass}\n{kind}\n".encode() + content, usedforsecurity=False).hexdigest()
        fields["unique"] = "=" + digest
    return fields


def _checked_policy(policy: object) -> str:
    if policy not in POLICIES:
        raise ValueError(f"on_parent_failure must be wait, fail or run: {policy!r:.100}")
    return str(policy)


# What a lease gives.


class LeaseRecord:
    """One leased job, as the lease answered it. It holds values only; `.data` is decoded when first asked for."""

    __slots__ = (
        "_data", "at_most_once", "deaths", "expires_unix", "failures", "interruptions", "is_bytes", "jid", "klass",
        "lane", "limited", "max_deaths", "persistent", "priority", "queue", "raw", "raw_saved", "retries", "tags",
        "timeout_s", "token", "trace", "waited_s", "worker",
    )  # fmt: skip

    def __init__(
        self,
        worker: str,
        token: int,
        jid: bytes,
        klass: bytes,
        queue: bytes,
        raw: bytes | None,
        expires_unix: float,
        waited_ms: int = 0,
        rest: Sequence[bytes | None] | None = None,
    ) -> None:
        self.worker = worker
        self.token = token
        self.jid: str = jid.decode()
        self.klass: str = klass.decode()
        self.queue: str = queue.decode()
        self.raw: bytes = raw or b""
        self.is_bytes = False
        self.expires_unix = expires_unix
        self.waited_s: float = waited_ms / 1000  # since it could be leased: what it was put off for does not count
        self._data: Any = UNSET
        self.tags: list[str] = []
        self.priority = self.failures = self.deaths = self.interruptions = 0
        self.retries: int | None = None
        self.max_deaths: int | None = None
        self.timeout_s: float | None = None
        self.lane: str | None = None
        self.trace: str | None = None  # a W3C traceparent
        self.raw_saved: bytes | None = None  # its checkpoint as JSON
        self.persistent = self.at_most_once = False
        self.limited = False  # its lease has a slot of a limit, which whatever ends the lease gives back
        if rest is not None:
            self._take(*rest)

    def _take(
        self,
        priority: bytes | None,
        retries: bytes | None,
        timeout: bytes | None,
        max_deaths: bytes | None,
        kind: bytes | None,
        failures: bytes | None,
        deaths: bytes | None,
        interruptions: bytes | None,
        tags: bytes | None,
        lane: bytes | None,
        marks: bytes | None,
        saved: bytes | None,
        trace: bytes | None,
    ) -> None:
        """What few jobs have, as lease.lua answers it."""
        if kind:
            self.raw, self.is_bytes = payload_of(kind, self.raw)
        self.priority = int(priority or 0)
        self.failures = int(failures or 0)
        self.deaths = int(deaths or 0)
        self.interruptions = int(interruptions or 0)
        self.retries = int(retries) if retries else None
        self.timeout_s = int(timeout) / 1000 if timeout else None
        self.max_deaths = int(max_deaths) if max_deaths else None
        self.tags = tags.decode().split("\n") if tags else []
        self.lane = lane.decode() if lane else None
        self.persistent = b"p" in (marks or b"")
        self.at_most_once = b"o" in (marks or b"")
        self.limited = b"l" in (marks or b"")
        self.raw_saved = saved
        self.trace = trace.decode() if trace else None

    @property
    def data(self) -> Any:
        """The decoded JSON, or the bytes. Raises ValueError if what was put as JSON is none (another program's put)."""
        if self._data is UNSET:
            self._data = self.raw if self.is_bytes else orjson.loads(self.raw)
        return self._data

    @property
    def saved(self) -> Any:
        """What the last checkpoint of an earlier lease has stored; None if there is none."""
        return orjson.loads(self.raw_saved) if self.raw_saved else None

    @property
    def remaining(self) -> int:
        """Retries left if it fails no more often; by the default of 5 where the job has none of its own."""
        return (DEFAULT_RETRIES if self.retries is None else self.retries) - self.failures

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self.klass} queue={self.queue} token={self.token}>"


# What a reader sees.


class Progress(NamedTuple):
    """How far a job says it is: a fraction from 0 to 1, a text, and when it said so."""

    fraction: float
    text: str
    when_unix: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it was at one instant. It holds values only: looking again means asking the client again."""

    jid: str
    state: str  # waiting, scheduled, depends, running, stalled, failed or complete
    queue: str
    klass: str
    raw: bytes
    is_bytes: bool
    priority: int
    retries: int  # its own, else the default
    timeout_s: float | None
    max_deaths: int | None  # its own; None = the worker's or the configuration's
    failures: int
    deaths: int
    interruptions: int
    put_unix: float  # when it was put, moved or unfailed last
    due_unix: float | None  # when it may run, while it is scheduled, or depends and was put with a delay
    expires_unix: float | None  # when its lease ends, while it has one
    worker: str | None  # who holds it
    token: int | None
    started: bool  # its holder is known to have begun it
    failure: dict[str, Any] | None  # the last one, also of a job that was tried again since
    result: Any
    tags: list[str]  # in the order in which they were added
    tracked: bool
    dependencies: list[str]  # the jobs that it waits for, at most 1,000 of them
    dependents: list[str]  # the jobs that wait for it, at most 1,000 of them
    on_parent_failure: str  # wait, fail or run
    history: list[dict[str, Any]]  # what (put, popped, failed, …) and when, oldest first: the first and the last 99
    spawned_from: str | None  # the recurring job whose job it is
    lane: str | None
    limit: str | None
    parked: bool  # its limit is used up: it waits for room, and for nobody else
    unique: str | bool | None  # the key that it claims until it ends; True: by content
    start_by_unix: float | None  # when it expires, while it has not been started
    persistent: bool
    at_most_once: bool
    progress: Progress | None  # the last one that it has said
    saved: Any  # its last checkpoint, until it completes or is put anew
    trace: str | None = None  # the W3C traceparent of what has caused it
    unknown_unix: float | None = None  # since when it has not run, as those that leased it did not know its klass
    has_own_retries: bool = False  # else its handler's count, which may be other ones than `retries`
    left_to_others: bool = False  # who leased it did not know its klass, and living peers do: it waits for those
    #: What was too large for the answer is empty here: attribute → its size, in bytes, or in elements of a list.
    left_out: Mapping[str, int] = field(default_factory=dict, compare=False)
    kind: str | None = field(default=None, compare=False)  # of stored data, as entries.py takes it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self.klass} {self.state} queue={self.queue}>"

    @property
    def data(self) -> Any:
        """The decoded JSON, or the bytes. Raises ValueError if what was put as JSON is none."""
        return self.raw if self.is_bytes else orjson.loads(self.raw)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Those entries of the history that Client.log wrote: message, when, and data if there was any."""
        return [entry for entry in self.history if entry["what"] == "log"]
