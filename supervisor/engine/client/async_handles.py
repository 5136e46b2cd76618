"""The leases, jobs and recurring jobs that an AsyncClient hands out. Runs in applications and commands.

They act through their client, and do no I/O by themselves. Each action is one command, one round trip. An action that
ends a lease or changes a job is sent once: if its answer does not arrive, OutcomeUnknown says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from supervisor.engine.client.answers import (
    checkpoint_of,
    completed,
    found,
    held,
    parents_given,
    renewal_of,
    renewed,
    updated,
)
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.records import AsyncPartialJob, AsyncPartialRecurring, fill, fill_lease
from supervisor.engine.commands import facts, job_changes, leasing, recurrences, settling
from supervisor.engine.model.bounds import WHY_S
from supervisor.engine.model.chunks import to_chunks
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import JobRecord, LeaseRecord
from supervisor.engine.model.outcomes import (
    ENDLESS,
    Answer,
    Completed,
    Died,
    Failed,
    Outcome,
    Released,
    Retried,
    Suspended,
)
from supervisor.engine.model.recurring import RecurChanges, Recurring
from supervisor.engine.model.validation import UNSET, Duration
from supervisor.engine.why.record import Why

T = TypeVar("T")


class AsyncLease(LeaseRecord):
    """A leased job of an AsyncClient."""

    __slots__ = ("_calls",)

    def __init__(self, record: LeaseRecord, calls: AsyncCalls) -> None:
        fill_lease(self, record)
        self._calls = calls

    async def renew(self, data: Any = UNSET) -> float:
        """Lengthen the lease by the queue's heartbeat from now, and return its new end in unix seconds.

        `data` replaces the job's data. A lease that has run out can be renewed until another worker takes the job.
        Raises LeaseLost.
        """
        [expires_unix] = await self._calls.call(leasing.renew, self.worker, renewal_of(self, data))
        return renewed(self, expires_unix)

    async def checkpoint(self, state: Any) -> float:
        """Store how far the work is, JSON of at most 64 KiB, and lengthen the lease as `renew` does.

        The next worker that leases the job finds it in `lease.saved`. It is deleted when the job completes or is put
        anew. Raises LeaseLost, TypeError or ValueError.
        """
        [expires_unix] = await self._calls.call(leasing.renew, self.worker, checkpoint_of(self, state))
        return renewed(self, expires_unix)

    async def stream(self, *chunks: Any) -> None:
        """Append chunks to what readers of the job's stream get: bytes or JSON, of at most 64 KiB each.

        Together they have at most 128 KiB. Raises LeaseLost, TypeError or ValueError.
        """
        packed = to_chunks(chunks)
        [is_held] = await self._calls.call(
            leasing.stream, self.worker, [leasing.Streamed(self.jid, self.token, None, packed)]
        )
        held(self, is_held or None)

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
        """End the job, or send it into the queue `next`, after `delay` seconds and the jobs of `depends`.

        `data` replaces the job's data. `result` is kept with a job that ends. `then` are jobs that are put in the same
        step: dicts of put's arguments and a queue. Returns True for exactly one caller, and False if the lease is lost.
        Raises DependencyError if the job or one of `then` would wait for itself, LeaseholdError if it is persistent.
        """
        return completed(self, await self._settle(Completed(self, result, data, next, delay, depends, then)))

    async def retry(self, delay: Duration | None = None, group: str | None = None, message: str | None = None) -> int:
        """Spend a retry: the job goes to the back of its priority, or runs again after `delay` seconds.

        Returns the retries that remain. A negative number means that there was none: the job has failed in `group`, or
        in failed-retries-<queue>. Raises LeaseLost.
        """
        return int(held(self, await self._settle(Retried(self, delay, group, message))))

    async def fail(self, group: str, message: str, data: Any = UNSET) -> bool:
        """Fail the job for good. `data` replaces its data. Returns False if the lease is lost."""
        return await self._settle(Failed(self, group, message, data=data)) is True

    async def release(self, started: bool = True) -> bool:
        """Return the job to the front of its queue, and count an interruption if it had started.

        Returns False if the lease is lost.
        """
        return await self._settle(Released(self, started)) is True

    async def suspend(self, name: str, timeout: Duration | None = None) -> bool:
        """End the lease until the job gets the signal `name`, or for `timeout` seconds. It spends nothing.

        The next lease has it in `signals`. Returns False if the lease is lost. Raises LeaseholdError for a persistent
        or an at-most-once job, which cannot start again.
        """
        answer = await self._settle(Suspended(self, name, timeout))
        if answer == ENDLESS:
            raise LeaseholdError(f"job {self.jid} cannot wait: it is persistent, or must not start twice")
        return answer is True

    async def died(self, reason: str) -> str:
        """Count a death, and return the job's new state: waiting, scheduled or failed. Raises LeaseLost."""
        return str(held(self, await self._settle(Died(self, reason))))

    async def _settle(self, outcome: Outcome) -> Answer:
        [answer] = await self._calls.call(settling.settle, self.worker, [outcome])
        return answer


class AsyncJob(AsyncPartialJob):
    """A job of an AsyncClient as it was when it was read, and what can be done to it.

    A worker that runs the job when it is moved, released, failed or cancelled loses it. JobNotFound: the job is gone.
    An attribute that was too large for a list (`left_out`) raises LeaseholdError; `await client.job(jid)` has it.
    """

    __slots__ = ("_calls",)
    _calls: AsyncCalls

    def __init__(self, record: JobRecord, calls: AsyncCalls) -> None:
        fill(self, record, JobRecord)
        object.__setattr__(self, "_calls", calls)

    async def why(self, *, timeout: Duration = WHY_S) -> Why:
        """Tell why the job stands where it does now, also if it is gone since it was read.

        `timeout`: as for the client's.
        """
        return await self._calls.why(facts.of_job, self.jid, timeout)

    async def cancel(self, *, by: str | None = None) -> bool:
        """Delete the job. `by` names who wants that. Returns False if it is gone or complete.

        Raises DependencyError if a job with the policy to wait depends on it.
        """
        return bool(await self._calls.act(job_changes.cancel, [self.jid], by=by))

    async def fail(self, group: str, message: str) -> None:
        """Fail the job in any state."""
        found(self.jid, await self._calls.act(job_changes.fail, self.jid, group, message))

    async def move(self, queue: str, delay: Duration = 0) -> None:
        """Move the job as it is into a queue, where it begins anew, after `delay` seconds."""
        found(self.jid, await self._calls.act(job_changes.move, self.jid, queue, delay))

    async def unfail(self, queue: str | None = None, *, klass: str | None = None, data: Any = UNSET) -> bool:
        """Put the failed job back, into `queue` or its own, with the new data or klass if given. It begins anew.

        A broken entry of another program is read again. Returns False if the job has not failed, or is still broken.
        """
        return bool(await self._calls.act(job_changes.unfail_job, self.jid, queue, klass=klass, data=data))

    async def set_priority(self, priority: int) -> int:
        """Change the priority (lower runs sooner) and return it. A waiting job keeps its age within it."""
        found(self.jid, await self._calls.act(job_changes.set_priority, self.jid, priority))
        return priority

    async def release(self) -> bool:
        """Take the job from its worker, to the front of its queue. Returns False if it does not run."""
        [is_released] = await self._calls.act(job_changes.release, [self.jid])
        return is_released

    async def tag(self, *tags: str) -> list[str]:
        """Add tags, and return all tags that the job then has."""
        return found(self.jid, await self._calls.act(job_changes.tag, self.jid, tags))

    async def untag(self, *tags: str) -> list[str]:
        """Remove tags, and return those that the job keeps."""
        return found(self.jid, await self._calls.act(job_changes.untag, self.jid, tags))

    async def track(self) -> bool:
        """Track the job: see AsyncClient.tracked. Returns False if it was tracked already."""
        answer = await self._calls.act(job_changes.track, self.jid)
        return found(self.jid, None if answer is None else (answer,))[0]

    async def untrack(self) -> bool:
        """Track the job no longer. Returns False if it was not tracked."""
        return await self._calls.act(job_changes.untrack, self.jid)

    async def depend(self, *jids: str) -> None:
        """Make the job wait for these jobs too.

        Raises DependencyError if it is not in state depends, or would wait for itself.
        """
        found(self.jid, await self._calls.act(job_changes.depend, self.jid, jids))

    async def undepend(self, *jids: str, all: bool = False) -> None:
        """Make the job wait for these jobs no longer, or for none. Without any left it goes where it would have gone.

        Raises DependencyError if it is not in state depends.
        """
        found(self.jid, await self._calls.act(job_changes.undepend, self.jid, parents_given(jids, all)))


class AsyncRecurringJob(AsyncPartialRecurring):
    """A recurring job of an AsyncClient as it was when it was read, and what can be done to it."""

    __slots__ = ("_calls",)
    _calls: AsyncCalls

    def __init__(self, record: Recurring, calls: AsyncCalls) -> None:
        fill(self, record, Recurring)
        object.__setattr__(self, "_calls", calls)

    async def update(self, **changes: Unpack[RecurChanges]) -> None:
        """Change the given options. The count goes on. Raises LeaseholdError if the recurring job is gone."""
        updated(self, await self._calls.act(recurrences.update, self, changes))

    async def tag(self, *tags: str) -> list[str]:
        """Add tags for the jobs to come, and return all tags of the recurring job. Raises JobNotFound if it is gone."""
        return found(self.jid, await self._calls.act(recurrences.tag, self.jid, tags))

    async def untag(self, *tags: str) -> list[str]:
        """Remove tags, and return those that the recurring job keeps. Raises JobNotFound if it is gone."""
        return found(self.jid, await self._calls.act(recurrences.untag, self.jid, tags))

    async def cancel(self) -> bool:
        """Delete the recurring job. The jobs that it has put stay. Returns False if it was gone."""
        return await self._calls.act(recurrences.unrecur, self.jid)
