"""Defines jobs and leases as values. Runs in every process that speaks to Redis.

Must not do I/O. engine/client/async_handles.py has those that act through a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from supervisor.engine.model.entries import Payload, opened, payload_of
from supervisor.engine.model.replay import Replay
from supervisor.engine.model.validation import EXACT_INT, UNSET

DEFAULT_RETRIES = 5


def limits_in(stored: str | None) -> str | tuple[str, ...] | None:
    """Return what a caller has put as `limit`, from its stored form. One key is a str."""
    keys = (stored or "").split("\t")
    return tuple(keys) if len(keys) > 1 else stored


class ParentResult(NamedTuple):
    """A parent leaves its result or its failure to a job that depended on it. Without both it returned nothing, or is
    unknown.
    """

    jid: str
    result: bytes | None = None  # JSON
    failure: tuple[str, str] | None = None  # group and message


# Records of leases.


class LeaseRecord:
    """The values of one leased job, as lease.lua returns them. `.data` is decoded on first use."""

    __slots__ = (
        "_data", "at_most_once", "batch", "deaths", "expires_unix", "failures", "granted_ms",
        "interruptions", "is_bytes", "is_call", "jid", "klass", "lane", "limited", "max_deaths", "persistent",
        "priority", "queue", "raw", "raw_replay", "raw_saved", "retries", "tags", "timeout_s", "token", "trace",
        "waited_s", "was_lost", "worker",
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
        """Raises ValueError for a record that is damaged, or has no payload."""
        if raw is None:
            raise ValueError("no payload")
        self.worker = worker
        self.token = token
        self.jid: str = jid.decode()
        self.klass: str = klass.decode()
        self.queue: str = queue.decode()
        self.raw: bytes = raw
        self.is_bytes = self.is_call = False  # see entries.Payload
        self.expires_unix = expires_unix
        self.waited_s: float = waited_ms / 1000  # since the job became due; its delay is not counted
        self._data: Any = UNSET
        self.tags: list[str] = []
        self.priority = self.failures = self.deaths = self.interruptions = 0
        self.retries: int | None = None
        self.max_deaths: int | None = None
        self.timeout_s: float | None = None
        self.lane: str | None = None
        self.trace: str | None = None  # W3C traceparent
        self.granted_ms: int | None = None  # when it was leased, if its record was dense then
        self.raw_saved: bytes | None = None  # the job's checkpoint as JSON
        self.batch: str | None = None  # the id of the batch of which it is a member
        self.raw_replay: bytes | None = None  # its signals, waits and steps, as replay.packed() makes them
        self.persistent = self.at_most_once = False
        self.was_lost = False  # a worker was lost while it held the job, and may just have started it
        self.limited = False  # the lease occupies a slot of a limit, and any end of the lease frees it
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
        replay: bytes | None = None,
        batch: bytes | None = None,
    ) -> None:
        """Set what few jobs have. lease.lua returns these values in the same order."""
        if kind:
            self.raw, self.is_bytes, self.is_call = payload_of(kind, self.raw)
        self.priority = _number(priority) if priority else 0
        self.failures = _number(failures) if failures else 0
        self.deaths = _number(deaths) if deaths else 0
        self.interruptions = _number(interruptions) if interruptions else 0
        self.retries = _number(retries) if retries else None
        self.timeout_s = _number(timeout) / 1000 if timeout else None
        self.max_deaths = _number(max_deaths) if max_deaths else None
        self.tags = tags.decode().split("\n") if tags else []
        self.lane = lane.decode() if lane else None
        self.persistent = b"p" in (marks or b"")
        self.at_most_once = b"o" in (marks or b"")
        self.limited = b"l" in (marks or b"")
        self.was_lost = b"w" in (marks or b"")
        self.raw_saved = saved
        self.raw_replay = replay
        self.trace = trace.decode() if trace else None
        self.batch = batch.decode() if batch else None

    @property
    def data(self) -> Any:
        """Return the decoded JSON, or the bytes.

        Raises ValueError for invalid JSON, which another program may have put.
        """
        if self._data is UNSET:
            raw, is_bytes, is_call = opened(Payload(self.raw, self.is_bytes, self.is_call))
            self._data = raw if is_bytes and not is_call else orjson.loads(raw)
        return self._data

    @property
    def saved(self) -> Any:
        """Return what the last checkpoint of an earlier lease stored, or None."""
        return orjson.loads(self.raw_saved) if self.raw_saved else None

    @property
    def signals(self) -> dict[str, Any]:
        """Return the values of the signals that the job had got when it was leased, by name."""
        return Replay(self.raw_replay).signals

    @property
    def remaining(self) -> int:
        """Return how many retries are left. A job without a count of its own has the default of 5."""
        return (DEFAULT_RETRIES if self.retries is None else self.retries) - self.failures

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self.klass} queue={self.queue} token={self.token}>"


def dense_lease(
    worker: str,
    token: int,
    jid: bytes,
    record: bytes,
    beside: bytes | None,
    expires: Mapping[bytes, float],
    granted_ms: int,
) -> LeaseRecord:
    """Return the lease of a job with a dense record (lua/include/dense.lua), given as it was before the lease.

    `beside` is the payload, if that does not lie in the record. `expires`: when the leases of each queue end. Raises
    ValueError for a damaged record.
    """
    head, queue, klass, options, raw = record.split(b"\n", 4)
    kind = head[1:2]
    waited_ms = max(granted_ms - _number(head[17:]), 0)
    lease = LeaseRecord(worker, token, jid, klass, queue, raw if kind in b"jb" else beside, expires[queue], waited_ms)
    lease.granted_ms = granted_ms
    lease.is_bytes = kind in b"bB"
    for option in options.split(b" ") if options else ():
        letter, value = option[:1], option[1:]
        if letter == b"p":
            lease.priority = _number(value)
        elif letter == b"r":
            lease.retries = _number(value)
        elif letter == b"t":
            lease.timeout_s = _number(value) / 1000
        elif letter == b"d":
            lease.max_deaths = _number(value)
        elif letter == b"c":
            lease.trace = value.decode()
    return lease


def _number(stored: bytes) -> int:
    """Raises ValueError for a number that no script of ours writes. A child could not even be told of it."""
    number = int(stored)
    if not -EXACT_INT <= number <= EXACT_INT:
        raise ValueError(f"a number that is too large: {stored[:30]!r}")
    return number


# Records of queries.


class Progress(NamedTuple):
    """How far a job says it is: a fraction from 0 to 1, a text, and the time of the report."""

    fraction: float
    text: str
    when_unix: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it was at one instant. These are values only: a newer state takes another query."""

    jid: str
    state: str  # waiting, scheduled, depends, running, stalled, failed or complete
    queue: str
    klass: str
    raw: bytes
    is_bytes: bool
    priority: int
    retries: int  # the job's own count, else the default
    timeout_s: float | None
    max_deaths: int | None  # None = the worker's or the configuration's
    failures: int
    deaths: int
    interruptions: int
    put_unix: float  # of the last put, move or unfail
    due_unix: float | None  # when the job may run; set in state scheduled, and in depends if it was put with a delay
    expires_unix: float | None  # when its lease ends, if it is leased
    worker: str | None  # the holder of its lease
    token: int | None
    started: bool  # the holder has reported the start
    failure: dict[str, Any] | None  # the last failure, also if the job was tried again since
    result: Any
    tags: list[str]  # in the order in which they were added
    tracked: bool
    dependencies: list[str]  # the jobs that it waits for; at most 1,000 are listed
    dependents: list[str]  # the jobs that wait for it; at most 1,000 are listed
    on_parent_failure: str  # wait, fail or run
    history: list[dict[str, Any]]  # events (put, popped, failed, …) and their times: the first and the last 99
    spawned_from: str | None  # jid of the recurring job that made this one
    lane: str | None
    limit: str | tuple[str, ...] | None
    parked: bool  # only a full limit, or the pause of a batch, keeps the job from starting
    unique: str | bool | None  # the key that the job claims until it ends; True: by content
    start_by_unix: float | None  # when the job expires, if it has not started by then
    persistent: bool
    at_most_once: bool
    progress: Progress | None  # its last report
    saved: Any  # its last checkpoint; removed when the job completes or is put again
    waiting_for: str | None = None  # the signal that it waits for, in state scheduled
    signal_count: int = 0  # how many it has got
    trace: str | None = None  # W3C traceparent of the cause
    unknown_unix: float | None = None  # since when it waits because no worker that leased it knew its klass
    has_own_retries: bool = False  # if not, its handler's count may differ from `retries`
    batch: str | None = None  # the id of the batch of which it is a member
    left_to_others: bool = False  # the workers that leased it do not know its klass, and live peers do
    #: Attributes that were too large for the reply are empty: attribute → size, in bytes or list elements.
    left_out: Mapping[str, int] = field(default_factory=dict, compare=False)
    kind: str | None = field(default=None, compare=False)  # of the stored data; see entries.payload_of_kind
    is_call: bool = field(default=False, compare=False)  # its data has arguments by position; see entries.Payload

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid} {self.klass} {self.state} queue={self.queue}>"

    @property
    def data(self) -> Any:
        """Return the decoded JSON, or the bytes. Raises ValueError for invalid JSON."""
        return self.raw if self.is_bytes else orjson.loads(self.raw)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Return the history entries that Client.log wrote: message, when, and data if there was any."""
        return [entry for entry in self.history if entry["what"] == "log"]
