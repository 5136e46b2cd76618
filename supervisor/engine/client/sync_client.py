# Generated from async_client.py by `python -m tests.engine.client.sync_from_async`; do not edit.
"""The Client. Runs in applications and commands (never in zygote or child).

Every call is a command of `engine/commands/` that the store runs. Must not: send anything twice.
"""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Self, overload

import redis as redis_py
from redis.credentials import CredentialProvider

from supervisor import clock as times
from supervisor.engine.client.answers import (
    ENDED,
    NOTHING,
    SWEPT,
    at_most,
    checked_wait_s,
    found,
    in_steps,
    pause_s,
    result_of,
    served,
    worker_of,
)
from supervisor.engine.client.around_put import A, checked
from supervisor.engine.client.connection import (
    Clock,
    Share,
    checked_clock,
    find_namespace,
    find_poll,
    find_server,
    shown_address,
)
from supervisor.engine.client.event_stream import EventFilter, EventStream
from supervisor.engine.client.job_stream import BEGINNING, JobStream, StreamReading
from supervisor.engine.client.pools import pool_like, pool_of
from supervisor.engine.client.sync_batches import Batch
from supervisor.engine.client.sync_calls import Calls
from supervisor.engine.client.sync_config import Config
from supervisor.engine.client.sync_doors import Doors
from supervisor.engine.client.sync_handles import Job, Lease, RecurringJob
from supervisor.engine.client.sync_queues import Queue
from supervisor.engine.client.sync_shards import Shards
from supervisor.engine.client.sync_store import Store
from supervisor.engine.commands import (
    audit,
    batches,
    concerns,
    facts,
    job_changes,
    job_queries,
    leasing,
    limits,
    mailbox,
    maintenance,
    queue_counts,
    recurrences,
    settling,
    steps,
    waits,
    workers,
)
from supervisor.engine.commands.audit import Act
from supervisor.engine.commands.batches import BatchCounts, BatchRecord, Callback
from supervisor.engine.commands.check import Check, Violation
from supervisor.engine.commands.concerns import Concerns
from supervisor.engine.commands.job_queries import Cancelled, Tracked
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.limits import Limit, LimitJobs
from supervisor.engine.commands.queue_counts import Depths
from supervisor.engine.commands.workers import WorkerInfo, WorkerJobs
from supervisor.engine.model.bounds import MOST, WHY_S
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import JobRecord
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.outcomes import Answer, Outcome
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import UNSET, Duration, checked_each, checked_int, checked_seconds
from supervisor.engine.transport.credentials import checked_credentials
from supervisor.engine.why.record import Why

log = logging.getLogger("leasehold")


def _wakeups_of(queues: Sequence[str]) -> Callable[[Namespace], list[str]]:
    """Return what names the wake-up keys of these queues in a shard."""
    return lambda shard: [shard.wakeup(queue) for queue in queues]


class Client:
    """The queue, for programs that block. Use it as a context manager, or close it.

    Threads may share a client.

    Nearly every method is one round trip. More may be: a lease that blocks or serves globs, wait, limit, check, sweep,
    put_many, the lists of all queues, lanes or limits, and deletions and cancellations by content. Arguments are
    checked before anything is sent: TypeError and ValueError name the argument. StoreUnavailable: nothing has changed.
    OutcomeUnknown: the answer was lost. Nothing is ever sent a second time.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        redis: redis_py.Redis | None = None,
        acknowledge: int = 0,
        credentials: Callable[[], Any] | CredentialProvider | None = None,
        poll: Duration | None = None,
        actor: str | None = None,
    ) -> None:
        """Connect to nothing yet; the first call does.

        `url`: None = LEASEHOLD_REDIS_URL, else the embedded server, which "embedded:" names too. `namespace`: None =
        LEASEHOLD_NAMESPACE, else leasehold. `clock` returns unix seconds in place of the server's clock. `redis`: an
        existing connection whose address and credentials are used; it is never closed. `acknowledge`: how many replicas
        must have each put before it returns; 0: only those that are `durable` wait, for as many as are configured.
        `credentials`: a function that returns user and password for each connection, in place of the url's, or a
        provider of redis-py. It runs in a thread of its own, and has 5 s. `poll`: calls that wait look in Redis at this
        interval, and do not wait there; 0: they wait there; None = LEASEHOLD_REDIS_POLL. `actor` names in at most 128
        bytes who acts, for `audit`, `cancelled`, the log and the events; `by` of a call goes before.
        """
        self._namespace = find_namespace(namespace)
        clock, acknowledge = checked_clock(clock), checked_int("acknowledge", acknowledge, 0)
        account = checked_credentials(credentials)
        poll_s = find_poll(poll)
        self._share: Share | None = None
        if redis is None:
            address = find_server(url)
            self._share = address.share
            shown = address.shown
        elif url is not None or credentials is not None:
            raise ValueError("redis excludes url and credentials")
        else:
            shown = shown_address(pool_like(redis_py, redis).connection_kwargs)

        def store_of(shard: Namespace) -> Store:
            given = pool_like(redis_py, redis) if redis else pool_of(redis_py, address.url, shard.prefix, account)
            return Store(given, shown, shard, poll_s)

        self._store = Shards(store_of, self._namespace)
        self._calls = Calls(self._store, self._namespace, clock, acknowledge, actor)
        #: The configuration of the namespace, in Redis.
        self.config = Config(self._calls)
        self.doors = Doors(self._calls)

    def acting_as(self, actor: str) -> Self:
        """Return a client of another actor on the connections of this one, which alone is to be closed."""
        other, calls = copy(self), self._calls.acting_as(actor)
        vars(other).update(_share=None, _calls=calls, config=Config(calls), doors=Doors(calls))
        return other

    def around_put(self, around: A) -> A:
        """Have `around(put)` run around each put, add and put_many of this client. Returns the function.

        It is a generator that yields once, or a context manager. It may change the dicts in `put.jobs` before anything
        is checked or sent; what it raises then refuses the put. After its yield `put.answers` has what was answered;
        an error of the put is raised at the yield. The first function is the outermost. It must not block for long.
        """
        self._calls.own_around_puts.append(checked(around))
        return around

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and leave the embedded server. Idempotent; a later call connects again."""
        self._store.close()
        share, self._share = self._share, None
        if share is not None:
            share.release()

    # leasing

    def lease(
        self,
        worker: str,
        queues: Sequence[str],
        count: int = 1,
        ttl: Duration | None = None,
        order: str = "strict",
        block: Duration = 0,
    ) -> list[Lease]:
        """Lease up to `count` (at most 1,000) jobs for `ttl` (default: the queue's heartbeat).

        `queues` may be globs (`email-*`) and exclusions (`!email-bulk`). One lease serves 1,000 queues at most. `order`
        is strict (as listed), round-robin (going on where the worker's last lease stopped), random or weighted
        (`high:3`). `block` waits up to so long for the first job. Without it a lease may give none, because it
        reads 16 more jobs than are wanted, and those may not start now. The next call goes on behind them.
        """
        wanted = Queues(queues, order)
        deadline_at, woken = times.monotonic() + checked_wait_s("block", block), None
        ttl_s = None if ttl is None else checked_seconds("ttl", ttl)
        while True:
            names = self._resolve(wanted)
            grant = NOTHING
            if names:
                weights = wanted.weights(names)
                grant = self._calls.call(
                    leasing.lease, worker, names, count, ttl_s=ttl_s, order=order, weights=weights,
                    woken=woken is not None, first_shard=woken,
                )  # fmt: skip
            left_s = deadline_at - times.monotonic()
            if self._put_due(grant) and not grant.leases:
                continue
            if grant.leases or left_s <= 0 or count == 0:
                return [Lease(record, self._calls) for record in grant.leases]
            wait_s = pause_s(grant, left_s, self._store.longest_wait_s)
            if wait_s > 0:
                # A pattern has no wake-up key of its own; its name stands for the queues that do not exist yet.
                woken = self._store.pop_any(_wakeups_of(names or wanted.patterns), wait_s)

    def _put_due(self, grant: Grant) -> bool:
        """Put the cron jobs that a lease has found due, and return whether there were any."""
        try:
            return self._calls.spawn(grant.due, grant.now_unix)
        except LeaseholdError as error:
            if not grant.leases:
                raise
            # An error here would lose the leases, and no worker would have the jobs until they expire. The cron time
            # stays due, so the next lease or sweep puts its job.
            log.warning("a due cron job was not put, and is left to the next lease or sweep: %s", error)
            return False

    def _resolve(self, wanted: Queues) -> tuple[str, ...]:
        return at_most(wanted, self._calls.run(queue_counts.names()) if wanted.has_globs else ())

    def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """End up to 1,000 leases of one worker, and return one answer for each.

        All end in one step, unless their completions put more than 1,000 jobs together, where many tags or parents
        count for more, or take more than 3,000 parents or tags from known jobs: then they end in several.
        Completed, Failed and Released answer True, or False if the lease is lost. Retried answers the retries that
        remain, Died the new state; both answer None if the lease is lost.
        """
        outcomes = list(checked_each("outcomes", outcomes, "outcomes"))
        if not outcomes:
            return []
        return self._calls.follow(
            settling.settle_in_parts(worker_of(outcomes), in_steps(outcomes), self._calls.clock())
        )

    def sweep(self, count: int = 100) -> int:
        """Take up to `count` (at most 1,000) jobs from workers that are lost for longer than the grace.

        Puts due recurring jobs and drops what was kept too long, too. Returns how many jobs it took. Masters sweep by
        themselves.
        """
        checked_int("count", count, 1, MOST)

        def work() -> int:
            left = count
            for calls in self._calls.of_each_shard():
                left -= self._sweep(calls, left) if left else 0
            return count - left

        return self._calls.shards.again(work)

    def _sweep(self, calls: Calls, count: int) -> int:
        """Take up to `count` jobs in one shard. Returns how many."""
        left, offset = count, 0
        while True:
            most = min(left, SWEPT)
            swept = calls.act(maintenance.sweep, most, offset=offset)
            calls.spawn(swept.due, swept.now_unix)
            left -= swept.taken
            if swept.taken < most:
                offset = swept.next_offset
            if left <= 0 or not (offset or swept.taken):  # a call may leave some to the next one
                return count - left

    # jobs

    def job(self, jid: str) -> Job | None:
        """Return a job as it is now; None if there is none."""
        record = self._calls.follow(job_queries.read_whole(jid, self._calls.clock))
        return Job(record, self._calls) if record else None

    def jobs(self, *jids: str) -> list[Job | None]:
        """Return up to 1,000 jobs as they are now, and None for each that does not exist.

        Data above 64 KiB, or beyond 1 MiB of all jobs, is fetched when it is first asked for.
        """
        records = self._calls.call(job_queries.jobs, jids)
        return [Job(record, self._calls) if record else None for record in records]

    def cancel(self, *jids: str, by: str | None = None) -> list[str]:
        """Delete up to 1,000 jobs in any state but complete, all or none, and return the jids of those that existed.

        A worker that runs one loses it. `by` names who wants that, in at most 128 bytes, for `cancelled`, the log and
        the events. Raises DependencyError if a job that is not listed waits for one of them. Jobs whose policy is to
        fail or run then do so.
        """
        return self._calls.act(job_changes.cancel, jids, by=by)

    def signal(self, jid: str, name: str, value: Any = None) -> bool:
        """Send a job a signal: `job.wait(name)` in its handler returns the value, JSON of at most 64 KiB.

        A job that waits for it goes to the front of its queue. Else the signal is kept until the handler waits; a later
        one of the same name replaces it. Returns False if the job is gone or complete. Raises LeaseholdError for the
        101st name of a job.
        """
        return self._calls.act(job_changes.signal, jid, name, value)

    def cancelled(self, jid: str) -> Cancelled | None:
        """Return when and by whom a job was cancelled. None: it was not, or Redis has forgotten it.

        The newest 10,000 cancellations are kept for up to seven days, also those by the deletion of a queue.
        """
        return self._calls.run(job_queries.cancelled(jid))

    def audit(self, subject: str | None = None, offset: int = 0, count: int = 25) -> list[Act]:
        """Return up to 1,000 acts, the newest first: all, or those on the job, queue or other thing of this name.

        Acts on queues, lanes, limits, options, supervisors and batches are recorded, and those on jobs if their actor
        is named. The newest 10,000 are kept, for up to 90 days.
        """
        return self._calls.run(audit.read(subject, offset, count))

    def why(self, jid: str, *, timeout: Duration = WHY_S) -> Why:
        """Tell why a job stands where it does, also of one that is cancelled, gone or was never put.

        Workers are asked, for at most `timeout`, if only they know more than Redis; 0 asks none.
        """
        return self._calls.why(facts.of_job, jid, timeout)

    def why_worker(self, name: str, *, timeout: Duration = WHY_S) -> Why:
        """Tell why a worker starts no jobs, and what else is wrong with it. A supervisor is asked, for `timeout`."""
        return self._calls.why_worker(name, timeout)

    def wait(self, jid: str, timeout: Duration) -> Any:
        """Wait until a job has ended, at most `timeout`, and return its result.

        Raises JobFailed if it fails, and TimeoutError. Raises JobNotFound if there is no such job, if it is cancelled,
        or if completed jobs are not kept.
        """
        longest_s = checked_wait_s("timeout", timeout)
        deadline_at = times.monotonic() + longest_s
        while True:
            state = self._calls.call(waits.wait_for, jid)
            if state in ENDED:
                result = result_of(jid, self.job(jid))
                if result is not UNSET:
                    return result
            left_s = deadline_at - times.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {jid} has not ended within {longest_s:g} s")
            self._store.pop_of(jid, lambda shard: [shard.ended(jid)], min(left_s, self._store.longest_wait_s))

    def completed(self, offset: int = 0, count: int = 25) -> list[Job]:
        """Return completed jobs, newest first."""
        return self._acting(self._calls.call(job_queries.listed, "complete", None, offset, count))

    @overload
    def failed(self) -> dict[str, int]: ...
    @overload
    def failed(self, group: str, start: int = 0, limit: int = 25) -> tuple[int, list[Job]]: ...
    def failed(
        self, group: str | None = None, start: int = 0, limit: int = 25
    ) -> dict[str, int] | tuple[int, list[Job]]:
        """Return the number of failed jobs of each group; or one group's number and some of its jobs, newest first."""
        if group is None:
            return self._calls.call(job_queries.failed_groups)
        total, records = self._calls.call(job_queries.failed_jobs, group, start, limit)
        return total, self._acting(records)

    def unfail(
        self, group: str, queue: str | None = None, count: int = 25, *, klass: str | None = None, data: Any = UNSET
    ) -> int:
        """Put up to `count` (at most 1,000) failed jobs of a group back, oldest first, and return how many.

        They go into `queue`, or each into its own, with the new data or klass if given. Each begins anew. A broken
        entry of another program is read again, and stays failed if it is still broken.
        """
        return self._calls.act(job_changes.unfail, group, queue, count, klass=klass, data=data)

    # batches

    def batch(
        self,
        id: str | None = None,
        *,
        on_success: Callback | None = None,
        on_failure: Callback | None = None,
        on_complete: Callback | None = None,
        description: str = "",
    ) -> Batch:
        """Return a batch: a new one for a `with` block, or the handle of the one with this `id`. Sends nothing.

        The callbacks are jobs, as `handler.job(…)` returns them, or dicts of put's arguments and a queue. Each is put
        once, in the step in which the last job ends: `on_complete` when all have ended for the first time, `on_success`
        when all are complete, `on_failure` when all have ended and one has failed. They have at most 64 KiB of data,
        and no delay, parents or claim. Raises TypeError or ValueError.
        """
        callbacks = {"on_success": on_success, "on_failure": on_failure, "on_complete": on_complete}
        return Batch(self, self._calls, id, description, callbacks)

    def batches(self, offset: int = 0, count: int = 25) -> list[BatchRecord]:
        """Return up to 1,000 batches: those that have not ended, then the others, the last ended one first.

        The newest 10,000 ended batches are kept for seven days.
        """
        return (self._calls.call(batches.listed, offset, count)).rows

    def batch_counts(self) -> BatchCounts:
        """Return how many batches there are."""
        return (self._calls.call(batches.listed, 0, 0)).counts

    # marks of jobs

    def log(self, jid: str, message: str, data: Any = None) -> None:
        """Write a line into a job's history. Raises JobNotFound."""
        found(jid, self._calls.act(job_changes.log, jid, message, data))

    def track(self, jid: str) -> bool:
        """Track a job. Returns False if it was tracked already. Raises JobNotFound."""
        answer = self._calls.act(job_changes.track, jid)
        return found(jid, None if answer is None else (answer,))[0]

    def untrack(self, jid: str) -> bool:
        """Track a job no longer, also one that is gone. Returns False if it was not tracked."""
        return self._calls.act(job_changes.untrack, jid)

    def tracked(self) -> Tracked[Job]:
        """Return the tracked jobs, and the jids of those that are gone: the 1,000 that were tracked last."""
        tracked = self._calls.call(job_queries.tracked)
        return Tracked(self._acting(tracked.jobs), tracked.expired)

    def tagged(self, tag: str, offset: int = 0, count: int = 25) -> tuple[int, list[Job]]:
        """Return how many jobs have a tag, and some of them, oldest tagged first."""
        total, records = self._calls.call(job_queries.tagged, tag, offset, count)
        return total, self._acting(records)

    def tags(self, offset: int = 0, count: int = 25) -> dict[str, int]:
        """Return the tags, most used first, with how many jobs have each."""
        return self._calls.run(job_queries.tags(offset, count))

    def _acting(self, records: Sequence[JobRecord]) -> list[Job]:
        return [Job(record, self._calls) for record in records]

    # queues

    def queue(self, name: str) -> Queue:
        """Return a queue by its name, without a round trip. A queue comes into being with its first put."""
        return Queue(self._calls, self, name)

    def queues(self) -> dict[str, Depths]:
        """Return all known queues, in the order of their first put, with their counts and the age of the oldest job."""
        return self._calls.follow_each(
            lambda: steps.all_pages(lambda offset: queue_counts.depths((), offset, now=self._calls.clock())),
            queue_counts.added,
        )

    def concerns(self) -> Concerns:
        """Return what waits until a person acts, or has gone wrong unseen: all queues of which that is so, failed jobs,
        limits of 0, and the server's memory. One round trip for each 1,000 queues; fewer where many workers live.
        """
        return self._calls.follow_each(lambda: concerns.read_all(self._calls.clock), concerns.of_all)

    # recurring jobs and limits

    def recurring(self, jid: str) -> RecurringJob | None:
        """Return a recurring job; None if there is none."""
        record = self._calls.follow(recurrences.read_whole(jid))
        return RecurringJob(record, self._calls) if record else None

    def unrecur(self, jid: str) -> bool:
        """Delete a recurring job. The jobs that it has put stay; a later `recur` of its jid counts anew.

        Returns False if there was none.
        """
        return self._calls.act(recurrences.unrecur, jid)

    def limit(self, key: str, running: int | None = None, rate: str | None = None, *, by: str | None = None) -> Limit:
        """Limit the jobs put with `limit=key`, over all queues and workers, and return the limit's present state.

        At most `running` of them run at once (0: none starts). `rate` bounds the starts in a time, like "10/s",
        "100/m", "5/h" or "3/10s". A half that is not given stays as it is; with neither nothing changes. `by` names who
        sets it, in at most 128 bytes.
        """
        if running is not None or rate is not None:
            self._calls.act(limits.limit, key, running, rate, by=by)
        by_key = self._calls.run(limits.read(key))
        return by_key[key]

    def unlimit(self, key: str, half: str | None = None) -> bool:
        """Remove a limit, or only its "running" or "rate". The jobs that it held up start.

        Returns False if there was none.
        """
        return self._calls.act(limits.unlimit, key, half)

    def limits(self) -> dict[str, Limit]:
        """Return all limits, in the order in which they were set first."""
        return self._calls.follow_each(
            lambda: steps.all_pages(lambda offset: limits.read(None, offset), least=1), limits.of_all
        )

    def limit_jobs(self, key: str, offset: int = 0, count: int = 25) -> LimitJobs:
        """Return jobs that hold a limit, in the order of their leases, and jobs parked under it, by queue and lane.

        Each list has up to `count` (0 to 1,000) jobs, from `offset` on.
        """
        return self._calls.run(limits.jobs(key, offset, count))

    # workers

    def workers(self) -> list[WorkerInfo]:
        """Return the known workers, most recently active first; at most 1,000."""
        return self._calls.call(workers.read)

    def worker(self, name: str) -> WorkerJobs:
        """Return the jids that a worker holds."""
        return self._calls.call(workers.jobs_of, name)

    def deregister(self, worker: str) -> int:
        """Forget a worker, and return how many jobs it held.

        They go to the front of their queues, uncounted, and their tokens are void. A living master stops those jobs and
        goes on under a new name.
        """
        return self._calls.act(workers.deregister, worker)

    def serve(self, worker: str, queues: Sequence[str], order: str | None = None) -> None:
        """Make a running supervisor serve these queues (names, globs, exclusions) from now on, in this order.

        `order` None keeps the order that it has. Its running jobs go on. Raises LeaseholdError if there is no such
        worker.
        """
        served(worker, self._calls.act(mailbox.serve, worker, queues, order))

    def ask(
        self, workers: str | Sequence[str] | None, what: str, timeout: Duration = 5.0, argument: Any = None
    ) -> dict[str, Any]:
        """Ask running supervisors (None: all that live) for something, like "stacks", and wait for their answers.

        Returns each worker's answer, up to 1 MiB of JSON, or None if it has not answered within `timeout` seconds. The
        question stands for at least a minute, so that a busy worker can take it up. Raises LeaseholdError, and asks
        nobody, if a named worker does not exist.
        """
        return self._calls.ask(workers, what, checked_wait_s("timeout", timeout), argument)

    # the whole namespace, and what happens in it

    def check(self, repair: bool = False) -> list[Violation]:
        """Look through the whole namespace for impossible states, in slices, while jobs run.

        `repair` mends them, and each violation says how. A hundred keys take a round trip. A check that is broken off
        leaves its repairs in place.
        """

        def work() -> list[Violation]:
            found: list[Violation] = []
            for calls in self._calls.of_each_shard():
                walk = Check(calls.namespace.prefix, repair, calls.clock)
                for step in walk.steps():
                    walk.answered(calls.run(step))
                found += walk.violations
            return found

        return self._calls.shards.again(work)

    def events(
        self, queue: str | None = None, jid: str | None = None, worker: str | None = None, tracked: bool = False
    ) -> EventStream:
        """Return a stream of what happens from now on, to all queues, jobs and workers, or only to the given ones.

        `tracked` limits it to tracked jobs. This call is no round trip. The stream has its own connection.
        """
        return self._store.events(EventFilter(queue, jid, worker, tracked))

    def stream(self, jid: str, *, position: str = BEGINNING, timeout: Duration | None = None) -> JobStream:
        """Return an iterator over the chunks that a job's handler streams, which ends when the job has ended.

        It yields each chunk as `job.stream` was given it: bytes, or what JSON keeps. `position`: "beginning", "end"
        (only what is to come), or the `position` of another stream of the job. `timeout`: the longest time without a
        chunk; then TimeoutError is raised. If the job starts again, `attempt` of the stream rises with its next chunk.
        A stream keeps its last 4 MiB, until an hour after the job's end.

        This call is no round trip. The stream has its own connection. Raises TypeError or ValueError. The iterator
        raises JobNotFound if there is no such job.
        """
        return self._store.stream(StreamReading(self._namespace, jid, position, timeout, self._store.poll_s))
