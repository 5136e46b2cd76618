"""Runs in every process that speaks to Redis. Owns: the ways in which a lease ends, and what settle.lua takes of each.
Must not: do I/O.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from supervisor.engine.model.jobs import LINES_A_JOB, MOST_FOLLOWERS, MOST_LINES, MOST_PARENTS, NewJob, new_job
from supervisor.engine.model.keys import checked_name
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
#: New data of a job that is larger gets no more than a put into a server whose memory is full.
LARGE_DATA_BYTES: Final = 64 * 1024
_DEATH_REASON = re.compile(r"SIG[A-Z0-9+]{1,12}|exit-\d{1,3}|timeout|memory|disk|oom|lost|boot")


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
    @property
    def trace(self) -> str | None: ...


# The ways in which a lease ends. `arguments` is what settle.lua takes per outcome.

Arguments = tuple[str | bytes | int, ...]
_NONE: Final = ()


@dataclass(slots=True, unsafe_hash=True)  # frozen it would be five times as slow to make, and each job has one
class Completed:
    """The job is done. The result, JSON of at most 64 KiB, is kept as long as the completed job, `data` replaces the
    job's. With `next` it goes on in that queue instead, after `delay` seconds and the jobs of `depends`; `then` are
    jobs to put in the same step: dicts of put's arguments and a queue, or what `new_job` has made of them. Answer:
    bool; REFUSED if it or one of those would wait for itself; TOO_MANY_QUEUES; ENDLESS for a persistent job.
    """

    lease: Leased
    result: Any = None
    data: Any = UNSET
    next: str | None = None
    delay: Duration = 0
    depends: Sequence[str] = _NONE
    then: Iterable[Mapping[str, Any] | NewJob] = _NONE

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
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
        depends = checked_lines("depends", self.depends, MOST_PARENTS)
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
        """The same with what it puts as `NewJob`s, of which `weight` knows. Raises TypeError or ValueError."""
        if self.then is _NONE:
            return self
        puts = checked_each("then", self.then, "dicts of put's arguments")
        return replace(self, then=[_follower(one, self.lease.trace) for one in puts])

    @property
    def weight(self) -> int:
        """How many completions without follow-ups take the server as long. Of follow-ups that are `NewJob`s."""
        puts = sum(put.weight for put in self.then if isinstance(put, NewJob))
        return 1 + puts + 2 * len(tuple(self.depends)) // LINES_A_JOB

    def _check_no_next(self) -> None:
        if self.delay != 0 or (self.depends is not _NONE and tuple(self.depends)):
            name = "delay" if self.delay != 0 else "depends"
            raise ValueError(f"{name} must not be given without next: {getattr(self, name)!r:.100}")


def _follower(arguments: object, trace: str | None) -> NewJob:
    """Where no other trace is known, it has that of the job that it follows."""
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
    """The job failed and is to be tried again, after `delay` seconds. Answer: retries remaining, negative = it failed
    for good, in `group` (default failed-retries-<queue>). `default_retries` counts where the job has none of its own;
    `details` are kept with the failure.
    """

    lease: Leased
    delay: Duration | None = None
    group: str | None = None
    message: str | None = None
    default_retries: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        delay = "" if self.delay is None else duration_ms("delay", self.delay, least=0)
        group = "" if self.group is None else checked_name("group", self.group)
        budget = "" if self.default_retries is None else checked_int("default_retries", self.default_retries, 0)
        shown = group or f"failed-retries-{self.lease.queue}"
        failure = failure_json(shown, self.message or "", worker, when_unix, self.details)
        return "retry", self.lease.jid, self.lease.token, delay, group, budget, failure


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed for good; `data` replaces the job's. Answer: bool."""

    lease: Leased
    group: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    data: Any = UNSET

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        group = checked_name("group", self.group)
        failure = failure_json(group, self.message, worker, when_unix, self.details)
        return "fail", self.lease.jid, self.lease.token, group, failure, *to_new_data("data", self.data)


@dataclass(frozen=True, slots=True)
class Released:
    """The job goes back to the front: an interruption, or uncounted if it had not started. `reason`: what interrupted
    it, a word or a few (a name, as jids are), for its history. `delay`: it comes back in so many seconds, if it had not
    started. Answer: bool.
    """

    lease: Leased
    started: bool = True
    reason: str | None = None
    delay: float = 0

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        started = "1" if checked_flag("started", self.started) else ""
        reason = "" if self.reason is None else checked_name("reason", self.reason)
        delay = duration_ms("delay", self.delay, least=0)
        if delay and self.started:
            raise ValueError(f"delay must be 0 for a job that had started: {self.delay!r:.100}")
        return "release", self.lease.jid, self.lease.token, started, reason, delay or ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process that ran the job died; `reason` is SIG…, exit-N, timeout, memory, disk, oom, lost or boot. Answer:
    the new state (waiting, scheduled, failed). `default_max_deaths` counts where the job has none of its own.
    """

    lease: Leased
    reason: str
    message: str | None = None
    default_max_deaths: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
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
    """No handler of this worker has the job's klass: it is left to living peers that have one. Without such a peer it
    comes back for a newer worker, after 1, 2, 4, … seconds, at most `delay`; after config unknown-for it fails in
    group unknown-handler.
    Answer: the new state (waiting, scheduled, failed).
    """

    lease: Leased
    delay: float

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        """Raises TypeError or ValueError naming the argument."""
        return "unknown", self.lease.jid, self.lease.token, duration_ms("delay", self.delay, least=0)


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler of a persistent job has returned: it goes to the front, for another worker if there is one; after a
    while if it was held for less than 10 s. Of any other job this is its completion. Answer: bool.
    """

    lease: Leased

    def arguments(self, worker: str, when_unix: float) -> Arguments:
        return "return", self.lease.jid, self.lease.token


Outcome = Completed | Retried | Failed | Released | Died | Unknown | Returned


def needs_memory(arguments: Arguments) -> bool:
    """Whether a server with full memory refuses an outcome with these arguments: it puts jobs or brings large data."""
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
#: lua/include/stage.lua puts nothing into a new queue beyond these.
MOST_QUEUES: Final = 100_000
# True or False: complete, fail, release, return; an int: retry; a state: died, unknown; None: a stale retry, died or
# unknown. REFUSED: a complete whose next stage or follow-ups would wait for themselves, or for what 1,000 wait for;
# ENDLESS: one of a persistent job; TOO_MANY_QUEUES: one that would make a queue beyond MOST_QUEUES. Nothing has changed
# then.
Answer = bool | int | str | None


#: Of the message of a failure. Beyond that it is cut off.
MESSAGE_BYTES: Final = 65_536


def _shortened(message: str) -> str:
    """The message, or what fits of it and how long it was."""
    size = len(message.encode())
    if size <= MESSAGE_BYTES:
        return message
    return f"{message.encode()[:MESSAGE_BYTES].decode(errors='ignore')}… (the first {MESSAGE_BYTES} of {size} bytes)"


def failure_json(group: str, message: str, worker: str | None, when_unix: float, details: Mapping[str, Any]) -> bytes:
    """What is kept of a failure beside the job. Raises TypeError or ValueError naming the argument."""
    text = _shortened(checked_text("message", message))
    common = {"group": group, "message": text, "when": when_unix, "worker": worker}
    return to_json("details", {**details, **common})
