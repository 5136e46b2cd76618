"""Runs in applications and commands (never in zygote or child). Owns: the leases, jobs and recurring jobs that clients
hand out, which act through their client. Must not: do I/O by itself; each action is one command, one round trip.

What ends a lease or changes a job is sent once: if the answer does not arrive, OutcomeUnknown says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack

from supervisor.engine.commands import queries, steps, writes
from supervisor.engine.commands.steps import Steps
from supervisor.engine.commands.writes import GONE, LOST, Command, Renewal
from supervisor.engine.model.errors import DependencyError, JobNotFound, LeaseholdError, LeaseLost
from supervisor.engine.model.jobs import JobRecord, LeaseRecord
from supervisor.engine.model.outcomes import (
    ENDLESS,
    MOST_QUEUES,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Completed,
    Died,
    Failed,
    Outcome,
    Released,
    Retried,
)
from supervisor.engine.model.recurring import RecurChanges, Recurring
from supervisor.engine.model.validation import UNSET, Duration, to_state

T = TypeVar("T")


class Caller(Protocol):
    """What a Lease or Job needs of its client: `ask` runs what `build` makes of the arguments and the time."""

    def call(self, build: Callable[..., Command[T]], *args: Any, **kwargs: Any) -> T: ...
    def follow(self, call: Steps[T]) -> T: ...


class AsyncCaller(Protocol):
    """The same of an AsyncClient."""

    async def call(self, build: Callable[..., Command[T]], *args: Any, **kwargs: Any) -> T: ...


def _adopt(handle: Any, record: Any, names: Iterable[str]) -> None:
    for name in names:
        object.__setattr__(handle, name, getattr(record, name))


def _take_on(handle: Any, record: Any, base: type) -> None:
    """Copy a record, also into attributes that `_fetched` covers."""
    for name in base.__slots__:  # type: ignore[attr-defined]
        getattr(base, name).__set__(handle, getattr(record, name))


def _fetched(base: type, name: str) -> Any:
    """The attribute of a record, which is fetched when it is first asked for if it was too large for the answer."""
    slot = getattr(base, name)

    def get(handle: Any) -> Any:
        if name in slot_of_left_out.__get__(handle):
            handle._fetch(name)
        return slot.__get__(handle)

    slot_of_left_out = base.left_out  # type: ignore[attr-defined]
    return property(get, doc=f"As {base.__name__}.{name}.")


def _too_large(handle: JobRecord | Recurring, name: str, call: str) -> LeaseholdError:
    return LeaseholdError(
        f"{name} of job {handle.jid} was left out of a list, for its size ({handle.left_out[name]}):"
        f" `await client.{call}({handle.jid!r})` has it"
    )


# What answers mean.


def _renewed(lease: LeaseRecord, expires_unix: float) -> float:
    if expires_unix in (LOST, GONE):
        raise _lost(lease)
    lease.expires_unix = expires_unix
    return expires_unix


def _lost(lease: LeaseRecord) -> LeaseLost:
    return LeaseLost(f"the lease of job {lease.jid} is not {lease.worker}'s any more")


def _held(lease: LeaseRecord, answer: Answer) -> Any:
    if answer is None:
        raise _lost(lease)
    return answer


def _completed(lease: LeaseRecord, answer: Answer) -> bool:
    if answer == REFUSED:
        raise DependencyError(
            f"job {lease.jid} cannot go on so: it, or one of those to put, would wait for itself, for a job for"
            " which 1,000 wait, or for more than can be looked through; its lease goes on"
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


def found(jid: str, answer: T | None) -> T:
    """The answer, if it is not that there is no such job (None or False)."""
    if answer is None or answer is False:
        raise JobNotFound(f"there is no job {jid} (any more)")
    return answer


def _renewal(lease: LeaseRecord, data: Any) -> Sequence[Renewal]:
    return [Renewal(lease.jid, lease.token, data=data)]


def _checkpoint(lease: LeaseRecord, state: object) -> Sequence[Renewal]:
    return [Renewal(lease.jid, lease.token, True, state=to_state("state", state))]


def _updated(recurring: Recurring, answer: bool) -> None:
    if not answer:
        raise LeaseholdError(f"there is no recurring job {recurring.jid} any more")


# Leases.


class Lease(LeaseRecord):
    """A leased job of a Client."""

    __slots__ = ("_client",)

    def __init__(self, record: LeaseRecord, client: Caller) -> None:
        _adopt(self, record, LeaseRecord.__slots__)
        self._client = client

    def renew(self, data: Any = UNSET) -> float:
        """Lengthens the lease by the queue's heartbeat from now and answers its new end, in unix seconds; with `data`
        the job's data is replaced. Works after the end too, while nobody has taken the job. Raises LeaseLost.
        """
        return _renewed(self, self._client.call(writes.renew, self.worker, _renewal(self, data))[0])

    def checkpoint(self, state: Any) -> float:
        """Stores how far the work is, JSON of at most 64 KiB, and lengthens the lease as `renew`. Whoever leases the
        job next finds it in `lease.saved`; it goes when the job completes or is put anew. Raises LeaseLost, TypeError
        or ValueError.
        """
        return _renewed(self, self._client.call(writes.renew, self.worker, _checkpoint(self, state))[0])

    def complete(
        self,
        result: Any = None,
        *,
        data: Any = UNSET,
        next: str | None = None,
        delay: Duration = 0,
        depends: Sequence[str] = (),
        then: Iterable[Mapping[str, Any]] = (),
    ) -> bool:
        """Ends the job, or sends it on into the queue `next`, after `delay` seconds and the jobs of `depends`. `data`
        replaces its data; a result is kept of a job that ends. `then` are jobs put in the same step, dicts of put's
        arguments and a queue. True for exactly one caller; False if the lease is lost. Raises DependencyError if it or
        one of `then` would wait for itself, LeaseholdError if it is persistent.
        """
        return _completed(self, self._settle(Completed(self, result, data, next, delay, depends, then)))

    def retry(self, delay: Duration | None = None, group: str | None = None, message: str | None = None) -> int:
        """Spends a retry: to the back of its priority, or again after `delay` seconds. Answers the retries remaining;
        negative: exhausted, the job failed in `group` or failed-retries-<queue>. Raises LeaseLost.
        """
        return int(_held(self, self._settle(Retried(self, delay, group, message))))

    def fail(self, group: str, message: str, data: Any = UNSET) -> bool:
        """Fails the job for good; `data` replaces its data. False if the lease is lost."""
        return self._settle(Failed(self, group, message, data=data)) is True

    def release(self, started: bool = True) -> bool:
        """Back to the front of its queue: an interruption, or uncounted if it had not started. False if lost."""
        return self._settle(Released(self, started)) is True

    def died(self, reason: str) -> str:
        """Counts a death and answers the job's new state: waiting, scheduled or failed. Raises LeaseLost."""
        return str(_held(self, self._settle(Died(self, reason))))

    def _settle(self, outcome: Outcome) -> Answer:
        return self._client.call(writes.settle, self.worker, [outcome])[0]


class AsyncLease(LeaseRecord):
    """A leased job of an AsyncClient: as Lease, awaited."""

    __slots__ = ("_client",)

    def __init__(self, record: LeaseRecord, client: AsyncCaller) -> None:
        _adopt(self, record, LeaseRecord.__slots__)
        self._client = client

    async def renew(self, data: Any = UNSET) -> float:
        """As Lease.renew."""
        return _renewed(self, (await self._client.call(writes.renew, self.worker, _renewal(self, data)))[0])

    async def checkpoint(self, state: Any) -> float:
        """As Lease.checkpoint."""
        return _renewed(self, (await self._client.call(writes.renew, self.worker, _checkpoint(self, state)))[0])

    async def complete(
        self,
        result: Any = None,
        *,
        data: Any = UNSET,
        next: str | None = None,
        delay: Duration = 0,
        depends: Sequence[str] = (),
        then: Iterable[Mapping[str, Any]] = (),
    ) -> bool:
        """As Lease.complete."""
        return _completed(self, await self._settle(Completed(self, result, data, next, delay, depends, then)))

    async def retry(self, delay: Duration | None = None, group: str | None = None, message: str | None = None) -> int:
        """As Lease.retry."""
        return int(_held(self, await self._settle(Retried(self, delay, group, message))))

    async def fail(self, group: str, message: str, data: Any = UNSET) -> bool:
        """As Lease.fail."""
        return await self._settle(Failed(self, group, message, data=data)) is True

    async def release(self, started: bool = True) -> bool:
        """As Lease.release."""
        return await self._settle(Released(self, started)) is True

    async def died(self, reason: str) -> str:
        """As Lease.died."""
        return str(_held(self, await self._settle(Died(self, reason))))

    async def _settle(self, outcome: Outcome) -> Answer:
        return (await self._client.call(writes.settle, self.worker, [outcome]))[0]


# Jobs.


class _PartlyRead(JobRecord):
    """A job of which a list may have left out what was too large for it."""

    __slots__ = ()

    raw: bytes = _fetched(JobRecord, "raw")
    failure: dict[str, Any] | None = _fetched(JobRecord, "failure")
    result: Any = _fetched(JobRecord, "result")
    history: list[dict[str, Any]] = _fetched(JobRecord, "history")
    dependencies: list[str] = _fetched(JobRecord, "dependencies")
    dependents: list[str] = _fetched(JobRecord, "dependents")
    saved: Any = _fetched(JobRecord, "saved")

    def _fetch(self, name: str) -> None:
        raise NotImplementedError


class Job(_PartlyRead):
    """A job of a Client as it was when it was looked at, and what can be done to it. Whoever runs it when it is moved,
    released, failed or cancelled has lost it. JobNotFound: it has gone since. What was too large for a list of jobs
    (`left_out`) is fetched when it is first asked for, as it is then.
    """

    __slots__ = ("_client",)
    _client: Caller

    def __init__(self, record: JobRecord, client: Caller) -> None:
        _take_on(self, record, JobRecord)
        object.__setattr__(self, "_client", client)

    def _fetch(self, name: str) -> None:
        """The whole job; but large data only for itself."""
        row = found(self.jid, self._client.call(queries.row, self.jid))
        names = queries.LARGE if name == "raw" else queries.LARGE.keys() - {"raw"}
        _take_on(self, self._client.follow(steps.whole(self.jid, row, names)), JobRecord)

    def cancel(self, *, by: str | None = None) -> bool:
        """Deletes the job; `by`: who wants that. False if there is none any more, or it is complete. Raises
        DependencyError if a job with the policy to wait depends on it.
        """
        return bool(self._client.call(writes.cancel, [self.jid], by=by))

    def fail(self, group: str, message: str) -> None:
        """Fails the job, whatever state it is in."""
        found(self.jid, self._client.call(writes.fail, self.jid, group, message))

    def move(self, queue: str, delay: Duration = 0) -> None:
        """Moves the job as it is into a queue, where it begins anew, after `delay` seconds."""
        found(self.jid, self._client.call(writes.move, self.jid, queue, delay))

    def unfail(self, queue: str | None = None, *, klass: str | None = None, data: Any = UNSET) -> bool:
        """Puts the job back, into a queue or its own, with new data or klass if given; it begins anew. A broken entry
        of another program is read again. False if it has not failed (any more), or is as broken as before.
        """
        return bool(self._client.call(writes.unfail_job, self.jid, queue, klass=klass, data=data))

    def set_priority(self, priority: int) -> int:
        """Changes the priority (lower runs sooner), which it answers; a waiting job keeps its age within it."""
        found(self.jid, self._client.call(writes.set_priority, self.jid, priority))
        return priority

    def release(self) -> bool:
        """Takes the job from its worker, to the front of its queue. False if it does not run."""
        return self._client.call(writes.release, [self.jid])[0]

    def tag(self, *tags: str) -> list[str]:
        """Adds tags and answers all that it has then."""
        return found(self.jid, self._client.call(writes.tag, self.jid, tags))

    def untag(self, *tags: str) -> list[str]:
        """Removes tags and answers those that it keeps."""
        return found(self.jid, self._client.call(writes.untag, self.jid, tags))

    def track(self) -> bool:
        """Follows the job: see Client.tracked. False if it was tracked already."""
        answer = self._client.call(writes.track, self.jid)
        return found(self.jid, None if answer is None else (answer,))[0]

    def untrack(self) -> bool:
        """Follows the job no longer. False if it was not tracked."""
        return self._client.call(writes.untrack, self.jid)

    def depend(self, *jids: str) -> None:
        """Has the job wait for these, too. Raises DependencyError if it is not in state depends, or would wait for
        itself.
        """
        found(self.jid, self._client.call(writes.depend, self.jid, jids))

    def undepend(self, *jids: str, all: bool = False) -> None:
        """Has the job wait for these no longer, or for nothing; without anything left it goes where it would have gone.
        Raises DependencyError if it is not in state depends.
        """
        found(self.jid, self._client.call(writes.undepend, self.jid, parents_given(jids, all)))


class AsyncJob(_PartlyRead):
    """A job of an AsyncClient: as Job, awaited. What was too large for a list (`left_out`) raises LeaseholdError
    when it is asked for: `await client.job(jid)` has it.
    """

    __slots__ = ("_client",)
    _client: AsyncCaller

    def __init__(self, record: JobRecord, client: AsyncCaller) -> None:
        _take_on(self, record, JobRecord)
        object.__setattr__(self, "_client", client)

    def _fetch(self, name: str) -> None:
        raise _too_large(self, name, "job")

    async def cancel(self, *, by: str | None = None) -> bool:
        """As Job.cancel."""
        return bool(await self._client.call(writes.cancel, [self.jid], by=by))

    async def fail(self, group: str, message: str) -> None:
        """As Job.fail."""
        found(self.jid, await self._client.call(writes.fail, self.jid, group, message))

    async def move(self, queue: str, delay: Duration = 0) -> None:
        """As Job.move."""
        found(self.jid, await self._client.call(writes.move, self.jid, queue, delay))

    async def unfail(self, queue: str | None = None, *, klass: str | None = None, data: Any = UNSET) -> bool:
        """As Job.unfail."""
        return bool(await self._client.call(writes.unfail_job, self.jid, queue, klass=klass, data=data))

    async def set_priority(self, priority: int) -> int:
        """As Job.set_priority."""
        found(self.jid, await self._client.call(writes.set_priority, self.jid, priority))
        return priority

    async def release(self) -> bool:
        """As Job.release."""
        return (await self._client.call(writes.release, [self.jid]))[0]

    async def tag(self, *tags: str) -> list[str]:
        """As Job.tag."""
        return found(self.jid, await self._client.call(writes.tag, self.jid, tags))

    async def untag(self, *tags: str) -> list[str]:
        """As Job.untag."""
        return found(self.jid, await self._client.call(writes.untag, self.jid, tags))

    async def track(self) -> bool:
        """As Job.track."""
        answer = await self._client.call(writes.track, self.jid)
        return found(self.jid, None if answer is None else (answer,))[0]

    async def untrack(self) -> bool:
        """As Job.untrack."""
        return await self._client.call(writes.untrack, self.jid)

    async def depend(self, *jids: str) -> None:
        """As Job.depend."""
        found(self.jid, await self._client.call(writes.depend, self.jid, jids))

    async def undepend(self, *jids: str, all: bool = False) -> None:
        """As Job.undepend."""
        found(self.jid, await self._client.call(writes.undepend, self.jid, parents_given(jids, all)))


def parents_given(jids: Sequence[str], all_of_them: bool) -> Sequence[str] | None:
    """What undepend is to take off; None = all."""
    if not isinstance(all_of_them, bool):
        raise TypeError(f"all must be a bool, not {type(all_of_them).__name__}: {all_of_them!r:.100}")
    if all_of_them and jids:
        raise ValueError(f"jids must not be given with all: {jids!r:.100}")
    return None if all_of_them else jids


# Recurring jobs.


class RecurringJob(Recurring):
    """A recurring job of a Client as it was when it was looked at, and what can be done to it."""

    __slots__ = ("_client",)
    _client: Caller

    def __init__(self, record: Recurring, client: Caller) -> None:
        _take_on(self, record, Recurring)
        object.__setattr__(self, "_client", client)

    raw: bytes = _fetched(Recurring, "raw")

    def _fetch(self, name: str) -> None:
        _take_on(self, found(self.jid, self._client.follow(steps.recurring(self.jid))), Recurring)

    def update(self, **changes: Unpack[RecurChanges]) -> None:
        """Changes what is given; the count goes on. Raises LeaseholdError if it does not come any more."""
        _updated(self, self._client.call(writes.update_recurring, self, changes))

    def tag(self, *tags: str) -> list[str]:
        """Adds tags for the jobs to come and answers all that it has then. Raises JobNotFound if it comes no more."""
        return found(self.jid, self._client.call(writes.tag_recurring, self.jid, tags))

    def untag(self, *tags: str) -> list[str]:
        """Removes tags and answers those that it keeps. Raises JobNotFound if it comes no more."""
        return found(self.jid, self._client.call(writes.untag_recurring, self.jid, tags))

    def cancel(self) -> bool:
        """It comes no more; the jobs that it has put stay. False if it did not."""
        return self._client.call(writes.unrecur, self.jid)


class AsyncRecurringJob(Recurring):
    """A recurring job of an AsyncClient: as RecurringJob, awaited."""

    __slots__ = ("_client",)
    _client: AsyncCaller

    def __init__(self, record: Recurring, client: AsyncCaller) -> None:
        _take_on(self, record, Recurring)
        object.__setattr__(self, "_client", client)

    raw: bytes = _fetched(Recurring, "raw")

    def _fetch(self, name: str) -> None:
        raise _too_large(self, name, "recurring")

    async def update(self, **changes: Unpack[RecurChanges]) -> None:
        """As RecurringJob.update."""
        _updated(self, await self._client.call(writes.update_recurring, self, changes))

    async def tag(self, *tags: str) -> list[str]:
        """As RecurringJob.tag."""
        return found(self.jid, await self._client.call(writes.tag_recurring, self.jid, tags))

    async def untag(self, *tags: str) -> list[str]:
        """As RecurringJob.untag."""
        return found(self.jid, await self._client.call(writes.untag_recurring, self.jid, tags))

    async def cancel(self) -> bool:
        """As RecurringJob.cancel."""
        return await self._client.call(writes.unrecur, self.jid)
