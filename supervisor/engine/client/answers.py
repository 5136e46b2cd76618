"""Checks what both clients ask, and says what the answers mean. Runs in applications and commands.

Must not: send anything.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson

from supervisor.engine.commands.command import checked_batch
from supervisor.engine.commands.leasing import GONE, LOST, Grant, Renewal
from supervisor.engine.model.bounds import MOST, MOST_ENDS
from supervisor.engine.model.errors import DependencyError, JobFailed, JobNotFound, LeaseholdError, LeaseLost
from supervisor.engine.model.jobs import JobRecord, LeaseRecord
from supervisor.engine.model.new_jobs import NewJob, NewJobs
from supervisor.engine.model.outcomes import (
    ENDLESS,
    MOST_QUEUES,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Completed,
    Outcome,
    Released,
)
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.recurring import Recurring
from supervisor.engine.model.validation import DATA_BYTES, UNSET, Duration, checked_each, checked_seconds, to_state

#: Jobs that a client's sweep takes in one call.
SWEPT: Final = 200
T = TypeVar("T")

#: One wait for a wake-up lasts at most this long, because foreign pushes and new queues of a glob wake no client.
_WAKEUP_S: Final = 1.0
#: The states after which nothing more comes. None: there is no such job.
ENDED: Final = (None, "complete", "failed")
#: The grant of a lease of no queue.
NOTHING: Final = Grant(0.0, None, [], [])


# Arguments of calls.


def checked_wait_s(argument: str, longest: Duration) -> float:
    """Return the longest time to wait. Raises TypeError or ValueError naming the argument."""
    seconds = checked_seconds(argument, longest)
    if seconds < 0:
        raise ValueError(f"{argument} must be 0 or more seconds: {longest!r}")
    return seconds


def dicts_of(given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return put_many's jobs as dicts of their own. Raises TypeError naming the argument."""
    return [{**_mapping(one)} for one in checked_each("jobs", given, "dicts of put's arguments")]


def _mapping(one: object) -> Mapping[str, Any]:
    if type(one) is not dict and not isinstance(one, Mapping):
        raise TypeError(f"jobs must be dicts of put's arguments, not {type(one).__name__}: {one!r:.100}")
    return one


def checked_many(queue: str, given: Iterable[Mapping[str, Any]]) -> list[list[NewJob]]:
    """Check put_many's jobs, all before the first is sent, and return them in batches.

    A batch has at most 1,000 jobs, fewer with further options, many tags or parents, and 256 MB of data.
    """
    batches: list[list[NewJob]] = []
    room = room_bytes = 0
    make = NewJobs(queue).make
    for one in checked_each("jobs", given, "dicts of put's arguments"):
        arguments = dict(_mapping(one))
        if "klass" not in arguments:
            raise TypeError(f"jobs must each have a klass: {one!r:.100}")
        if arguments.pop("queue", queue) != queue:
            raise ValueError(f"jobs must be for the queue {queue!r}, which puts them: {one!r:.100}")
        job = make(arguments.pop("klass"), arguments.pop("data", None), arguments)
        weight, size_bytes = job.weight, job.size_bytes
        if room < weight or room_bytes < size_bytes:
            batches.append([])
            room, room_bytes = MOST, DATA_BYTES
        batches[-1].append(job)
        room -= weight
        room_bytes -= size_bytes
    return batches


def worker_of(outcomes: Sequence[Outcome]) -> str:
    """Return the worker whose leases these outcomes end. Raises TypeError or ValueError naming the argument."""
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be ends of leases, such as Completed or Failed: {outcome!r:.100}")
    workers = {outcome.lease.worker for outcome in outcomes}
    if len(workers) > 1:
        raise ValueError(f"outcomes must all be of one worker's leases, not of {', '.join(sorted(workers))}")
    return workers.pop()


def in_steps(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the outcomes in parts, each of which one call ends: one outcome, or so many that no service refuses the
    call. Raises TypeError or ValueError naming the argument.
    """
    checked_batch("outcomes", outcomes)
    steps: list[list[Outcome]] = [[]]
    room = MOST_ENDS
    for given in outcomes:
        outcome = given.with_checked_puts() if isinstance(given, Completed) else given
        weight = outcome.weight if isinstance(outcome, Completed) else 1
        if room < weight and steps[-1]:
            steps.append([])
            room = MOST_ENDS
        steps[-1].append(outcome)
        room -= weight
    return steps


def unstarted(grant: Grant) -> list[Released]:
    """Return the outcomes that hand back all jobs of a lease, none of which has started."""
    return [Released(lease, started=False) for lease in grant.leases]


def parents_given(jids: Sequence[str], all_of_them: bool) -> Sequence[str] | None:
    """Return the parents that undepend removes; None = all. Raises TypeError or ValueError naming the argument."""
    if not isinstance(all_of_them, bool):
        raise TypeError(f"all must be a bool, not {type(all_of_them).__name__}: {all_of_them!r:.100}")
    if all_of_them and jids:
        raise ValueError(f"jids must not be given with all: {jids!r:.100}")
    return None if all_of_them else jids


def renewal_of(lease: LeaseRecord, data: Any) -> Sequence[Renewal]:
    """Return the batch that renews one lease. Data that is not UNSET replaces the job's."""
    return [Renewal(lease.jid, lease.token, data=data)]


def checkpoint_of(lease: LeaseRecord, state: object) -> Sequence[Renewal]:
    """Return the batch that renews one lease and stores the job's state. Raises TypeError or ValueError."""
    return [Renewal(lease.jid, lease.token, True, state=to_state("state", state))]


# Leasing.


def at_most(wanted: Queues, known: Sequence[str]) -> tuple[str, ...]:
    """Return the queues that one lease serves: all, or 1,000 of them.

    Strict order takes the first 1,000. Other orders draw 1,000 anew for each lease.
    """
    names = wanted.resolve(known)
    if len(names) <= MOST:
        return names
    return names[:MOST] if wanted.order == "strict" else tuple(random.sample(names, MOST))


def pause_s(grant: Grant, left_s: float, longest_s: float) -> float:
    """Return how long to wait for a wake-up before the next lease."""
    pause = min(left_s, longest_s, _WAKEUP_S)
    return pause if grant.next_at_unix is None else min(pause, grant.next_at_unix - grant.now_unix)


# Answers of calls.


def jid_of(job: NewJob, answer: bool | str) -> str:
    """Return the jid that a put answers: the job's own, or that of the holder of its unique key."""
    return answer if isinstance(answer, str) else job.jid


def found(jid: str, answer: T | None) -> T:
    """Return the answer. Raises JobNotFound if it says that there is no such job (None or False)."""
    if answer is None or answer is False:
        raise JobNotFound(f"there is no job {jid} (any more)")
    return answer


def result_of(jid: str, record: JobRecord | None) -> Any:
    """Return the result of a complete job; UNSET while the job has not ended. Raises JobFailed or JobNotFound."""
    if record is None:
        raise JobNotFound(
            f"there is no job {jid} (any more): it never was, was cancelled, or completed and was not kept"
        )
    if record.state == "failed":
        failure = record.failure or {}
        raise JobFailed(jid, str(failure.get("group", "")), str(failure.get("message", "")))
    return record.result if record.state == "complete" else UNSET


def served(worker: str, number: int) -> None:
    """Raise LeaseholdError if no worker has received the request."""
    if not number:
        raise LeaseholdError(f"there is no worker {worker} (any more); `leasehold status` shows who is there")


def updated(recurring: Recurring, answer: bool) -> None:
    """Raise LeaseholdError if the recurring job does not exist."""
    if not answer:
        raise LeaseholdError(f"there is no recurring job {recurring.jid} any more")


class Answers:
    """The workers' answers to a question so far. A worker that has not answered has None."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.by_worker: dict[str, Any] = dict.fromkeys(workers)
        self.missing = set(workers)

    def take(self, popped: bytes | None) -> None:
        """Take one answer as Redis gives it; None: no answer came."""
        if popped is None:
            return
        worker, answer = orjson.loads(popped)
        self.by_worker[worker] = answer
        self.missing.discard(worker)


# Answers to a lease that is renewed or ended.


def renewed(lease: LeaseRecord, expires_unix: float) -> float:
    """Store and return the lease's new end. Raises LeaseLost."""
    if expires_unix in (LOST, GONE):
        raise _lost(lease)
    lease.expires_unix = expires_unix
    return expires_unix


def held(lease: LeaseRecord, answer: Answer) -> Any:
    """Return the answer. Raises LeaseLost if it is None."""
    if answer is None:
        raise _lost(lease)
    return answer


def _lost(lease: LeaseRecord) -> LeaseLost:
    return LeaseLost(f"the lease of job {lease.jid} is not {lease.worker}'s any more")


def completed(lease: LeaseRecord, answer: Answer) -> bool:
    """Return whether the job was completed. Raises DependencyError or LeaseholdError if the server refuses."""
    if answer == REFUSED:
        raise DependencyError(
            f"job {lease.jid} cannot go on so: it, or one of those to put, would wait for itself, for a job for"
            " which 1,000 wait, or for more than can be looked through, or the known ones among them wait for too many"
            " others or lose too many tags; its lease goes on"
        )
    if answer == TOO_MANY_QUEUES:
        raise LeaseholdError(
            f"job {lease.jid} cannot go on so: it, or one of those to put, would make a new queue, and there are"
            f" {MOST_QUEUES} already; put to one of those, or delete some; its lease goes on"
        )
    if answer == ENDLESS:
        raise LeaseholdError(
            f"job {lease.jid} is persistent and has no end: hand it back, fail it, or cancel it; its lease goes on"
        )
    return answer is True
