"""Defines the outcomes, the ways in which a lease ends. Runs in every process that speaks to Redis.

Must not do I/O. settle.lua applies an outcome, and lua/README.md says what each one does to the job.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from supervisor.engine.model.job_to_put import JobToPut, as_jids
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import LINES_A_JOB, MOST_FOLLOWERS, MOST_LINES, MOST_PARENTS, NewJob, new_job
from supervisor.engine.model.trace_context import current_trace
from supervisor.engine.model.validation import (
    UNSET,
    Duration,
    checked_each,
    checked_flag,
    checked_int,
    checked_lines,
    checked_text,
    duration_ms,
    to_json,
    to_new_data,
)

RESULT_BYTES = 64 * 1024
#: Data above this size is refused by a server with full memory, as a put is.
LARGE_DATA_BYTES: Final = 64 * 1024
#: The longest delay until a job is offered again whose klass a worker does not know. The engine begins with 1 s and
#: doubles it.
LONGEST_UNKNOWN_S: Final = 10.0
_DEATH_REASON = re.compile(r"SIG[A-Z0-9+]{1,12}|exit-\d{1,3}|timeout|memory|disk|oom|lost|boot")


class Leased(Protocol):
    """Names the lease that an outcome ends."""

    @property
    def jid(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def trace(self) -> str | None: ...


# The outcomes. `arguments` returns what settle.lua takes for one.

Arguments = tuple[str | bytes | int, ...]
_NONE: Final = ()


@dataclass(slots=True, unsafe_hash=True)  # creating a frozen one takes five times as long
class Completed:
    """The job is done.

    `result` is JSON of at most 64 KiB and is kept with the completed job. `data` replaces the job's data. With `next`
    the job goes on in that queue instead, after `delay` seconds and the jobs of `depends`. `then` are jobs to put in
    the same step: dicts of put's arguments and a queue, or `NewJob`s.

    Answer: bool; REFUSED if the job or a follower would wait for itself; TOO_MANY_QUEUES; ENDLESS for a persistent job.
    """

    lease: Leased
    result: Any = None
    data: Any = UNSET
    next: str | None = None
    delay: Duration = 0
    depends: Sequence[str | JobToPut] = _NONE
    then: Iterable[Mapping[str, Any] | NewJob] = _NONE

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        result = b"" if self.result is None else to_json("result", self.result)
        if len(result) > RESULT_BYTES:
            raise ValueError(f"result must have at most {RESULT_BYTES} bytes as JSON, not {len(result)}")
        if self.next is None and self.data is UNSET and self.then is _NONE:
            self._check_no_next()
            return "complete", self.lease.jid, self.lease.token, result
        return self._with_more(result)

    def _with_more(self, result: bytes) -> Arguments:
        lease = self.lease.jid, self.lease.token
        puts = [_follower(one, self.lease.trace) for one in checked_each("then", self.then, "dicts of put's arguments")]
        if len(puts) > MOST_FOLLOWERS:
            raise ValueError(
                f"then must be at most {MOST_FOLLOWERS} jobs, not {len(puts)}; let one of them put the rest"
            )
        depends = checked_lines("depends", as_jids(self.depends), MOST_PARENTS)
        self._check_lines(puts)
        followers = [argument for put in puts for argument in ("follow", *put.arguments)]
        if self.next is None and self.data is UNSET:
            self._check_no_next()
            return "complete", *lease, result, *followers
        if self.next is None:
            self._check_no_next()
        queue = "" if self.next is None else checked_name("next", self.next)
        delay = duration_ms("delay", self.delay, least=0)
        return "advance", *lease, queue, *to_new_data("data", self.data), delay, depends, result, *followers

    def _check_lines(self, puts: Sequence[NewJob]) -> None:
        lines = sum(put.lines for put in puts) + 2 * len(tuple(self.depends))
        if lines > MOST_LINES:
            raise ValueError(
                f"then and depends must have at most {MOST_LINES} tags, and a parent counts for two, not {lines}:"
                " let one of the jobs put the rest"
            )

    def with_checked_puts(self) -> "Completed":
        """Return a copy whose followers are `NewJob`s, so that `weight` counts them. Raises TypeError or ValueError."""
        if self.then is _NONE:
            return self
        puts = checked_each("then", self.then, "dicts of put's arguments")
        return replace(self, then=[_follower(one, self.lease.trace) for one in puts])

    @property
    def weight(self) -> int:
        """Return how many plain completions cost the server as much. Counts only followers that are `NewJob`s."""
        puts = sum(put.weight for put in self.then if isinstance(put, NewJob))
        return 1 + puts + 2 * len(tuple(self.depends)) // LINES_A_JOB

    def _check_no_next(self) -> None:
        if self.delay != 0 or (self.depends is not _NONE and tuple(self.depends)):
            name = "delay" if self.delay != 0 else "depends"
            raise ValueError(f"{name} must not be given without next: {getattr(self, name)!r:.100}")


def _follower(arguments: object, trace: str | None) -> NewJob:
    """Check one follower. It inherits the trace of the completed job, unless it has its own or a span is current."""
    if isinstance(arguments, NewJob):
        return arguments
    if not isinstance(arguments, Mapping):
        raise TypeError(f"then must be dicts of put's arguments, not {type(arguments).__name__}: {arguments!r:.100}")
    given = dict(arguments)
    for needed in ("queue", "klass"):
        if needed not in given:
            raise TypeError(f"then must each have a {needed}: {arguments!r:.100}")
    if "trace" not in given and trace is not None:
        given["trace"] = current_trace() or trace
    return new_job("put", given.pop("queue"), given.pop("klass"), given.pop("data", None), given)


@dataclass(frozen=True, slots=True)
class Retried:
    """The job failed and is tried again after `delay` seconds.

    `default_retries` counts for a job without a count of its own. `details` are kept with the failure.

    Answer: the remaining retries; negative if the job failed for good, in `group` (default failed-retries-<queue>).
    """

    lease: Leased
    delay: Duration | None = None
    group: str | None = None
    message: str | None = None
    default_retries: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        delay = "" if self.delay is None else duration_ms("delay", self.delay, least=0)
        group = "" if self.group is None else checked_name("group", self.group)
        budget = "" if self.default_retries is None else checked_int("default_retries", self.default_retries, 0)
        shown = group or f"failed-retries-{self.lease.queue}"
        failure = failure_json(shown, self.message or "", worker, when_unix, self.details)
        return "retry", self.lease.jid, self.lease.token, delay, group, budget, failure


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed for good. `data` replaces the job's data. Answer: bool."""

    lease: Leased
    group: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    data: Any = UNSET

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        group = checked_name("group", self.group)
        failure = failure_json(group, self.message, worker, when_unix, self.details)
        return "fail", self.lease.jid, self.lease.token, group, failure, *to_new_data("data", self.data)


@dataclass(frozen=True, slots=True)
class Released:
    """The job goes back to the front of its queue, and counts an interruption if it had started.

    `reason` says for its history what interrupted it: a name, by the rules of a jid. `delay`, in seconds, goes only
    with a job that had not started. Answer: bool.
    """

    lease: Leased
    started: bool = True
    reason: str | None = None
    delay: float = 0

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        started = "1" if checked_flag("started", self.started) else ""
        reason = "" if self.reason is None else checked_name("reason", self.reason)
        delay = duration_ms("delay", self.delay, least=0)
        if delay and self.started:
            raise ValueError(f"delay must be 0 for a job that had started: {self.delay!r:.100}")
        return "release", self.lease.jid, self.lease.token, started, reason, delay or ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process that ran the job died. `reason` is SIG…, exit-N, timeout, memory, disk, oom, lost or boot.

    `default_max_deaths` counts for a job without a limit of its own. Answer: the new state (waiting, scheduled,
    failed).
    """

    lease: Leased
    reason: str
    message: str | None = None
    default_max_deaths: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        if not _DEATH_REASON.fullmatch(checked_text("reason", self.reason)):
            raise ValueError(
                f"reason must be SIG…, exit-N, timeout, memory, disk, oom, lost or boot: {self.reason!r:.100}"
            )
        default = self.default_max_deaths
        limit = "" if default is None else checked_int("default_max_deaths", default, 0)
        details = {"reason": self.reason, **self.details}
        failure = failure_json(f"died:{self.reason}", self.message or "", worker, when_unix, details)
        return "died", self.lease.jid, self.lease.token, self.reason, limit, failure


@dataclass(frozen=True, slots=True)
class Unknown:
    """This worker has no handler for the job's klass.

    A live peer that has one gets the job. Without such a peer it comes back after 1, 2, 4, … seconds, at most `delay`,
    for a newer worker. After config unknown-for it fails in group unknown-handler. Answer: the new state (waiting,
    scheduled, failed).
    """

    lease: Leased
    delay: float

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        return "unknown", self.lease.jid, self.lease.token, duration_ms("delay", self.delay, least=0)


@dataclass(frozen=True, slots=True)
class Misfit:
    """The job's data do not have the shape that this worker's handler takes. The handler was not called.

    A live peer that has reported another `shape` of the klass gets the job. Without such a peer it fails in group
    broken, with the message. Answer: the new state (waiting, failed).
    """

    lease: Leased
    shape: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        failure = failure_json("broken", self.message, worker, when_unix, self.details)
        return "misfit", self.lease.jid, self.lease.token, checked_name("shape", self.shape), failure


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler of a persistent job has returned.

    The job goes to the front, preferably for another worker. It is delayed if the lease lasted less than 10 s. A job
    that is not persistent completes. Answer: bool.
    """

    lease: Leased

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        return "return", self.lease.jid, self.lease.token


@dataclass(frozen=True, slots=True)
class Suspended:
    """The handler waits for the signal `name`, and starts again when that comes, or after `timeout` seconds.

    It spends nothing. If the signal is there already, the job goes to the front at once. A wait that has begun in an
    earlier start keeps its time. After 1,000 waits the job fails in group too-many-waits. Answer: bool; ENDLESS for a
    persistent job, and for an at-most-once job.
    """

    lease: Leased
    name: str
    timeout: Duration | None = None

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Return what settle.lua takes. Raises TypeError or ValueError naming the argument."""
        timeout = "" if self.timeout is None else duration_ms("timeout", self.timeout, least=0)
        return "suspend", self.lease.jid, self.lease.token, checked_name("name", self.name), timeout


Outcome = Completed | Retried | Failed | Released | Died | Unknown | Misfit | Returned | Suspended


def needs_memory(arguments: Arguments) -> bool:
    """Return whether a server with full memory refuses these arguments: they put jobs or bring large data."""
    verb = arguments[0]
    if verb == "complete":
        return len(arguments) > 4
    if verb == "advance":
        return len(arguments) > 9 or _is_large(arguments[5])
    return verb == "fail" and _is_large(arguments[6])


def _is_large(data: str | bytes | int) -> bool:
    return isinstance(data, bytes) and len(data) > LARGE_DATA_BYTES


REFUSED: Final = "refused"
ENDLESS: Final = "endless"
TOO_MANY_QUEUES: Final = "too-many-queues"
LATER: Final = "later"
#: lua/include/stage.lua creates no queue beyond these.
MOST_QUEUES: Final = 100_000
# Answers of settle.lua: a bool for complete, fail, release, return and suspend; the remaining retries for retry; the
# new state for died and unknown; None for a stale retry, died or unknown. REFUSED: the next stage or a follower would
# wait for itself, or for a job that 1,000 wait for, or the followers are too much work for a call. TOO_MANY_QUEUES: the
# outcome needs a queue beyond MOST_QUEUES. LATER: the followers are too much work beside the outcomes before it, so it
# must be sent again. An outcome answered by one of REFUSED, ENDLESS, TOO_MANY_QUEUES and LATER changes nothing.
Answer = bool | int | str | None


#: A longer failure message is cut off here.
MESSAGE_BYTES: Final = 65_536


def _shortened(message: str) -> str:
    """Return the message. A long one is cut off, with its full size appended."""
    size = len(message.encode())
    if size <= MESSAGE_BYTES:
        return message
    return f"{message.encode()[:MESSAGE_BYTES].decode(errors='ignore')}… (the first {MESSAGE_BYTES} of {size} bytes)"


def failure_json(group: str, message: str, worker: str | None, when_unix: float, details: Mapping[str, Any]) -> bytes:
    """Return the failure as the record keeps it. Raises TypeError or ValueError naming the argument."""
    text = _shortened(checked_text("message", message))
    common = {"group": group, "message": text, "when": when_unix, "worker": worker}
    return to_json("details", {**details, **common})
