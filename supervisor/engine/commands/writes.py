"""Runs in every process that speaks to Redis. Owns: how a call that changes something becomes a script with arguments,
and its reply a value (looks.py: those that only look). Must not: do I/O. The sync client, the async client and the
master each run these in their own way.

Every builder checks what it is given and raises TypeError or ValueError naming the argument, before anything is sent.
`now` is an injected clock's time in unix seconds; None = the server's clock.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from supervisor import clock
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import ASK_S as ASK_S
from supervisor.engine.model.bounds import BY_BYTES as BY_BYTES
from supervisor.engine.model.bounds import MOST as MOST
from supervisor.engine.model.jobs import MOST_TAGS, LeaseRecord, NewJob
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.outcomes import (
    ENDLESS,
    LARGE_DATA_BYTES,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Outcome,
    failure_json,
    needs_memory,
)
from supervisor.engine.model.queue_order import Queues, checked_order
from supervisor.engine.model.recurring import DueCron, Recurring, changes_of, new_recurrence, parse_due
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

#: What renew answers for a lease that somebody else has, and for one whose job was cancelled.
LOST: Final = 0.0
GONE: Final = -1.0
LOG_BYTES: Final = 4096
ARGUMENT_BYTES: Final = 4096
ANSWER_BYTES: Final = 2**20


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
    `now_unix` is the time of the answer by the same clock, so that differences need no clock of one's own. `due`: cron
    recurrences whose time has come, to `spawn`. `unreadable`: jids of records that somebody has damaged; nobody renews
    their leases, so that they are lost, and in the end fail. `wish`: how often somebody has wished something of this
    worker: that it serves other queues, or answers.
    """

    now_unix: float
    next_at_unix: float | None
    leases: list[LeaseRecord]
    due: list[DueCron]
    unreadable: Sequence[str] = ()
    wish: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: how many jobs were taken from lost workers, and the cron recurrences that are due. `now_unix`
    is the time of the answer, `next_offset` where to go on; 0 = that was all.
    """

    now_unix: float
    taken: int
    next_offset: int
    due: list[DueCron]


class Renewal(NamedTuple):
    """One lease to renew: `started` if the job is known to have begun, `data` to replace the job's, `progress`: how far
    it is, a fraction and a text; `state`: its checkpoint as JSON, as `to_state` makes it.
    """

    jid: str
    token: int
    started: bool = False
    data: Any = UNSET
    progress: tuple[float, str] | None = None
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume found: the new end of each known lease in unix seconds (or LOST, GONE), how many jobs that the
    worker did not know of went back to the front, and the server's time.
    """

    expires: list[float]
    handed_back: int
    now_unix: float


class Renewals(list[float]):
    """The new end of each lease in unix seconds, LOST or GONE. `now_unix`: the server's time. `cancelled_by`: who has
    cancelled the jobs that are GONE, by their number in the list, as far as that is known.
    """

    def __init__(self, expires: Iterable[float], now_unix: float, cancelled_by: Mapping[int, str]) -> None:
        super().__init__(expires)
        self.now_unix = now_unix
        self.cancelled_by = cancelled_by


def put(jobs: Sequence[NewJob], *, now: float | None = None) -> Command[list[bool | str]]:
    """Creates or moves up to 1,000 jobs, all or none. Answers per job if anything was done (add of a known jid: no), or
    the jid of another job, which holds the claim that this one would have.
    """
    checked_batch("jobs", jobs)
    return Command(scripts.PUT, (now_ms(now), *chain.from_iterable(job.arguments for job in jobs)), _parse_puts)


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
    """Leases up to `count` (0 to 1,000) jobs of the queues, in one of orders.ORDERS. The first `starting` of them
    (default: all) start at once. A `number` below the worker's last one gives nothing; one of a worker that is not
    known any more is answered by an error beginning with DEREGISTERED. `takeover`: if lost workers' jobs may be had.
    `weights`: of the queues, 1 where not given. `woken`: if a bell has called for it; `waited`: if it is sent behind a
    wait for one, while which other exchanges may have higher numbers. `once`: klasses that this worker must never start
    twice; a job of theirs is at-most-once from its lease on, if it was not put to be none.
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
    return Command(scripts.LEASE, tuple(args), lambda reply: _parse_grant(worker, reply))


def renew(
    worker: str,
    entries: Sequence[Renewal],
    *,
    number: int | None = None,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[Renewals]:
    """Renews up to 1,000 leases. Answers each one's new end in unix seconds, LOST, or GONE: the job was cancelled.
    Under a smaller `number` than the worker's last one it stores no checkpoint. Where one of them brings more than
    64 KiB of data, a server whose memory is full refuses them all with an error beginning with OOM.
    """
    checked_batch("entries", entries)
    args: list[Argument] = [now_ms(now), checked_name("worker", worker), _number(number), _ttl(ttl_s)]
    script = scripts.RENEW
    for jid, token, started, data, progress, state in entries:
        said: tuple[Argument, ...] = ("", "")
        if progress is not None:
            fraction, text = checked_progress(*progress)
            said = repr(fraction), text
        kind, raw = to_new_data("data", data)
        if len(raw) > LARGE_DATA_BYTES:
            script = scripts.within_memory(scripts.RENEW)
        args += (jid, token, "1" if started else "", kind, raw, *said, state)
    return Command(script, tuple(args), _parse_renewals)


def settle(
    worker: str, outcomes: Sequence[Outcome], *, number: int | None = None, now: float | None = None
) -> Command[list[Answer]]:
    """Ends up to 1,000 leases. Sent again under the same `number` it changes nothing and is answered as before; under a
    smaller one than the worker's last, every outcome is stale. Where one of them puts jobs or brings more than 64 KiB
    of data, a server whose memory is full refuses them all with an error beginning with OOM.
    """
    checked_batch("outcomes", outcomes)
    when_unix = clock.unix() if now is None else now
    args: list[Argument] = [now_ms(now), checked_name("worker", worker), _number(number)]
    script = scripts.SETTLE
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be Completed, Retried, Failed, Released or Died: {outcome!r:.100}")
        arguments = outcome.arguments(worker, when_unix)
        if script is scripts.SETTLE and needs_memory(arguments):
            script = scripts.within_memory(scripts.SETTLE)
        args += arguments
    n = len(outcomes)
    return Command(script, tuple(args), lambda reply: _parse_answers(n, reply))


def resume(
    worker: str,
    number: int,
    known: Iterable[tuple[str, int]],
    *,
    highest: int = 0,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[Resumed]:
    """After an exchange without an answer: renews the `known` (jid, token), hands back whatever else is held in the
    worker's name, and refuses from now on what was sent before. `number` must be above every earlier one, also that of
    an earlier resume; else Redis answers an error beginning with SUPERSEDED. `highest`: the highest token that this
    worker was ever given. Later tokens are above it, even if the server has lost its last writes.
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
    """The light clean of 200 queues, from `offset` on: takes up to `count` (1 to 1,000) jobs from workers lost for
    longer than the grace (if `takeover`), lets come again what is due, and drops what is kept for too long. A `worker`
    that sweeps is seen. `queues`: those that it serves by name; they are not forgotten.
    """
    args = now_ms(now), checked_int("count", count, 1, MOST), "1" if takeover else "", offset, worker or ""
    return Command(scripts.SWEEP, (*args, *queues[:MOST]), _parse_swept)


def deregister(worker: str, *, own: bool = False, now: float | None = None) -> Command[int]:
    """Forgets a worker; what it holds goes to the front, uncounted. Answers how many jobs. `own`: it leaves by itself;
    else it is told.
    """
    return Command(scripts.DEREGISTER, (now_ms(now), checked_name("worker", worker), "1" if own else ""), int)


def move(jid: str, queue: str, delay: Duration = 0, *, now: float | None = None) -> Command[bool]:
    """Moves a job as it is, from whatever state. Answers False if there is none."""
    args = checked_name("queue", queue), checked_name("jid", jid), duration_ms("delay", delay, least=0)
    return Command(scripts.MOVE, (now_ms(now), *args), bool)


def cancel(jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[str]]:
    """Deletes up to 1,000 jobs, all or none; `by`: who wants that. Answers those that there were; completed ones are
    left alone. Redis answers an error beginning with DEPENDENCY if a job that is not listed waits for one of them.
    """
    return Command(scripts.CANCEL, (now_ms(now), checked_by(by), *checked_jids("jids", jids)), parse_names)


def fail(jid: str, group: str, message: str, *, now: float | None = None) -> Command[bool]:
    """Fails a job by hand, whatever state it is in. Answers False if there is none."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    return Command(scripts.FAIL, (now_ms(now), checked_name("jid", jid), group, failure), bool)


def unfail(
    group: str,
    queue: str | None = None,
    count: int = 25,
    *,
    klass: str | None = None,
    data: object = UNSET,
    now: float | None = None,
) -> Command[int]:
    """Puts up to `count` (1 to 1,000) failed jobs of a group back, oldest first; without a queue each into its own, and
    with a new klass or new data if given. Answers how many. An entry that is still no job stays where it is.
    """
    name, most = checked_name("group", group, GROUP_BYTES), checked_int("count", count, 1, MOST)
    return Command(scripts.UNFAIL, (now_ms(now), name, *_back(queue, most, klass, data)), int)


def unfail_job(
    jid: str, queue: str | None = None, *, klass: str | None = None, data: object = UNSET, now: float | None = None
) -> Command[int]:
    """Puts one failed job back, as `unfail`. Answers 0 if it is not failed, or is still no job."""
    return unfail_jobs([jid], queue, klass=klass, data=data, now=now)


def unfail_jobs(
    jids: Sequence[str],
    queue: str | None = None,
    *,
    group: str | None = None,
    klass: str | None = None,
    data: object = UNSET,
    now: float | None = None,
) -> Command[int]:
    """Puts those of up to 1,000 jobs back that have failed, in this group or in any, as `unfail`. Answers how many."""
    of_group = "" if group is None else checked_name("group", group, GROUP_BYTES)
    args = now_ms(now), of_group, *_back(queue, MOST, klass, data), *checked_jids("jids", jids)
    return Command(scripts.UNFAIL, args, int)


def _back(queue: str | None, count: int, klass: str | None, data: object) -> tuple[Argument, ...]:
    into = "" if queue is None else checked_name("queue", queue)
    return into, count, "" if klass is None else checked_name("klass", klass), *to_new_data("data", data)


def release(jids: Sequence[str], *, now: float | None = None) -> Command[list[bool]]:
    """Takes up to 1,000 running jobs from their workers, to the front. Answers False for each that does not run."""
    return Command(scripts.RELEASE, (now_ms(now), *checked_jids("jids", jids)), _parse_bools)


def set_priority(jid: str, priority: int, *, now: float | None = None) -> Command[bool]:
    """Changes a job's priority. Answers False if there is none."""
    args = now_ms(now), checked_name("jid", jid), checked_int("priority", priority, -EXACT_INT)
    return Command(scripts.PRIORITY, args, bool)


def tag(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Adds tags to a job. Answers all that it has then; None if there is no such job."""
    args = now_ms(now), "add", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.TAG, args, _parse_names_or_none)


def untag(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Removes tags from a job. Answers those that it keeps; None if there is no such job."""
    args = now_ms(now), "remove", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.TAG, args, _parse_names_or_none)


def track(jid: str, *, now: float | None = None) -> Command[bool | None]:
    """Follows a job. Answers False if it was so already, None if there is no such job."""
    args = now_ms(now), "track", checked_name("jid", jid)
    return Command(scripts.TRACK, args, lambda reply: None if reply is None else bool(reply))


def untrack(jid: str, *, now: float | None = None) -> Command[bool]:
    """Follows a job no longer, also one that is gone. Answers False if it was not tracked."""
    return Command(scripts.TRACK, (now_ms(now), "untrack", checked_name("jid", jid)), bool)


def log(jid: str, message: str, data: object = None, *, now: float | None = None) -> Command[bool]:
    """Writes a line into a job's history. Answers False if there is no such job."""
    line = {"what": "log", "message": checked_text("message", message)}
    if data is not None:
        line["data"] = data  # type: ignore[assignment]  # JSON: to_json says so if it is not
    text = to_json("data", line)
    if len(text) > LOG_BYTES:
        raise ValueError(f"message and data must have at most {LOG_BYTES} bytes as JSON, not {len(text)}")
    return Command(scripts.LOG, (now_ms(now), checked_name("jid", jid), text), bool)


def depend(jid: str, parents: Sequence[str], *, now: float | None = None) -> Command[bool]:
    """Has a job in state depends wait for these, too. Answers False if there is none. Redis answers an error beginning
    with DEPENDENCY if it is in another state, or would wait for itself.
    """
    args = now_ms(now), checked_name("jid", jid), "on", *checked_jids("jids", parents)
    return Command(scripts.DEPEND, args, bool)


def undepend(jid: str, parents: Sequence[str] | None, *, now: float | None = None) -> Command[bool]:
    """Has a job in state depends wait for these no longer; None: for nothing. As `depend`."""
    jids = () if parents is None else checked_jids("jids", parents)
    args = now_ms(now), checked_name("jid", jid), "all" if parents is None else "off", *jids
    return Command(scripts.DEPEND, args, bool)


def forget(queue: str, *, now: float | None = None) -> Command[bool]:
    """Takes a queue out of the list of queues. Answers False if it was not there. Redis answers an error beginning with
    REFUSED if something lies in it.
    """
    return Command(scripts.FORGET, (now_ms(now), checked_name("queue", queue)), bool)


def recur(
    queue: str, klass: str, data: object, options: Mapping[str, Any], *, now: float | None = None
) -> Command[str]:
    """Has a job come again, instead of as it did if its jid is known. Answers the jid. The first time of a cron is
    computed here, by this machine's clock if none is injected.
    """
    new = new_recurrence(queue, klass, data, options, clock.unix() if now is None else now)
    return Command(scripts.RECUR, (now_ms(now), "recur", *new.arguments), lambda _reply: new.jid)


def update_recurring(known: Recurring, changes: Mapping[str, Any], *, now: float | None = None) -> Command[bool]:
    """Changes what is given of how a job comes again. Answers False if it does not come any more."""
    new = changes_of(known, changes, clock.unix() if now is None else now)
    return Command(scripts.RECUR, (now_ms(now), "update", *new.arguments), bool)


def unrecur(jid: str, *, now: float | None = None) -> Command[bool]:
    """Has a job come no more. Answers False if it did not."""
    return Command(scripts.UNRECUR, (now_ms(now), checked_name("jid", jid)), bool)


def tag_recurring(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Adds tags to a recurrence, for the jobs to come. Answers all that it has then; None if there is none."""
    args = now_ms(now), "add", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.RECURTAG, args, _parse_names_or_none)


def untag_recurring(jid: str, tags: Sequence[str], *, now: float | None = None) -> Command[list[str] | None]:
    """Removes tags from a recurrence. Answers those that it keeps; None if there is none."""
    args = now_ms(now), "remove", checked_name("jid", jid), *checked_names("tags", tags, MOST_TAGS)
    return Command(scripts.RECURTAG, args, _parse_names_or_none)


def spawn(due: DueCron, times: Sequence[float], next_unix: float | None, *, now: float | None = None) -> Command[bool]:
    """Puts the jobs of a due cron recurrence for these times (at most 1,000) and sets its next one; without one it
    ends. Answers False if somebody else has done so.
    """
    checked_batch("times", times)
    at_ms = [milliseconds("times", time) for time in times]
    args = now_ms(now), due.jid, due.due_ms, "" if next_unix is None else milliseconds("next_unix", next_unix), *at_ms
    return Command(scripts.SPAWN, args, bool)


def skills(worker: str, klasses: Iterable[str], queues: Iterable[str], *, now: float | None = None) -> Command[bool]:
    """Says for which klasses a worker has handlers, and which queues it serves: of jobs that others have no handler for
    it leases those. 1,000 of each are told. Answers False if the worker is not known.
    """
    lines = (
        "\n".join(checked_name("klasses", klass) for klass in islice(klasses, MOST)),
        "\n".join(islice(queues, MOST)),
    )
    return Command(scripts.SKILLS, (now_ms(now), checked_name("worker", worker), *lines), bool)


def tell(worker: str, message: str | bytes) -> Command[int]:
    """Leaves a hint in a worker's mailbox. Answers how many lie there."""
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
    now: float | None = None,
) -> Command[list[str]]:
    """Asks workers (up to 1,000; None: all that live) for something, under a new id, and answers which ones there are
    to ask. It stands for so long. Redis answers an error beginning with REFUSED if one that is named is not there.
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
    return Command(scripts.ASK, (now_ms(now), *args, *names), parse_names)


def answer(worker: str, question: str, answer: object, *, now: float | None = None) -> Command[bool]:
    """Answers, with any JSON of at most 1 MiB, what a worker was asked. Answers False if the question does not stand
    any more: it was answered, or nobody waits.
    """
    text = to_json("answer", [checked_name("worker", worker), answer])
    if len(text) > ANSWER_BYTES:
        raise ValueError(f"answer must have at most {ANSWER_BYTES} bytes as JSON, not {len(text)}: give a part of it")
    return Command(scripts.ANSWER, (now_ms(now), worker, checked_name("question", question), text), bool)


def retire(worker: str, queues: Sequence[str], soon_s: float, *, now: float | None = None) -> Command[str]:
    """Forgets a worker that has nothing to do in its queues, nor will have within `soon_s` seconds. Answers "", or why
    it is needed: held, mail, asked, lost, work, soon, watch.
    """
    args = now_ms(now), checked_name("worker", worker), milliseconds("soon_s", soon_s)
    return Command(scripts.RETIRE, (*args, *(checked_queues(queues) if queues else ())), bytes.decode)


def desire(name: str, count: int, note: object) -> Command[int]:
    """Says for a minute, to whoever scales supervisors under this name, how many there should be (0 to 1,000): as the
    length of a list, of which the first element is `note` as JSON.
    """
    args = checked_name("name", name), checked_int("count", count, 0, MOST), to_json("note", note)
    return Command(scripts.DESIRE, args, int)


def serve(worker: str, queues: Sequence[str], order: str | None = None, *, now: float | None = None) -> Command[int]:
    """Leaves the wish that a running worker serves these queues from now on, in this order; None: as it did. Answers
    the wish's number; 0: nobody knows such a worker.
    """
    patterns = Queues(queues, "strict" if order is None else order).patterns
    return Command(scripts.SERVE, (now_ms(now), checked_name("worker", worker), order or "", *patterns), int)


def wait_for(jid: str, *, now: float | None = None) -> Command[str | None]:
    """Counts one more who waits for a job: so many tokens are put when it ends. Answers its state; None if there is no
    such job.
    """
    args = now_ms(now), checked_name("jid", jid)
    return Command(scripts.AWAIT, args, lambda reply: None if reply is None else reply.decode())


def configure(
    option: str, queue: str | None, value: str | None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Sets an option, for one queue or for all, to what options.py made of its value; None unsets it. Answers whether
    that changed anything. `by`: who sets it, which is kept of a pause.
    """
    name = "" if queue is None else checked_name("queue", queue)
    return Command(scripts.CONFIGURE, (now_ms(now), option, name, value or "", checked_by(by)), bool)


# Arguments.


def checked_by(by: str | None) -> str:
    """Who does something, in at most 128 bytes; "" where that is not said. Raises TypeError or ValueError naming it."""
    return "" if by is None else checked_name("by", by, BY_BYTES)


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
    """1 to `most` names, each once, in their order. Raises TypeError or ValueError naming the argument."""
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
    gone = {i: said[5:].decode() for i, said in enumerate(expires) if isinstance(said, bytes) and len(said) > 5}
    return Renewals((ms / 1000 if isinstance(ms, int) else GONE if ms else LOST for ms in expires), now / 1000, gone)


def parse_by(said: object) -> tuple[str | None, float | None]:
    """Who did something, and when in unix seconds, of `<ms>:<who>`; None for what is not known."""
    when_ms, colon, by = said.decode(errors="replace").partition(":") if isinstance(said, bytes) else ("", "", "")
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


def _parse_grant(worker: str, reply: list[Any]) -> Grant:
    now_ms, next_ms, token, due, wish, ends, jobs = reply
    expires = {queue: ms / 1000 for queue, ms in zip(ends[::2], ends[1::2], strict=True)}
    leases, unreadable = [], []
    rows = iter(jobs)
    for jid, klass, queue, raw, waited_ms, rest in zip(rows, rows, rows, rows, rows, rows, strict=True):
        try:
            leases.append(LeaseRecord(worker, token, jid, klass, queue, raw, expires[queue], waited_ms, rest))
        except ValueError:  # damaged in Redis, by whatever hand: the others must not suffer from it
            unreadable.append(jid.decode("utf-8", "replace"))
        token += 1
    return Grant(now_ms / 1000, next_ms / 1000 if next_ms else None, leases, _parse_due(due), unreadable, wish)


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
}


def _parse_answers(n: int, reply: bytes) -> list[Answer]:
    if n == 0:
        return []
    return [_ANSWERS[word] if word in _ANSWERS else int(word[1:]) for word in reply.split(b",")]


def _parse_resumed(reply: list[int]) -> Resumed:
    handed_back, now, *expires = reply
    return Resumed([ms / 1000 if ms >= 0 else GONE for ms in expires], handed_back, now / 1000)
