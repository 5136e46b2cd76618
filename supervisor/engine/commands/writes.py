"""Builds the commands that change something, and parses their replies. Runs in every process that speaks to Redis.

Must not do I/O: the sync client, the async client and the master each run commands in their own way. Every builder
checks its arguments and raises TypeError or ValueError naming one, before anything is sent. `now` is an injected
clock's time in unix seconds; None = the server's clock. queries.py has the commands that only read.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from supervisor import clock
from supervisor.engine.commands.payloads import LOST as LOST_PAYLOAD
from supervisor.engine.commands.payloads import PAIR, LeftOut, SentBehind, place_of_payload
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import ASK_S as ASK_S
from supervisor.engine.model.bounds import BY_BYTES as BY_BYTES
from supervisor.engine.model.bounds import LOGIN, Login
from supervisor.engine.model.bounds import MOST as MOST
from supervisor.engine.model.jobs import MOST_TAGS, SHORT, LeaseRecord, NewJob, dense_lease
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.outcomes import (
    ENDLESS,
    LARGE_DATA_BYTES,
    LATER,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Outcome,
    failure_json,
    needs_memory,
)
from supervisor.engine.model.queue_order import Queues, checked_order
from supervisor.engine.model.recurring import Declared, DueCron, Recurring, changes_of, new_recurrence, parse_due
from supervisor.engine.model.replay import SIGNAL_BYTES
from supervisor.engine.model.scripts import Script
from supervisor.engine.model.validation import (
    EXACT_INT,
    UNSET,
    Duration,
    checked_each,
    checked_int,
    checked_progress,
    checked_text,
    duration_ms,
    milliseconds,
    to_json,
    to_new_data,
)

T = TypeVar("T", covariant=True)
Argument = str | bytes | int

#: renew's answers for a lease that is lost, and for one whose job was cancelled.
LOST: Final = 0.0
GONE: Final = -1.0
LOG_BYTES: Final = 4096
ARGUMENT_BYTES: Final = 4096
ANSWER_BYTES: Final = 2**20
_DECLARED_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of one script. `parse` turns the reply (redis-py's, with bytes) into a value.

    `left_out(prefix, reply)` returns what the reply lacks, if it may lack something: that must be read, and filled in,
    before the reply is parsed.
    """

    script: Script
    args: tuple[Argument, ...]
    parse: Callable[[Any], T]
    left_out: Callable[[str, Any], SentBehind] | None = None

    def wire(self, prefix: str) -> tuple[Argument, ...]:
        """Return the whole Redis command. NOSCRIPT means that it was not run: load `script.text` and send it again."""
        return ("EVALSHA", self.script.sha, 1, prefix, *self.args)

    def wire_with_script(self, prefix: str) -> tuple[Argument, ...]:
        """Return the same with the script itself, for a proxy that passes no SCRIPT LOAD on."""
        return ("EVAL", self.script.text, 1, prefix, *self.args)


@dataclass(frozen=True, slots=True)
class Grant:
    """The result of a lease.

    `now_unix` is the time of the reply by the same clock. `next_at_unix`: when to ask again; None if no time is known
    or all jobs asked for were given. `due`: cron recurrences to `spawn`. `unreadable`: jids of damaged records, whose
    leases are left to expire, so that the jobs fail in the end. `wish_number`: how many requests
    to this worker there were so far. `starting`: the first so many of `leases` count as started. `acknowledged`: False
    if too few replicas have the leases of jobs that must not start twice.
    """

    now_unix: float
    next_at_unix: float | None
    leases: list[LeaseRecord]
    due: list[DueCron]
    unreadable: Sequence[str] = ()
    wish_number: int = 0
    starting: int = 0
    acknowledged: bool = True


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: how many jobs were taken from lost workers, and the cron recurrences that are due.

    `now_unix` is the time of the reply. `next_offset`: where to go on, 0 after the last queue.
    """

    now_unix: float
    taken: int
    next_offset: int
    due: list[DueCron]


class Renewal(NamedTuple):
    """One lease to renew.

    `started`: the job has begun. `data` replaces the job's data. `progress` is a fraction and a text. `state` is a
    checkpoint as JSON, from `to_state`; or the result of the `step` of this name.
    """

    jid: str
    token: int
    started: bool = False
    data: Any = UNSET
    progress: tuple[float, str] | None = None
    state: bytes = b""
    step: str = ""


class Streamed(NamedTuple):
    """`chunks` that one lease streams, as `to_chunk` packs them.

    `before`: how many it has streamed earlier, so that they can be sent again. None: they are sent once.
    """

    jid: str
    token: int
    before: int | None
    chunks: Sequence[bytes]


class Followed(NamedTuple):
    """The stream of a job: how the job has ended, empty if it has not, and the id of the stream's last entry.

    `state` is "gone" if only the stream is left, which says at its end how the job has ended.
    """

    state: str
    position: str


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """The result of a resume.

    `expires`: the new expiry of each known lease in unix seconds, LOST or GONE. `handed_back`: how many jobs unknown to
    the worker went back to the front. `now_unix`: the server's time.
    """

    expires: list[float]
    handed_back: int
    now_unix: float


class Renewals(list[float]):
    """The new expiry of each lease in unix seconds, LOST or GONE.

    `now_unix`: the server's time. `cancelled_by`: who cancelled the jobs that are GONE, by index, if known.
    """

    def __init__(self, expires: Iterable[float], now_unix: float, cancelled_by: Mapping[int, str]) -> None:
        super().__init__(expires)
        self.now_unix = now_unix
        self.cancelled_by = cancelled_by


def put(jobs: Sequence[NewJob], *, now: float | None = None) -> Command[list[bool | str]]:
    """Create or move up to 1,000 jobs, all or none.

    Answers per job whether it changed (add changes no known jid), or the jid of the job that holds its claim.
    """
    checked_batch("jobs", jobs)
    args: list[Argument] = [now_ms(now)]
    head: Argument | None = None
    for job in jobs:
        arguments = job.arguments
        if len(arguments) == SHORT:  # most jobs of a call have the same queue, klass and options
            args += ("" if arguments[0] == head else arguments[0], *arguments[1:])
            head = arguments[0]
        else:
            args += arguments
            head = None
    return Command(scripts.PUT, tuple(args), _parse_puts)


def lease(
    worker: str,
    queues: Sequence[str],
    count: int = 1,
    *,
    ttl_s: float | None = None,
    starting: int | None = None,
    number: int | None = None,
    takeover: bool = True,
    order: str = "strict",
    weights: Mapping[str, int] | None = None,
    woken: bool = False,
    waited: bool = False,
    once: Sequence[str] = (),
    now: float | None = None,
) -> Command[Grant]:
    """Lease up to `count` (0 to 1,000) jobs of the queues, in one of queue_order.ORDERS.

    The first `starting` jobs (default: all) start at once. A `number` below the worker's last one gets nothing; the
    number of a forgotten worker gets an error beginning with DEREGISTERED. `takeover`: jobs of lost workers may be
    taken. `weights` are 1 by default. `woken`: a wake-up key has called. `waited`: the lease is sent behind a wait for
    a wake-up key, so other exchanges may have higher numbers. `once`: klasses whose jobs become at-most-once with this
    lease, unless they were put with at_most_once=False.
    """
    checked_int("count", count, 0, MOST)
    starts = count if starting is None else checked_int("starting", starting, 0)
    args: list[Argument] = [
        now_ms(now), checked_name("worker", worker), _number(number), count, starts, _ttl(ttl_s),
        "1" if takeover else "", checked_order(order), 0 if order == "strict" else random.getrandbits(31),
        "2" if waited else "1" if woken else "", "\n".join(once),
    ]  # fmt: skip
    for queue in checked_queues(queues):
        args += (queue, weights.get(queue, 1) if weights else 1)
    return Command(
        scripts.LEASE,
        tuple(args),
        lambda reply: _parse_grant(worker, starts, reply),
        lambda prefix, reply: LeftOut(prefix, worker, reply),
    )


def renew(
    worker: str,
    entries: Sequence[Renewal],
    *,
    number: int | None = None,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[Renewals]:
    """Renew up to 1,000 leases. Answers the new expiry of each in unix seconds, LOST, or GONE for a cancelled job.

    A `number` below the worker's last one stores no checkpoint and no step. If one renewal brings more than 64 KiB of
    data, a server with full memory refuses them all with an error beginning with OOM.
    """
    checked_batch("entries", entries)
    args: list[Argument] = [now_ms(now), checked_name("worker", worker), _number(number), _ttl(ttl_s)]
    script = scripts.RENEW
    for jid, token, started, data, progress, state, step in entries:
        report: tuple[Argument, ...] = ("", "")
        if progress is not None:
            fraction, text = checked_progress(*progress)
            report = repr(fraction), text
        kind, raw = to_new_data("data", data)
        if len(raw) > LARGE_DATA_BYTES:
            script = scripts.within_memory(scripts.RENEW)
        args += (jid, token, "1" if started else "", kind, raw, *report, step, state)
    return Command(script, tuple(args), _parse_renewals)


def stream(worker: str, entries: Sequence[Streamed], *, now: float | None = None) -> Command[list[bool]]:
    """Append chunks of up to 1,000 leases to the streams of their jobs. Answers of each lease whether it is held.

    What is sent again with its `before` changes nothing. A server with full memory refuses them all with an error
    beginning with OOM.
    """
    checked_batch("entries", entries)
    args: list[Argument] = [now_ms(now), checked_name("worker", worker)]
    for jid, token, before, chunks in entries:
        args += (jid, token, "" if before is None else before, len(chunks), b"".join(chunks))
    return Command(scripts.STREAM, tuple(args), lambda reply: [answer == ord("1") for answer in reply])


def settle(
    worker: str, outcomes: Sequence[Outcome], *, number: int | None = None, now: float | None = None
) -> Command[list[Answer]]:
    """End up to 1,000 leases.

    Sent again under the same `number` it changes nothing and gets the same reply; below the worker's last number, every
    outcome is stale. If one outcome puts jobs or brings more than 64 KiB of data, a server with full memory refuses
    them all with an error beginning with OOM.
    """
    checked_batch("outcomes", outcomes)
    when_unix = clock.unix() if now is None else now
    script, in_short = scripts.SETTLE, _InShort()
    order: list[int] = []  # of the outcomes that are not sent in short: the first one, and all behind it
    rest: list[Argument] = []
    for index, outcome in enumerate(outcomes):
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be ends of leases, such as Completed or Failed: {outcome!r:.100}")
        arguments = outcome.arguments(worker, when_unix)
        granted_ms = getattr(outcome.lease, "granted_ms", None)
        if not rest and granted_ms is not None and arguments[0] == "complete" and len(arguments) == _COMPLETE:
            in_short.add(index, outcome.lease.queue, granted_ms, arguments)
            continue
        if script is scripts.SETTLE and needs_memory(arguments):
            script = scripts.within_memory(scripts.SETTLE)
        rest += arguments
        order.append(index)
    first, short = in_short.arguments()
    args = now_ms(now), checked_name("worker", worker), _number(number), *short, *rest
    return Command(script, args, partial(_parse_answers, [*first, *order]))


_COMPLETE: Final = 4  # arguments of a completion without followers


class _InShort:
    """The completions of jobs whose records were dense when they were leased, as settle.lua takes them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], list[tuple[int, tuple[Argument, ...]]]] = {}

    def add(self, index: int, queue: str, granted_ms: int, arguments: tuple[Argument, ...]) -> None:
        self._groups.setdefault((queue, granted_ms), []).append((index, arguments))

    def arguments(self) -> tuple[list[int], list[Argument]]:
        """Return the indexes of the outcomes in the order in which they are sent, and the arguments."""
        groups = sorted(self._groups.items())
        sent = [one for _, group in groups for one in group]
        if not sent:
            return [], [0]
        results = [(at, one[3]) for at, (_, one) in enumerate(sent, 1) if one[3] != b""]
        args: list[Argument] = [len(sent), *(one[1] for _, one in sent), *(one[2] for _, one in sent)]
        args.append(len(groups))
        for (queue, granted_ms), group in groups:
            args += (queue, granted_ms, len(group))
        args += (len(results), *chain.from_iterable(results))
        return [index for index, _ in sent], args


def resume(
    worker: str,
    number: int,
    known: Iterable[tuple[str, int]],
    *,
    highest: int = 0,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[ResumeResult]:
    """Recover after an exchange without a reply.

    Renews the `known` (jid, token), hands back every other lease of the worker, and refuses what was sent before.
    `number` must be above every earlier one, else Redis answers an error beginning with SUPERSEDED. `highest` is the
    highest token that this worker ever got: later tokens are above it, even if the server has lost its last writes.
    """
    args: list[Argument] = [
        now_ms(now), checked_name("worker", worker), _number(number), _ttl(ttl_s), checked_int("highest", highest, 0),
    ]  # fmt: skip
    for jid, token in known:
        args += (jid, token)
    return Command(scripts.RESUME, tuple(args), _parse_resumed)


def sweep(
    count: int = 100,
    *,
    takeover: bool = True,
    offset: int = 0,
    worker: str | None = None,
    queues: Sequence[str] = (),
    now: float | None = None,
) -> Command[Swept]:
    """Do maintenance on 200 queues, from `offset` on.

    Takes up to `count` (1 to 1,000) jobs from workers lost for longer than the grace (if `takeover`), puts due
    recurrences, and drops what has outlived its retention. The `worker` counts as seen. Its `queues` are not forgotten.
    """
    args = now_ms(now), checked_int("count", count, 1, MOST), "1" if takeover else "", offset, worker or ""
    return Command(scripts.SWEEP, (*args, *queues[:MOST]), _parse_swept)


def deregister(worker: str, *, own: bool = False, by: str | None = None, now: float | None = None) -> Command[int]:
    """Forget a worker and return its jobs to the front, uncounted. Returns how many.

    `own`: the worker leaves by itself; any other worker gets a hint. `by` names who asks.
    """
    args = now_ms(now), checked_name("worker", worker), "1" if own else "", checked_by(by)
    return Command(scripts.DEREGISTER, args, int)


def move(
    jid: str, queue: str, delay: Duration = 0, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Move a job in any state to a queue. Answers False if there is none. `by` names who asks."""
    delay_ms = duration_ms("delay", delay, least=0)
    args = checked_name("queue", queue), checked_name("jid", jid), delay_ms, checked_by(by)
    return Command(scripts.MOVE, (now_ms(now), *args), bool)


def cancel(jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[str]]:
    """Delete up to 1,000 jobs, all or none, except completed ones. Answers those that existed.

    `by` names who asks. Redis answers an error beginning with DEPENDENCY if a job that is not listed waits for one of
    them.
    """
    return Command(scripts.CANCEL, (now_ms(now), checked_by(by), *checked_jids("jids", jids)), parse_names)


def fail(jid: str, group: str, message: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Fail a job by hand, in any state. Answers False if there is none. `by` names who asks."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    args = now_ms(now), checked_name("jid", jid), group, failure, checked_by(by)
    return Command(scripts.FAIL, args, bool)


def unfail(
    group: str,
    queue: str | None = None,
    count: int = 25,
    *,
    klass: str | None = None,
    data: object = UNSET,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put up to `count` (1 to 1,000) failed jobs of a group back, oldest first. Answers how many.

    Each goes to its own queue unless one is given, with the new klass or data if given. An entry that is still no valid
    job stays failed. `by` names who asks.
    """
    name, most = checked_name("group", group, GROUP_BYTES), checked_int("count", count, 1, MOST)
    return Command(scripts.UNFAIL, (now_ms(now), name, *_back(queue, most, klass, data, by), "", ""), int)


def unfail_job(
    jid: str,
    queue: str | None = None,
    *,
    klass: str | None = None,
    data: object = UNSET,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put one failed job back, as `unfail` does. Answers 0 if it is not failed, or still no valid job."""
    return unfail_jobs([jid], queue, klass=klass, data=data, by=by, now=now)


def unfail_jobs(
    jids: Sequence[str],
    queue: str | None = None,
    *,
    group: str | None = None,
    klass: str | None = None,
    data: object = UNSET,
    of_queue: str = "",
    of_klass: str = "",
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put those of up to 1,000 jobs back that have failed, as `unfail` does. Answers how many.

    Only those of the group, of the queue `of_queue` and the klass `of_klass`, if given.
    """
    of_group = "" if group is None else checked_name("group", group, GROUP_BYTES)
    back = _back(queue, MOST, klass, data, by)
    args = now_ms(now), of_group, *back, of_queue, of_klass, *checked_jids("jids", jids)
    return Command(scripts.UNFAIL, args, int)


def _back(queue: str | None, count: int, klass: str | None, data: object, by: str | None) -> tuple[Argument, ...]:
    into, of_klass = (checked_name(n, v) if v is not None else "" for n, v in (("queue", queue), ("klass", klass)))
    return into, count, of_klass, *to_new_data("data", data), checked_by(by)


def release(jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[bool]]:
    """Take up to 1,000 running jobs from their workers, to the front. Answers False for each that does not run.

    `by` names who asks.
    """
    return Command(scripts.RELEASE, (now_ms(now), checked_by(by), *checked_jids("jids", jids)), _parse_bools)


def signal(
    jid: str, name: str, value: object = None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Send a job a signal, in place of an earlier one of this name. Answers False if it is gone or complete.

    `by` names who asks.

    Redis answers an error beginning with REFUSED for the 101st signal of a job.
    """
    text = to_json("value", value)
    if len(text) > SIGNAL_BYTES:
        raise ValueError(f"value must have at most {SIGNAL_BYTES} bytes as JSON, not {len(text)}")
    args = now_ms(now), checked_name("jid", jid), checked_name("name", name), text, checked_by(by)
    return Command(scripts.SIGNAL, args, bool)


def set_priority(jid: str, priority: int, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Change a job's priority. Answers False if there is none. `by` names who asks."""
    args = now_ms(now), checked_name("jid", jid), checked_int("priority", priority, -EXACT_INT), checked_by(by)
    return Command(scripts.PRIORITY, args, bool)


def tag(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Add tags to a job. Answers all its tags; None if there is no such job."""
    args = now_ms(now), "add", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.TAG, args, _parse_names_or_none)


def untag(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Remove tags from a job. Answers the tags left; None if there is no such job."""
    args = now_ms(now), "remove", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.TAG, args, _parse_names_or_none)


def track(jid: str, *, now: float | None = None) -> Command[bool | None]:
    """Track a job. Answers False if it was tracked already, None if there is no such job."""
    args = now_ms(now), "track", checked_name("jid", jid)
    return Command(scripts.TRACK, args, lambda reply: None if reply is None else bool(reply))


def untrack(jid: str, *, now: float | None = None) -> Command[bool]:
    """End the tracking of a job, also of one that is gone. Answers False if it was not tracked."""
    return Command(scripts.TRACK, (now_ms(now), "untrack", checked_name("jid", jid)), bool)


def log(jid: str, message: str, data: object = None, *, now: float | None = None) -> Command[bool]:
    """Add a line to a job's history. Answers False if there is no such job."""
    line = {"what": "log", "message": checked_text("message", message)}
    if data is not None:
        line["data"] = data  # type: ignore[assignment]  # to_json raises for other values
    text = to_json("data", line)
    if len(text) > LOG_BYTES:
        raise ValueError(f"message and data must have at most {LOG_BYTES} bytes as JSON, not {len(text)}")
    return Command(scripts.LOG, (now_ms(now), checked_name("jid", jid), text), bool)


def depend(jid: str, parents: Sequence[str], *, now: float | None = None) -> Command[bool]:
    """Add dependencies to a job in state depends. Answers False if there is none.

    Redis answers an error beginning with DEPENDENCY if the job is in another state, or would wait for itself.
    """
    args = now_ms(now), checked_name("jid", jid), "on", *checked_jids("jids", parents)
    return Command(scripts.DEPEND, args, bool)


def undepend(jid: str, parents: Sequence[str] | None, *, now: float | None = None) -> Command[bool]:
    """Remove dependencies (None: all) from a job in state depends. Answers as `depend` does."""
    jids = () if parents is None else checked_jids("jids", parents)
    args = now_ms(now), checked_name("jid", jid), "all" if parents is None else "off", *jids
    return Command(scripts.DEPEND, args, bool)


def forget(queue: str, *, by: str | None = None, now: float | None = None) -> Command[bool | None]:
    """Remove a queue from the list of queues. Answers False if it was not there, None if another call is needed.

    `by` names who asks. Redis answers an error beginning with REFUSED if the queue is not empty.
    """
    args = now_ms(now), checked_name("queue", queue), checked_by(by)
    return Command(scripts.FORGET, args, lambda found: None if found < 0 else bool(found))


def recur(
    queue: str,
    klass: str,
    data: object,
    options: Mapping[str, Any],
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[str]:
    """Create a recurring job, or replace the one with this jid. Answers the jid. `by` names who asks.

    The first time of a cron is computed here, by this machine's clock if none is injected.
    """
    new = new_recurrence(queue, klass, data, options, clock.unix() if now is None else now)
    return Command(scripts.RECUR, (now_ms(now), "recur", checked_by(by), *new.arguments), lambda _reply: new.jid)


def update_recurring(
    known: Recurring, changes: Mapping[str, Any], *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Change the given settings of a recurring job. Answers False if it no longer exists. `by` names who asks."""
    new = changes_of(known, changes, clock.unix() if now is None else now)
    return Command(scripts.RECUR, (now_ms(now), "update", checked_by(by), *new.arguments), bool)


def declare(
    plain: Sequence[str], recurring: Sequence[Declared], only_missing: bool = False, *, now: float | None = None
) -> Command[tuple[list[str], list[str]]]:
    """Put and change the recurring jobs that code declares, and remove those that it has declared before.

    `plain`: klasses of the code that do not recur, at most 1,000. `recurring`: at most 100. What was declared in the
    same way before stays as it is, also if it was changed or removed since; with `only_missing` whatever was declared
    before. Answers the jids put or changed, and those removed.
    """
    checked_batch("recurring", recurring)
    names = "\n".join(checked_name("plain", klass) for klass in plain)
    args: list[Argument] = [now_ms(now), names, int(only_missing)]
    for one in recurring:
        args += (one.digest, *one.recurrence.arguments)
    return Command(scripts.DECLARE, tuple(args), _parse_declared)


def declarations(
    plain: Iterable[str], recurring: Sequence[Declared], only_missing: bool = False
) -> list[Command[tuple[list[str], list[str]]]]:
    """Return the calls of `declare` for all that code declares. With `only_missing` none of them removes anything."""
    named = [] if only_missing else list(islice(plain, MOST))
    return [
        declare([] if at else named, recurring[at : at + _DECLARED_AT_ONCE], only_missing)
        for at in range(0, max(1, len(recurring)), _DECLARED_AT_ONCE)
    ]


def _parse_declared(reply: list[list[bytes]]) -> tuple[list[str], list[str]]:
    put, removed = ([jid.decode() for jid in jids] for jids in reply)
    return put, removed


def unrecur(jid: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Remove a recurring job. Answers False if there was none. `by` names who asks."""
    return Command(scripts.UNRECUR, (now_ms(now), checked_name("jid", jid), checked_by(by)), bool)


def tag_recurring(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Add tags to a recurring job, for its later jobs. Answers all its tags; None if there is none."""
    args = now_ms(now), "add", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.RECURTAG, args, _parse_names_or_none)


def untag_recurring(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Remove tags from a recurring job. Answers the tags left; None if there is none."""
    args = now_ms(now), "remove", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.RECURTAG, args, _parse_names_or_none)


def spawn(due: DueCron, times: Sequence[float], next_unix: float | None, *, now: float | None = None) -> Command[bool]:
    """Put the jobs of a due cron recurrence for these times (at most 1,000) and set its next time; without one it ends.

    Answers False if another process has done so.
    """
    checked_batch("times", times)
    at_ms = [milliseconds("times", time) for time in times]
    args = now_ms(now), due.jid, due.due_ms, "" if next_unix is None else milliseconds("next_unix", next_unix), *at_ms
    return Command(scripts.SPAWN, args, bool)


def skills(
    worker: str,
    klasses: Iterable[str],
    queues: Iterable[str],
    shapes: Mapping[str, str] | None = None,
    release: str = "",
    *,
    now: float | None = None,
) -> Command[bool]:
    """Report a worker's klasses and queues, at most 1,000 of each. Answers False for an unknown worker.

    From then on it leases the jobs whose klass other workers do not know. `shapes`: by klass, a digest of the data that
    the handler takes. From then on it leases the jobs whose data do not have the shape that other workers take.
    """
    lines = (
        "\n".join(checked_name("klasses", klass) for klass in islice(klasses, MOST)),
        "\n".join(islice(queues, MOST)),
        "\n".join(f"{klass}\t{checked_name('shapes', shape)}" for klass, shape in islice((shapes or {}).items(), MOST)),
        checked_name("release", release) if release else "",
    )
    return Command(scripts.SKILLS, (now_ms(now), checked_name("worker", worker), *lines), bool)


def describe(shapes: Iterable[str], schemas: Mapping[str, str] | None = None) -> Command[list[str]]:
    """Store JSON schemas of data by their shapes, and keep those of `shapes` on; at most 1,000 of each.

    Answers those of `shapes` whose schemas Redis does not have. A schema expires max-worker-age after the last worker
    with its shape was seen.
    """
    kept = "\n".join(checked_name("shapes", shape) for shape in islice(shapes, MOST))
    pairs = islice((schemas or {}).items(), MOST)
    stored = [text for shape, schema in pairs for text in (checked_name("schemas", shape), schema)]
    return Command(scripts.DESCRIBE, (kept, *stored), parse_names)


def tell(worker: str, message: str | bytes) -> Command[int]:
    """Leave a hint in a worker's mailbox. Answers how many hints it holds."""
    if not isinstance(message, str | bytes):
        raise TypeError(f"message must be str or bytes, not {type(message).__name__}: {message!r:.100}")
    return Command(scripts.TELL, (checked_name("worker", worker), message), int)


def ask(
    question: str,
    workers: Sequence[str] | str | None,
    what: str,
    argument: object = None,
    *,
    stands_s: float = ASK_S,
    by: str | None = None,
    now: float | None = None,
) -> Command[list[str]]:
    """Send a request to workers (up to 1,000; None: all live ones) under a new id. Answers the workers that got it.

    Redis answers an error beginning with REFUSED if a named worker is unknown. The request expires after `stands_s`.
    `by` names who asks.
    """
    names: tuple[str, ...] = ()
    if isinstance(workers, str):
        names = (checked_name("workers", workers),)
    elif workers is not None:
        names = checked_names("workers", tuple(checked_each("workers", workers, "names")), MOST)
    text = b"" if argument is None else to_json("argument", argument)
    if len(text) > ARGUMENT_BYTES:
        raise ValueError(f"argument must have at most {ARGUMENT_BYTES} bytes as JSON, not {len(text)}")
    stands = milliseconds("stands_s", stands_s, least=0)
    args: tuple[Argument, ...] = (checked_name("question", question), checked_name("what", what), text, stands)
    return Command(scripts.ASK, (now_ms(now), *args, checked_by(by), *names), parse_names)


def answer(worker: str, question: str, answer: object, *, now: float | None = None) -> Command[bool]:
    """Answer a request with any JSON of at most 1 MiB. Answers False if the request was answered or has expired."""
    text = to_json("answer", [checked_name("worker", worker), answer])
    if len(text) > ANSWER_BYTES:
        raise ValueError(f"answer must have at most {ANSWER_BYTES} bytes as JSON, not {len(text)}: give a part of it")
    return Command(scripts.ANSWER, (now_ms(now), worker, checked_name("question", question), text), bool)


def retire(worker: str, queues: Sequence[str], soon_s: float, *, now: float | None = None) -> Command[str]:
    """Forget a worker without work in its queues, now and within `soon_s` seconds.

    Answers "", or why it is still needed: held, mail, asked, lost, work, soon, watch.
    """
    args = now_ms(now), checked_name("worker", worker), milliseconds("soon_s", soon_s)
    return Command(scripts.RETIRE, (*args, *(checked_queues(queues) if queues else ())), bytes.decode)


def desire(name: str, count: int, note: object) -> Command[int]:
    """Publish for a minute how many supervisors of this name there should be (0 to 1,000).

    A scaler reads the number as the length of a list, whose first element is `note` as JSON.
    """
    args = checked_name("name", name), checked_int("count", count, 0, MOST), to_json("note", note)
    return Command(scripts.DESIRE, args, int)


def serve(
    worker: str,
    queues: Sequence[str],
    order: str | None = None,
    *,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Ask a running worker to serve these queues, in this order (None: the present one). `by` names who asks.

    Answers the request's number; 0 for an unknown worker.
    """
    patterns = Queues(queues, "strict" if order is None else order).patterns
    args = now_ms(now), checked_name("worker", worker), order or "", checked_by(by)
    return Command(scripts.SERVE, (*args, *patterns), int)


def wait_for(jid: str, *, now: float | None = None) -> Command[str | None]:
    """Register one more waiter of a job, so that its end adds one more token.

    Answers its state; None if there is none.
    """
    args = now_ms(now), checked_name("jid", jid)
    return Command(scripts.AWAIT, args, lambda reply: None if reply is None else reply.decode())


def follow(jid: str, *, now: float | None = None) -> Command[Followed | None]:
    """Have the end of a job told in its stream. Answers None if there is no such job."""
    args = now_ms(now), checked_name("jid", jid)
    return Command(scripts.FOLLOW, args, lambda reply: reply and Followed(*(word.decode() for word in reply)))


def configure(
    option: str, queue: str | None, value: str | None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Set an option, of one queue or of all, to a value from checked_value; None unsets it. Answers whether it changed.

    `by` names who sets it.
    """
    name = "" if queue is None else checked_name("queue", queue)
    return Command(scripts.CONFIGURE, (now_ms(now), option, name, value or "", checked_by(by)), bool)


# Arguments.


def checked_by(by: str | None, argument: str = "by") -> str:
    """Return the name of an actor, at most 128 bytes, or "" for None. Raises TypeError or ValueError naming it."""
    return "" if by is None else checked_name(argument, by, BY_BYTES)


def checked_claim(by: str | None, argument: str = "by") -> str | None:
    """Return who acts. Raises TypeError or ValueError naming it, also if it is not a Login and begins like one."""
    if checked_by(by, argument).startswith(LOGIN) and not isinstance(by, Login):
        raise ValueError(f"{argument} must not begin with {LOGIN}, as those do who have logged in at the page: {by!r}")
    return by


def now_ms(now: float | None) -> int | str:
    return "" if now is None else milliseconds("now", now)


def _ttl(ttl_s: float | None) -> int | str:
    return "" if ttl_s is None else milliseconds("ttl", ttl_s)


def _number(number: int | None) -> int | str:
    return "" if number is None else checked_int("number", number, 0)


def checked_batch(argument: str, values: Sequence[object]) -> None:
    if len(values) > MOST:
        raise ValueError(f"{argument} must be at most {MOST} at a time, not {len(values)}")


def checked_names(argument: str, names: Sequence[str], most: int) -> tuple[str, ...]:
    """Return 1 to `most` names, each once, in order. Raises TypeError or ValueError naming the argument."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{argument} must be a list of names, not {type(names).__name__}: {names!r:.100}")
    unique = dict.fromkeys(checked_name(argument, name) for name in names)
    if not 1 <= len(unique) <= most:
        raise ValueError(f"{argument} must be 1 to {most} names, not {len(unique)}")
    return tuple(unique)


def checked_jids(argument: str, jids: Sequence[str]) -> tuple[str, ...]:
    return checked_names(argument, jids, MOST)


def checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str | bytes):
        raise TypeError(f"queues must be a list of names, not {type(queues).__name__}: {queues!r:.100}")
    names = dict.fromkeys(checked_name("queues", queue) for queue in queues)
    checked_int("queues", len(names), 1, MOST)
    return tuple(names)


# Replies.


def _parse_bools(reply: list[int]) -> list[bool]:
    return [answer == 1 for answer in reply]


def _parse_puts(reply: list[int | bytes]) -> list[bool | str]:
    return [answer.decode() if isinstance(answer, bytes) else answer == 1 for answer in reply]


def _parse_renewals(reply: list[Any]) -> Renewals:
    now, *expires = reply
    gone = {i: each[5:].decode() for i, each in enumerate(expires) if isinstance(each, bytes) and len(each) > 5}
    return Renewals((ms / 1000 if isinstance(ms, int) else GONE if ms else LOST for ms in expires), now / 1000, gone)


def parse_by(reply: object) -> tuple[str | None, float | None]:
    """Parse `<ms>:<who>` into the actor and unix seconds; None for what is unknown."""
    when_ms, colon, by = reply.decode(errors="replace").partition(":") if isinstance(reply, bytes) else ("", "", "")
    return (by or None, int(when_ms) / 1000) if colon and when_ms.isdecimal() else (None, None)


def parse_names(reply: list[bytes]) -> list[str]:
    return [name.decode() for name in reply]


def _parse_names_or_none(reply: list[bytes] | None) -> list[str] | None:
    return None if reply is None else parse_names(reply)


def _parse_due(rows: list[Any]) -> list[DueCron]:
    return [parse_due(row) for row in rows]


def _parse_swept(reply: list[Any]) -> Swept:
    now_ms, taken, next_offset, due = reply
    return Swept(now_ms / 1000, taken, next_offset, _parse_due(due))


def _parse_grant(worker: str, starts: int, reply: list[Any]) -> Grant:
    now_ms, next_ms, token, due, wish_number, ends, jids, rows = reply
    expires = {queue: ms / 1000 for queue, ms in zip(ends[::2], ends[1::2], strict=True)}
    leases, unreadable, starting, end = [], [], starts, token + starts
    for jid, row in zip(jids, rows, strict=True):
        lease = None
        try:
            if isinstance(row, bytes):
                lease = dense_lease(worker, token, jid, row, None, expires, now_ms)
            elif row[place_of_payload(row)] is LOST_PAYLOAD:
                pass
            elif len(row) == PAIR:
                record, beside = row
                lease = dense_lease(worker, token, jid, record, beside, expires, now_ms)
            else:
                klass, queue, raw, waited_ms, rest = row
                lease = LeaseRecord(worker, token, jid, klass, queue, raw, expires[queue], waited_ms, rest)
        except ValueError:  # one damaged record must not hide the other leases
            unreadable.append(jid.decode("utf-8", "replace"))
        if lease is not None:
            leases.append(lease)
        elif token < end:
            starting -= 1
        token += 1
    next_at_unix = next_ms / 1000 if next_ms else None
    return Grant(now_ms / 1000, next_at_unix, leases, _parse_due(due), unreadable, wish_number, starting)


_ANSWERS: dict[bytes, Answer] = {
    b"1": True,
    b"0": False,
    b"": None,
    b"waiting": "waiting",
    b"scheduled": "scheduled",
    b"failed": "failed",
    b"!": REFUSED,
    b"~": ENDLESS,
    b"#": TOO_MANY_QUEUES,
    b"+": LATER,
}


def _parse_answers(order: Sequence[int], reply: bytes) -> list[Answer]:
    """Return the answers in the order of the outcomes. `order`: the index of each as it was sent."""
    sent = [_ANSWERS[word] if word in _ANSWERS else int(word[1:]) for word in reply.split(b",")] if order else []
    if len(sent) != len(order):  # another call had this number
        return sent
    answers: list[Answer] = [None] * len(order)
    for index, answer in zip(order, sent, strict=True):
        answers[index] = answer
    return answers


def _parse_resumed(reply: list[int]) -> ResumeResult:
    handed_back, now, *expires = reply
    return ResumeResult([ms / 1000 if ms >= 0 else GONE for ms in expires], handed_back, now / 1000)
