"""A queue of an AsyncClient, and its lanes. Runs in applications and commands (never in zygote or child)."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from supervisor.engine.client.answers import checked_many, dicts_of, jid_of
from supervisor.engine.client.around_put import Put, around, check_count
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.async_config import AsyncConfig
from supervisor.engine.client.async_handles import AsyncJob, AsyncLease, AsyncRecurringJob
from supervisor.engine.commands import (
    deleting,
    facts,
    job_queries,
    lanes,
    queue_counts,
    recent,
    recurrences,
    statistics,
)
from supervisor.engine.commands.deleting import Deleted
from supervisor.engine.commands.lanes import LaneCounts, in_lane
from supervisor.engine.commands.queue_counts import Counts
from supervisor.engine.commands.recent import Recent
from supervisor.engine.commands.routes import united
from supervisor.engine.commands.statistics import Stats
from supervisor.engine.model.bounds import WHY_S
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import PutOptions, new_job
from supervisor.engine.model.recurring import RecurOptions
from supervisor.engine.model.validation import Duration, checked_each
from supervisor.engine.why.record import Why

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient


class AsyncQueue:
    """One queue of an AsyncClient."""

    __slots__ = ("_calls", "_client", "name")

    def __init__(self, calls: AsyncCalls, client: "AsyncClient", name: str) -> None:
        self._calls = calls
        self._client = client
        self.name = checked_name("queue", name)

    async def put(self, klass: str, data: Any = None, *, durable: bool = False, **options: Unpack[PutOptions]) -> str:
        """Create a job, and return its jid.

        `durable`: wait, for at most `acknowledge-timeout` of the configuration, until replicas have it: the client's
        `acknowledge`, else the configuration's, at least one. Raises OutcomeUnknown if they have not: the job is there,
        and a failover may lose it.

        A known jid is moved, from any state, and begins anew; a worker that runs it loses its lease. Options that are
        not given keep the job's values. If another job that has not ended holds the `unique` key, nothing changes, and
        the answer is its jid. Raises DependencyError if the job would wait for itself.
        """
        if self._calls.around_puts:
            [jid] = await self._put_around("put", [{**options, "klass": klass, "data": data}], durable)
            return str(jid)
        job = new_job("put", self.name, klass, data, options)
        [answer] = await self._calls.put_jobs([job], durable)
        return jid_of(job, answer)

    async def add(self, klass: str, data: Any = None, *, durable: bool = False, **options: Unpack[PutOptions]) -> bool:
        """Create a job. Returns False, and changes nothing, if its jid exists or another job holds the `unique` key.

        `durable`: as put has it.
        """
        if self._calls.around_puts:
            [answer] = await self._put_around("add", [{**options, "klass": klass, "data": data}], durable)
            return answer is not False
        [answer] = await self._calls.put_jobs([new_job("add", self.name, klass, data, options)], durable)
        return answer is not False

    async def put_many(self, jobs: Iterable[Mapping[str, Any]], *, durable: bool = False) -> list[str]:
        """Put jobs, each a dict of put's arguments, and return put's answer for each.

        All are checked before the first is sent. Each 1,000 jobs (or 256 MB of data) are put as one batch, all or none.
        A job may depend on those before it.

        If a batch is refused, or its answer is lost, no further one is sent. The one behind it may be under way by
        then, and is put without it; only if jobs have `depends`, each batch waits for the answer to the last. The
        `jobs` of the error name those that were put, perhaps put, and not put. OutcomeUnknown comes before other
        errors. `durable`: as put has it; each batch then waits for the answer to the last.
        """
        if self._calls.around_puts:
            return [str(jid) for jid in await self._put_around("put", dicts_of(jobs), durable)]
        return await self._calls.put_batches(checked_many(self.name, jobs), durable)

    async def _put_around(
        self, verb: Literal["put", "add"], jobs: list[dict[str, Any]], durable: bool
    ) -> Sequence[str | bool]:
        count = len(jobs)
        with around(self._calls.around_puts, Put(verb, self.name, jobs)) as put:
            check_count(put, count)
            answers: Sequence[str | bool]
            if verb == "add":
                one = {**put.jobs[0]}
                job = new_job("add", self.name, one.pop("klass"), one.pop("data", None), one)
                answers = await self._calls.put_jobs([job], durable)
            else:
                answers = await self._calls.put_batches(checked_many(self.name, put.jobs), durable)
            put.answers = list(answers)
        return answers

    async def recur(self, klass: str, data: Any = None, **options: Unpack[RecurOptions]) -> str:
        """Create a recurring job, and return its jid. It puts the jobs <jid>-1, <jid>-2 …

        They come `every` so many seconds, or by a `cron` expression. A known jid is replaced, and its count goes on.
        """
        return await self._calls.act(recurrences.recur, self.name, klass, data, options)

    async def lease(
        self, worker: str, count: int = 1, ttl: Duration | None = None, block: Duration = 0
    ) -> list[AsyncLease]:
        """Lease jobs of this queue, as AsyncClient.lease does."""
        return await self._client.lease(worker, [self.name], count, ttl, block=block)

    async def jobs(self, state: str, offset: int = 0, count: int = 25) -> Sequence[AsyncJob | AsyncRecurringJob]:
        """Return up to `count` (at most 1,000) jobs in a state, from `offset` on.

        States: waiting, running, stalled, scheduled, depends, parked, complete, failed, and recurring.
        """
        if state == "recurring":
            recurring = await self._calls.run(recurrences.in_queue(self.name, offset, count))
            return [AsyncRecurringJob(record, self._calls) for record in recurring]
        records = await self._calls.call(job_queries.listed, state, self.name, offset, count)
        return [AsyncJob(record, self._calls) for record in records]

    async def peek(self, n: int = 1) -> list[AsyncJob]:
        """Return the next `n` jobs to be leased, without a change."""
        return [AsyncJob(record, self._calls) for record in await self._calls.call(job_queries.peek, self.name, n)]

    async def counts(self) -> Counts:
        """Return how many jobs are in each state, and whether the queue is paused."""
        by_queue = await self._calls.call(queue_counts.counts, [self.name])
        return by_queue[self.name]

    async def why(self, *, timeout: Duration = WHY_S) -> Why:
        """Tell why the jobs of the queue start, or do not. `timeout`: as for the client's."""
        return await self._calls.why(facts.of_queue, self.name, timeout)

    async def length(self) -> int:
        """Return how many jobs can be leased: waiting (the front and what is due included) and stalled."""
        counts = await self.counts()
        return counts.waiting + counts.stalled

    async def cancel(self, data: Any, *, by: str | None = None) -> list[str]:
        """Cancel every job of the queue with this data, except complete and failed ones, and return their jids.

        A worker that runs one loses it. The order of JSON's keys does not matter. This takes several round trips, and
        may miss jobs that are put meanwhile.
        """
        return await self._calls.follow_each(
            lambda: deleting.cancel_equal(self.name, data, self._calls.clock, self._calls.named(by)), united
        )

    async def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """Drop all jobs in the queue that do not run, and its recurring jobs. A queue that is empty then is forgotten.

        Running jobs end by themselves, or are cancelled ("stop"); persistent ones are always cancelled. Complete and
        failed jobs stay. This takes several round trips, and may miss jobs that are put meanwhile.
        """
        return await self._calls.follow_each(
            lambda: deleting.delete(self.name, None, running, self._calls.clock, self._calls.named(by)), Deleted.of_all
        )

    def lane(self, name: str) -> "AsyncLane":
        """Return a lane by its name, without a round trip. A lane exists while a job is in it."""
        return AsyncLane(self._calls, self, name)

    async def lanes(self) -> dict[str, LaneCounts]:
        """Return the lanes that hold jobs, or have a weight or a pause, by name. "" is the lane of jobs without one."""
        return await self._calls.follow(lanes.read_all(self.name, self._calls.clock))

    async def stats(self, date: datetime.date | str | float | None = None) -> Stats:
        """Return how long jobs waited and ran on a UTC day (default: today), and how they ended."""
        return await self._calls.call(statistics.read, self.name, date)

    async def recent(self) -> Recent:
        """Return within which time half and 95 % of the jobs waited and ran, in the last hour, day and 30 days."""
        return await self._calls.call(recent.read, self.name)

    async def pause(self, *, by: str | None = None) -> None:
        """Stop leasing from the queue. Running jobs go on, and keep their leases.

        `by` names who pauses it, in at most 128 bytes; `counts` answers it.
        """
        await AsyncConfig(self._calls).set(f"paused-{self.name}", True, by=by)

    async def unpause(self) -> None:
        """End a pause."""
        await AsyncConfig(self._calls).unset(f"paused-{self.name}")

    async def forget(self) -> bool:
        """Remove the queue from the list of queues. Returns False if it was not there.

        Raises LeaseholdError if it is not empty.
        """
        return await self._calls.follow_each(
            lambda: deleting.forget(self.name, self._calls.clock, self._calls.named(None)), any
        )

    # sync only: def __len__(self) -> int:
    # sync only:     return self.length()
    # sync only:
    # sync only: def __bool__(self) -> bool:
    # sync only:     return True  # a queue without jobs is a queue


class AsyncLane:
    """One lane of an AsyncQueue: the jobs of one client, or tenant.

    Lanes take turns by their weights, however many jobs they hold.
    """

    __slots__ = ("_calls", "_queue", "name")

    def __init__(self, calls: AsyncCalls, queue: AsyncQueue, name: str) -> None:
        self._calls = calls
        self._queue = queue
        self.name = checked_name("lane", name)

    async def put(self, klass: str, data: Any = None, *, durable: bool = False, **options: Unpack[PutOptions]) -> str:
        """Put a job into this lane, as AsyncQueue.put does."""
        return await self._queue.put(klass, data, durable=durable, **in_lane(self.name, options))

    async def add(self, klass: str, data: Any = None, *, durable: bool = False, **options: Unpack[PutOptions]) -> bool:
        """Add a job to this lane, as AsyncQueue.add does."""
        return await self._queue.add(klass, data, durable=durable, **in_lane(self.name, options))

    async def put_many(self, jobs: Iterable[Mapping[str, Any]], *, durable: bool = False) -> list[str]:
        """Put jobs into this lane, as AsyncQueue.put_many does."""
        each = checked_each("jobs", jobs, "dicts of put's arguments")
        return await self._queue.put_many((in_lane(self.name, job) for job in each), durable=durable)

    async def counts(self) -> LaneCounts:
        """Return how many jobs are in each state, the lane's weight, and whether it is paused."""
        return await self._calls.call(lanes.read_one, self._queue.name, self.name)

    async def length(self) -> int:
        """Return how many jobs can be leased: waiting and stalled."""
        counts = await self.counts()
        return counts.waiting + counts.stalled

    async def pause(self, *, by: str | None = None) -> None:
        """Start no more jobs of the lane. Running jobs go on, and other lanes get its turns.

        `by` names who pauses it, as for a queue.
        """
        await self._calls.act(lanes.pause, self._queue.name, self.name, by=by)

    async def unpause(self) -> None:
        """End a pause."""
        await self._calls.act(lanes.unpause, self._queue.name, self.name)

    async def weight(self, n: int) -> None:
        """Give the lane `n` starts (1 to 1,000) for each start of a lane of weight 1."""
        await self._calls.act(lanes.weigh, self._queue.name, self.name, n)

    async def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """Delete this lane's jobs, as AsyncQueue.delete does. Its weight and its pause stay."""
        return await self._calls.follow_each(
            lambda: deleting.delete(self._queue.name, self.name, running, self._calls.clock, self._calls.named(by)),
            Deleted.of_all,
        )
