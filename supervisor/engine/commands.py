"""Runs in every process that speaks to Redis. Owns: how a call becomes a script with arguments, and its reply a value.
Must not: do I/O. The sync client, the async client and the master each run these in their own way.

Every builder checks what it is given and raises TypeError or ValueError naming the argument, before anything is sent.
`now` is an injected clock's time in unix seconds; None = the server's clock.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from supervisor import clock
from supervisor.engine import scripts
from supervisor.engine.jobs import (
    DEFAULT_RETRIES,
    UNSET,
    Answer,
    Job,
    LeaseRecord,
    NewJob,
    Outcome,
    checked_int,
    milliseconds,
    to_data,
)
from supervisor.engine.keys import checked_name
from supervisor.engine.scripts import Script

T = TypeVar("T")
Argument = str | bytes | int

MOST = 1000  # of anything in one batch: Redis does nothing else meanwhile, and Lua's stack has an end


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of one script. `parse` turns the reply, as redis-py gives it with bytes, into a value."""

    script: Script
    args: tuple[Argument, ...]
    parse: Callable[[Any], T]

    def wire(self, prefix: str) -> tuple[Argument, ...]:
        """The whole Redis command. NOSCRIPT means that it was not carried out: load `script.text`, send it again."""
        return ("EVALSHA", self.script.sha, 1, prefix, *self.args)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a lease gave. `next_at_unix`: when to ask again; None = no time is known, or all asked for was given.
    `now_unix` is the time of the answer by the same clock, so that differences need no clock of one's own.
    """

    now_unix: float
    next_at_unix: float | None
    leases: list[LeaseRecord]


class Renewal(NamedTuple):
    """One lease to renew: `started` if the job is known to have begun, `data` to replace the job's."""

    jid: str
    token: int
    started: bool = False
    data: Any = UNSET


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume found: the new end of each known lease in unix seconds (0.0 = lost), and how many jobs that the
    worker did not know of went back to the front.
    """

    expires: list[float]
    handed_back: int


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs of a queue are in each state. `waiting` counts the front and what is due; `stalled` leases have run
    out and were not taken over yet.
    """

    waiting: int
    running: int
    stalled: int
    scheduled: int


@dataclass(frozen=True, slots=True)
class Timing:
    """The shortest heartbeat and the longest grace of some queues, in seconds."""

    heartbeat_s: float
    grace_s: float


# Verbs that move jobs.


def put(jobs: Sequence[NewJob], *, now: float | None = None) -> Command[list[bool]]:
    """Creates or moves up to 1,000 jobs, all or none. Answers per job if anything was done (add of a known jid: no)."""
    _checked_batch("jobs", jobs)
    return Command(scripts.PUT, (_ms(now), *(a for job in jobs for a in job.arguments)), _parse_bools)


def lease(
    worker: str,
    queues: Sequence[str],
    count: int = 1,
    *,
    ttl_s: float | None = None,
    starting: int | None = None,
    number: int | None = None,
    takeover: bool = True,
    now: float | None = None,
) -> Command[Grant]:
    """Leases up to `count` (0 to 1,000) jobs of the queues, in their order. The first `starting` of them (default: all)
    start at once. A `number` below the worker's last one gives nothing. `takeover`: if lost workers' jobs may be had.
    """
    checked_int("count", count, 0, MOST)
    starts = count if starting is None else checked_int("starting", starting, 0)
    args = (
        _ms(now), checked_name("worker", worker), _number(number), count, starts, _ttl(ttl_s), "1" if takeover else "",
        *_checked_queues(queues),
    )  # fmt: skip
    return Command(scripts.LEASE, args, lambda reply: _parse_grant(worker, reply))


def renew(
    worker: str, entries: Sequence[Renewal], *, ttl_s: float | None = None, now: float | None = None
) -> Command[list[float]]:
    """Renews up to 1,000 leases. Answers each one's new end in unix seconds, 0.0 = lost."""
    _checked_batch("entries", entries)
    args: list[Argument] = [_ms(now), checked_name("worker", worker), _ttl(ttl_s)]
    for jid, token, started, data in entries:
        kind, raw = "", b""
        if data is not UNSET:
            raw, own = to_data("data", data)
            kind = "bytes" if own else "json"
        args += (jid, token, "1" if started else "", kind, raw)
    return Command(scripts.RENEW, tuple(args), _parse_times)


def settle(
    worker: str, outcomes: Sequence[Outcome], *, number: int | None = None, now: float | None = None
) -> Command[list[Answer]]:
    """Ends up to 1,000 leases. Sent again under the same `number` it changes nothing and is answered as before; under a
    smaller one than the worker's last, every outcome is stale.
    """
    _checked_batch("outcomes", outcomes)
    when_unix = clock.unix() if now is None else now
    args: list[Argument] = [_ms(now), checked_name("worker", worker), _number(number)]
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be Completed, Retried, Failed, Released, Died or Unknown: {outcome!r:.100}")
        args += outcome.arguments(worker, when_unix)
    n = len(outcomes)
    return Command(scripts.SETTLE, tuple(args), lambda reply: _parse_answers(n, reply))


def resume(
    worker: str, number: int, known: Iterable[tuple[str, int]], *, ttl_s: float | None = None, now: float | None = None
) -> Command[Resumed]:
    """After an exchange without an answer: renews the `known` (jid, token), hands back whatever else is held in the
    worker's name, and refuses from now on what was sent before. `number` must be above every earlier one, also that of
    an earlier resume; else Redis answers an error beginning with SUPERSEDED.
    """
    args: list[Argument] = [_ms(now), checked_name("worker", worker), _number(number), _ttl(ttl_s)]
    for jid, token in known:
        args += (jid, token)
    return Command(scripts.RESUME, tuple(args), _parse_resumed)


def sweep(count: int = 100, *, now: float | None = None) -> Command[int]:
    """Takes up to `count` (1 to 1,000) jobs from workers lost for longer than the grace. Answers how many."""
    return Command(scripts.SWEEP, (_ms(now), checked_int("count", count, 1, MOST)), int)


def deregister(worker: str, *, now: float | None = None) -> Command[int]:
    """Forgets a worker; what it holds goes to the front, uncounted. Answers how many jobs."""
    return Command(scripts.DEREGISTER, (_ms(now), checked_name("worker", worker)), int)


def tell(worker: str, message: str | bytes) -> Command[int]:
    """Leaves a hint in a worker's mailbox. Answers how many lie there."""
    if not isinstance(message, str | bytes):
        raise TypeError(f"message must be str or bytes, not {type(message).__name__}: {message!r:.100}")
    return Command(scripts.TELL, (checked_name("worker", worker), message), int)


# Verbs that only look.


def jobs(jids: Sequence[str], *, now: float | None = None) -> Command[list[Job | None]]:
    """Up to 1,000 jobs as they are; None where there is none."""
    _checked_batch("jids", jids)
    return Command(scripts.JOB, (_ms(now), *(checked_name("jid", jid) for jid in jids)), _parse_jobs)


def failed_groups(*, now: float | None = None) -> Command[dict[str, int]]:
    """How many failed jobs each group has."""
    return Command(scripts.FAILED, (_ms(now), "", 0, 0), _parse_groups)


def failed_jobs(
    group: str, start: int = 0, limit: int = 25, *, now: float | None = None
) -> Command[tuple[int, list[Job]]]:
    """The size of a group of failed jobs, and up to `limit` (0 to 1,000) of them, newest first, from `start` on."""
    page = checked_int("start", start, 0), checked_int("limit", limit, 0, MOST)
    return Command(scripts.FAILED, (_ms(now), checked_name("group", group), *page), _parse_failed)


def counts(queues: Sequence[str] = (), *, now: float | None = None) -> Command[dict[str, Counts]]:
    """The counts of some queues, or of all that were ever put to, in the order of their first put."""
    names = _checked_queues(queues) if queues else ()
    return Command(scripts.COUNTS, (_ms(now), *names), _parse_counts)


def timing(queues: Sequence[str]) -> Command[Timing]:
    """How a worker of these queues is to time itself, by their configuration."""
    return Command(scripts.TIMING, _checked_queues(queues), lambda reply: Timing(reply[0] / 1000, reply[1] / 1000))


# Arguments.


def _ms(now: float | None) -> int | str:
    return "" if now is None else milliseconds("now", now)


def _ttl(ttl_s: float | None) -> int | str:
    return "" if ttl_s is None else milliseconds("ttl", ttl_s)


def _number(number: int | None) -> int | str:
    return "" if number is None else checked_int("number", number, 0)


def _checked_batch(argument: str, values: Sequence[object]) -> None:
    if len(values) > MOST:
        raise ValueError(f"{argument} must be at most {MOST} at a time, not {len(values)}")


def _checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str | bytes):
        raise TypeError(f"queues must be a list of names, not {type(queues).__name__}: {queues!r:.100}")
    names = dict.fromkeys(checked_name("queues", queue) for queue in queues)
    checked_int("queues", len(names), 1, MOST)
    return tuple(names)


# Replies.


def _parse_bools(reply: list[int]) -> list[bool]:
    return [answer == 1 for answer in reply]


def _parse_times(reply: list[int]) -> list[float]:
    return [ms / 1000 for ms in reply]


def _parse_grant(worker: str, reply: list[Any]) -> Grant:
    now_ms, next_ms, token = reply[0], reply[1], reply[2]
    leases = [LeaseRecord(worker, token + i, row) for i, row in enumerate(reply[3:])]
    return Grant(now_ms / 1000, next_ms / 1000 if next_ms else None, leases)


_ANSWERS: dict[bytes, Answer] = {
    b"1": True,
    b"0": False,
    b"": None,
    b"waiting": "waiting",
    b"scheduled": "scheduled",
    b"failed": "failed",
}


def _parse_answers(n: int, reply: bytes) -> list[Answer]:
    if n == 0:
        return []
    return [_ANSWERS[word] if word in _ANSWERS else int(word[1:]) for word in reply.split(b",")]


def _parse_resumed(reply: list[int]) -> Resumed:
    return Resumed([ms / 1000 for ms in reply[1:]], reply[0])


def _parse_job(row: list[Any]) -> Job:
    jid, state, expires_ms, due_ms, data, failure, result = row[:7]
    fields = {row[i].decode(): row[i + 1].decode() for i in range(7, len(row), 2)}
    token, _, worker = fields.get("owner", "").partition(":")
    return Job(
        jid=jid.decode(),
        state=state.decode(),
        queue=fields["queue"],
        klass=fields["klass"],
        raw=data or b"",
        is_bytes="bytes" in fields,
        priority=int(fields.get("priority", 0)),
        retries=int(fields.get("retries", DEFAULT_RETRIES)),
        timeout_s=int(fields["timeout"]) / 1000 if "timeout" in fields else None,
        max_deaths=int(fields["max_deaths"]) if "max_deaths" in fields else None,
        failures=int(fields.get("failures", 0)),
        deaths=int(fields.get("deaths", 0)),
        interruptions=int(fields.get("interruptions", 0)),
        put_unix=int(fields["put"]) / 1000,
        due_unix=due_ms / 1000 if due_ms else None,
        expires_unix=expires_ms / 1000 if expires_ms else None,
        worker=worker or None,
        token=int(token) if token else None,
        started="started" in fields,
        failure=orjson.loads(failure) if failure else None,
        result=orjson.loads(result) if result else None,
    )


def _parse_jobs(reply: list[Any]) -> list[Job | None]:
    return [_parse_job(row) if row else None for row in reply]


def _parse_groups(reply: list[Any]) -> dict[str, int]:
    return {reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)}


def _parse_failed(reply: list[Any]) -> tuple[int, list[Job]]:
    return reply[0], [_parse_job(row) for row in reply[1:]]


def _parse_counts(reply: list[Any]) -> dict[str, Counts]:
    return {row[0].decode(): Counts(*row[1:]) for row in reply}
