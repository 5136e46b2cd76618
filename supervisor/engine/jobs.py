"""Runs in every process that speaks to Redis. Owns: what jobs, leases and outcomes are, and what a job may be given.
Must not: do I/O; a Lease acts through the client that it came from.
"""

import base64
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypedDict

import orjson

from supervisor.engine.errors import LeaseLost
from supervisor.engine.keys import checked_name

DEFAULT_RETRIES = 5
DATA_BYTES = 256 * 1024 * 1024
RESULT_BYTES = 64 * 1024
EXACT_INT = 2**53  # Redis keeps scores, and Lua all numbers, as doubles
_DEATH_REASON = re.compile(r"SIG[A-Z0-9+]{1,12}|exit-\d{1,3}|timeout|memory|oom|lost|boot")
# orjson would write these in forms of its own, and they would not come back as what they were.
_ONLY_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Unset:
    """The type of UNSET: an argument that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


# What callers give, checked before anything is written.


def checked_int(argument: str, value: object, least: int, most: int = EXACT_INT) -> int:
    """The value, if it is an int (no bool) from least to most. Raises TypeError or ValueError naming the argument."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__}: {value!r:.100}")
    if not least <= value <= most:
        raise ValueError(f"{argument} must be from {least} to {most}: {value!r:.100}")
    return value


def milliseconds(argument: str, seconds: object, least: float = -math.inf) -> int:
    """Seconds as whole milliseconds. Raises TypeError or ValueError naming the argument."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{argument} must be a number of seconds, not {type(seconds).__name__}: {seconds!r:.100}")
    if not (-EXACT_INT / 1000 <= seconds <= EXACT_INT / 1000):  # NaN too is not within
        raise ValueError(f"{argument} must be a finite number of seconds: {seconds!r:.100}")
    if seconds < least:
        raise ValueError(f"{argument} must be {least} or more: {seconds!r}")
    return round(seconds * 1000)


def checked_number(argument: str, value: object) -> float:
    """The value, if it is a finite number. Raises TypeError or ValueError naming the argument."""
    milliseconds(argument, value)
    return value  # type: ignore[return-value]  # just checked


def checked_text(argument: str, value: object) -> str:
    """The value, if it is a str that UTF-8 can carry. Raises TypeError or ValueError naming the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__}: {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument} must be valid Unicode: {value!r:.100}") from None
    return value


def to_json(argument: str, value: object) -> bytes:
    """The value as JSON. Raises TypeError naming the argument if it is not JSON."""
    try:
        return orjson.dumps(value, option=_ONLY_JSON)
    except TypeError as error:
        raise TypeError(f"{argument} must be JSON or bytes: {error}") from None


def to_data(argument: str, value: object) -> tuple[bytes, bool]:
    """The bytes to store, and whether they are the caller's own: those are kept as they are, all else becomes JSON."""
    own = isinstance(value, bytes | bytearray | memoryview)
    if isinstance(value, memoryview):
        size = value.nbytes  # refused before it is copied
    elif isinstance(value, bytes | bytearray):
        size = len(value)
    else:
        value = to_json(argument, value)
        size = len(value)
    if size > DATA_BYTES:
        raise ValueError(f"{argument} must have at most {DATA_BYTES} bytes, not {size}")
    return bytes(value), own


class PutOptions(TypedDict, total=False):
    """The options of put and add. One not given keeps its value on a known job, and has its default on a new one."""

    jid: str  # 1 to 64 bytes; default: 22 characters, a UUID in URL-safe base64
    priority: int  # lower runs sooner; default 0
    delay: float  # seconds until it may run
    at: float  # or the unix time at which it may
    retries: int  # how many failures are tried again; default 5
    timeout: float  # seconds that a run may take; 0 = no limit
    max_deaths: int  # how many deaths bury it; 0 = no limit; default: config max-deaths


_OPTIONS = frozenset(PutOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class NewJob:
    """One checked job of a put or add."""

    jid: str
    size_bytes: int
    arguments: tuple[str | bytes | int, ...]


def new_jid() -> str:
    """A fresh jid: 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()


def new_job(verb: Literal["put", "add"], queue: str, klass: str, data: object, options: Mapping[str, Any]) -> NewJob:
    """Checks what put or add was given. Raises TypeError or ValueError naming the argument."""
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"{verb} has no option {option!r}; it has {', '.join(sorted(_OPTIONS))}")
    jid = checked_name("jid", options["jid"]) if "jid" in options else new_jid()
    delay, at = _checked_times(options)
    kept = _checked_options(options)
    raw, own = to_data("data", data)
    head = (verb, checked_name("queue", queue), jid, checked_name("klass", klass), "1" if own else "", raw, delay, at)
    return NewJob(jid, len(raw), (*head, len(kept) // 2, *kept))


def _checked_times(options: Mapping[str, Any]) -> tuple[int | str, int | str]:
    if "delay" in options and "at" in options:
        raise ValueError("at and delay exclude each other")
    delay = milliseconds("delay", options["delay"], least=0) if "delay" in options else ""
    at = milliseconds("at", options["at"], least=0) if "at" in options else ""
    return delay, at


def _checked_options(options: Mapping[str, Any]) -> list[str | int]:
    kept: list[str | int] = []
    if "priority" in options:
        kept += ("priority", checked_int("priority", options["priority"], -EXACT_INT))
    if "retries" in options:
        kept += ("retries", checked_int("retries", options["retries"], 0))
    if "timeout" in options:
        kept += ("timeout", milliseconds("timeout", options["timeout"], least=0))
    if "max_deaths" in options:
        kept += ("max_deaths", checked_int("max_deaths", options["max_deaths"], 0))
    return kept


# What a lease gives.


class LeaseRecord:
    """One leased job, as the lease answered it. It holds values only; `.data` is decoded when first asked for."""

    __slots__ = (
        "_data", "deaths", "expires_unix", "failures", "interruptions", "is_bytes", "jid", "klass", "max_deaths",
        "priority", "queue", "raw", "retries", "timeout_s", "token", "worker",
    )  # fmt: skip

    def __init__(self, worker: str, token: int, row: Sequence[Any]) -> None:
        klass, queue, priority, retries, timeout, max_deaths, own, failures, deaths, interrupted, jid, expiry, raw = row
        self.worker = worker
        self.token = token
        self.jid: str = jid.decode()
        self.klass: str = klass.decode()
        self.queue: str = queue.decode()
        self.raw: bytes = raw or b""
        self.is_bytes: bool = own is not None
        self.priority: int = int(priority) if priority else 0
        self.expires_unix: float = expiry / 1000
        self.failures: int = int(failures) if failures else 0
        self.deaths: int = int(deaths) if deaths else 0
        self.interruptions: int = int(interrupted) if interrupted else 0
        self.retries: int | None = int(retries) if retries else None
        self.timeout_s: float | None = int(timeout) / 1000 if timeout else None
        self.max_deaths: int | None = int(max_deaths) if max_deaths else None
        self._data: Any = UNSET

    @property
    def data(self) -> Any:
        """The decoded JSON, or the bytes. Raises ValueError if what was put as JSON is none (another program's put)."""
        if self._data is UNSET:
            self._data = self.raw if self.is_bytes else orjson.loads(self.raw)
        return self._data

    @property
    def remaining(self) -> int:
        """Retries left if it fails no more often; by the default of 5 where the job has none of its own."""
        return (DEFAULT_RETRIES if self.retries is None else self.retries) - self.failures

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self.klass} queue={self.queue} token={self.token}>"


class Leased(Protocol):
    """What an outcome must know of the lease that it ends."""

    @property
    def jid(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def worker(self) -> str: ...


# The ways in which a lease ends. `arguments` is what settle.lua takes per outcome.

Arguments = tuple[str | bytes | int, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """The job is done. The result, JSON of at most 64 KiB, is kept as long as the completed job. Answer: bool."""

    lease: Leased
    result: Any = None

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the result."""
        if self.result is None:
            return "complete", self.lease.jid, self.lease.token, ""
        result = to_json("result", self.result)
        if len(result) > RESULT_BYTES:
            raise ValueError(f"result must have at most {RESULT_BYTES} bytes as JSON, not {len(result)}")
        return "complete", self.lease.jid, self.lease.token, result


@dataclass(frozen=True, slots=True)
class Retried:
    """The job failed and is to be tried again, after `delay` seconds. Answer: retries remaining, negative = it failed
    for good, in `group` (default failed-retries-<queue>). `default_retries` counts where the job has none of its own;
    `details` are kept with the failure.
    """

    lease: Leased
    delay: float | None = None
    group: str | None = None
    message: str | None = None
    default_retries: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        delay = "" if self.delay is None else milliseconds("delay", self.delay, least=0)
        group = "" if self.group is None else checked_name("group", self.group)
        budget = "" if self.default_retries is None else checked_int("default_retries", self.default_retries, 0)
        shown = group or f"failed-retries-{self.lease.queue}"
        failure = _failure(shown, self.message or "", worker, when_unix, self.details)
        return "retry", self.lease.jid, self.lease.token, delay, group, budget, failure


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed for good. Answer: bool."""

    lease: Leased
    group: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        group = checked_name("group", self.group)
        failure = _failure(group, self.message, worker, when_unix, self.details)
        return "fail", self.lease.jid, self.lease.token, group, failure


@dataclass(frozen=True, slots=True)
class Released:
    """The job goes back to the front: an interruption, or uncounted if it had not started. Answer: bool."""

    lease: Leased
    started: bool = True

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError naming the argument."""
        if not isinstance(self.started, bool):
            raise TypeError(f"started must be a bool, not {type(self.started).__name__}: {self.started!r:.100}")
        return "release", self.lease.jid, self.lease.token, "1" if self.started else ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process that ran the job died; `reason` is SIG…, exit-N, timeout, memory, oom, lost or boot. Answer: the new
    state (waiting, scheduled, failed). `default_max_deaths` counts where the job has none of its own.
    """

    lease: Leased
    reason: str
    message: str | None = None
    default_max_deaths: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        if not _DEATH_REASON.fullmatch(checked_text("reason", self.reason)):
            raise ValueError(f"reason must be SIG…, exit-N, timeout, memory, oom, lost or boot: {self.reason!r:.100}")
        default = self.default_max_deaths
        limit = "" if default is None else checked_int("default_max_deaths", default, 0)
        details = {"reason": self.reason, **self.details}
        failure = _failure(f"died:{self.reason}", self.message or "", worker, when_unix, details)
        return "died", self.lease.jid, self.lease.token, self.reason, limit, failure


@dataclass(frozen=True, slots=True)
class Unknown:
    """No handler of this worker has the job's klass: it comes back after `delay` seconds, for a newer worker; after
    config unknown-for it fails in group unknown-handler. Answer: the new state (scheduled, failed).
    """

    lease: Leased
    delay: float

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        return "unknown", self.lease.jid, self.lease.token, milliseconds("delay", self.delay, least=0)


Outcome = Completed | Retried | Failed | Released | Died | Unknown
# True or False: complete, fail, release; an int: retry; a state: died, unknown; None: a stale retry, died or unknown.
Answer = bool | int | str | None


def _failure(group: str, message: str, worker: str, when_unix: float, details: Mapping[str, Any]) -> bytes:
    common = {"group": group, "message": checked_text("message", message), "when": when_unix, "worker": worker}
    return to_json("details", {**details, **common})


# What the clients hand out.


class Keeper(Protocol):
    """What a Lease needs of its client."""

    def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]: ...
    def renew_lease(self, lease: LeaseRecord, data: Any) -> float: ...


class AsyncKeeper(Protocol):
    """What an AsyncLease needs of its client."""

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]: ...
    async def renew_lease(self, lease: LeaseRecord, data: Any) -> float: ...


def _adopt(lease: LeaseRecord, record: LeaseRecord) -> None:
    for name in LeaseRecord.__slots__:
        setattr(lease, name, getattr(record, name))


def _held(lease: LeaseRecord, answer: Any) -> Any:
    if answer is None:
        raise LeaseLost(f"the lease of job {lease.jid} is not {lease.worker}'s any more")
    return answer


class Lease(LeaseRecord):
    """A leased job of a Client. Each method is one round trip. Whatever ends the lease is sent once: if the answer does
    not arrive, OutcomeUnknown says so.
    """

    __slots__ = ("_client",)

    def __init__(self, record: LeaseRecord, client: Keeper) -> None:
        _adopt(self, record)
        self._client = client

    def renew(self, data: Any = UNSET) -> float:
        """Lengthens the lease by the queue's heartbeat from now and answers its new end, in unix seconds; with `data`
        the job's data is replaced. Works after the end too, while nobody has taken the job. Raises LeaseLost.
        """
        self.expires_unix = _held(self, self._client.renew_lease(self, data) or None)
        return self.expires_unix

    def complete(self, result: Any = None) -> bool:
        """Ends the job. True for exactly one caller; False if the lease is lost."""
        return self._settle(Completed(self, result)) is True

    def retry(self, delay: float | None = None, group: str | None = None, message: str | None = None) -> int:
        """Spends a retry: to the back of its priority, or again after `delay` seconds. Answers the retries remaining;
        negative: exhausted, the job failed in `group` or failed-retries-<queue>. Raises LeaseLost.
        """
        return int(_held(self, self._settle(Retried(self, delay, group, message))))

    def fail(self, group: str, message: str) -> bool:
        """Fails the job for good. False if the lease is lost."""
        return self._settle(Failed(self, group, message)) is True

    def release(self, started: bool = True) -> bool:
        """Back to the front of its queue: an interruption, or uncounted if it had not started. False if lost."""
        return self._settle(Released(self, started)) is True

    def died(self, reason: str) -> str:
        """Counts a death and answers the job's new state: waiting, scheduled or failed. Raises LeaseLost."""
        return str(_held(self, self._settle(Died(self, reason))))

    def _settle(self, outcome: Outcome) -> Answer:
        return self._client.settle([outcome])[0]


class AsyncLease(LeaseRecord):
    """A leased job of an AsyncClient: as Lease, awaited."""

    __slots__ = ("_client",)

    def __init__(self, record: LeaseRecord, client: AsyncKeeper) -> None:
        _adopt(self, record)
        self._client = client

    async def renew(self, data: Any = UNSET) -> float:
        """As Lease.renew."""
        self.expires_unix = _held(self, await self._client.renew_lease(self, data) or None)
        return self.expires_unix

    async def complete(self, result: Any = None) -> bool:
        """As Lease.complete."""
        return await self._settle(Completed(self, result)) is True

    async def retry(self, delay: float | None = None, group: str | None = None, message: str | None = None) -> int:
        """As Lease.retry."""
        return int(_held(self, await self._settle(Retried(self, delay, group, message))))

    async def fail(self, group: str, message: str) -> bool:
        """As Lease.fail."""
        return await self._settle(Failed(self, group, message)) is True

    async def release(self, started: bool = True) -> bool:
        """As Lease.release."""
        return await self._settle(Released(self, started)) is True

    async def died(self, reason: str) -> str:
        """As Lease.died."""
        return str(_held(self, await self._settle(Died(self, reason))))

    async def _settle(self, outcome: Outcome) -> Answer:
        return (await self._client.settle([outcome]))[0]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was at one instant. Values only: looking again means asking the client again."""

    jid: str
    state: str  # waiting, scheduled, running, stalled, failed or complete
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
    put_unix: float
    due_unix: float | None  # when it may run, while it is scheduled
    expires_unix: float | None  # when its lease ends, while it has one
    worker: str | None  # who holds it
    token: int | None
    started: bool  # its holder is known to have begun it
    failure: dict[str, Any] | None  # the last one, also of a job that was tried again since
    result: Any

    @property
    def data(self) -> Any:
        """The decoded JSON, or the bytes. Raises ValueError if what was put as JSON is none."""
        return self.raw if self.is_bytes else orjson.loads(self.raw)
