"""Runs in applications and commands (never in zygote or child). Owns: a pool of connections to Redis.
Must not: send anything twice. A call whose answer was lost raises OutcomeUnknown; its caller knows what to do then.
"""

import datetime
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import hiredis
import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from supervisor import clock as times
from supervisor.engine.client.connection import (
    ENDED,
    MOST_CONNECTIONS,
    NOTHING,
    SOCKET_TIMEOUT_S,
    SWEPT,
    Address,
    Answers,
    Clock,
    Share,
    T,
    at_most,
    borrowed_arguments,
    checked_clock,
    checked_many,
    checked_wait_s,
    find_namespace,
    find_server,
    in_steps,
    jid_of,
    longest_wait_s,
    pause_s,
    refused,
    result_of,
    served,
    shown_address,
    unanswered,
    unreachable,
    worker_of,
)
from supervisor.engine.client.event_stream import EventStream, Filter
from supervisor.engine.client.handles import Job, Lease, RecurringJob, found
from supervisor.engine.commands import lanes, limits, queries, steps, writes
from supervisor.engine.commands.check import Check, Violation
from supervisor.engine.commands.lanes import Deleted, LaneCounts, in_lane
from supervisor.engine.commands.limits import Limit, LimitJobs
from supervisor.engine.commands.queries import Cancelled, Counts, Depths, Stats, Tracked, Worker, WorkerJobs
from supervisor.engine.commands.steps import Steps
from supervisor.engine.commands.writes import Command
from supervisor.engine.model import options
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import JobRecord, NewJob, PutOptions, new_jid, new_job
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.outcomes import Answer, Outcome
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.recurring import CronMissing, DueCron, RecurOptions, following
from supervisor.engine.model.scripts import check_server
from supervisor.engine.model.validation import UNSET, checked_each, checked_int

_LOST = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)


class _Store:
    """Runs commands, each on a connection of its own, each sent once."""

    def __init__(self, pool: Any, shown: str, prefix: str) -> None:
        self._pool = pool
        # Taken from the pool and kept: to give one back and take it again costs more than the call in between. Not of
        # pools that may wish to renew a connection between two calls.
        self._kept: deque[Any] = deque()
        self._keeps = type(pool) is redis_py.ConnectionPool and "credential_provider" not in pool.connection_kwargs
        self._pid = os.getpid()
        self._shown = shown
        self._prefix = prefix
        self._checked = False

    def run(self, command: Command[T]) -> T:
        """Blocks for one round trip. Raises StoreUnavailable (nothing changed) or OutcomeUnknown."""
        connection = self._connect()
        try:
            self._check_server(connection)
            return command.parse(self._answered(connection, command))
        except redis_py.ResponseError as error:
            raise refused(self._shown, command, error) from error
        except BaseException:
            connection.disconnect()  # an answer may be under way, and would be taken for that to the next command
            raise
        finally:
            self._let_go(connection)

    def pop(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """Blocks until something comes into one of the lists, at most so long; takes it. Raises StoreUnavailable."""
        connection = self._connect()
        try:
            connection.send_command("BLPOP", *keys, f"{max(seconds, 0.001):.3f}")  # 0 would be for ever
            found = connection.read_response()
            return found[1] if found else None
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._let_go(connection)

    def events(self, wanted: Filter) -> EventStream:
        return EventStream(self._pool, self._shown, wanted)

    def close(self) -> None:
        self._pool.disconnect()

    def _connect(self) -> Any:
        try:
            return self._take_kept() or self._pool.get_connection()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

    def _take_kept(self) -> Any:
        """The one that was used last, if it is as good as new; None: there is none."""
        if self._pid != os.getpid():  # a fork must not speak on its parent's
            self._kept, self._pid = deque(), os.getpid()
        try:
            while True:
                connection = self._kept.pop()
                if _is_ready(connection):
                    return connection
                self._pool.release(connection)
        except IndexError:
            return None

    def _let_go(self, connection: Any) -> None:
        if self._keeps and connection._sock is not None:
            self._kept.append(connection)
        else:
            self._pool.release(connection)

    def _check_server(self, connection: Any) -> None:
        if self._checked:
            return
        try:
            connection.send_command("INFO", "server")
            check_server(connection.read_response())
        except redis_py.exceptions.NoPermissionError:
            pass  # an ACL without INFO: the scripts' first lines refuse a server that is too old
        except _LOST as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    def _answered(self, connection: Any, command: Command[Any]) -> Any:
        try:
            return self._ask(connection, command)
        except redis_py.exceptions.NoScriptError:
            # Not carried out, so this is no second time.
            try:
                connection.send_command("SCRIPT", "LOAD", command.script.text)
                connection.read_response()
            except _LOST as error:
                raise unreachable(self._shown, error) from error
            return self._ask(connection, command)

    def _ask(self, connection: Any, command: Command[Any]) -> Any:
        words: Any = command.wire(self._prefix)  # of any number: hiredis says that it takes one
        try:
            connection.send_packed_command([hiredis.pack_command(words)])
        except _LOST as error:
            raise unreachable(self._shown, error) from error  # Redis runs no command that has not come to its end
        try:
            return connection.read_response()
        except _LOST as error:
            raise unanswered(self._shown, command, error) from error


def _is_ready(connection: Any) -> bool:
    """Whether it stands, and nothing has come that nobody has asked for, which would be taken for the next answer."""
    try:
        return bool(connection._sock is not None and not connection.can_read())
    except _LOST:
        connection.disconnect()
        return False


def _pool_of(address: Address) -> Any:
    arguments: dict[str, Any] = {
        "protocol": 2, "decode_responses": False, "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "max_connections": MOST_CONNECTIONS,
    }  # fmt: skip
    return redis_py.ConnectionPool.from_url(address.url, **arguments)


def _pool_like(given: redis_py.Redis) -> Any:
    if not isinstance(given, redis_py.Redis):
        raise TypeError(f"redis must be a redis.Redis, not {type(given).__name__}: {given!r:.100}")
    theirs: Any = given.connection_pool
    arguments = borrowed_arguments(theirs) | {"retry": Retry(NoBackoff(), 0)}
    if isinstance(theirs, SentinelConnectionPool):
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, theirs.sentinel_manager, connection_class=theirs.connection_class,
            is_master=theirs.is_master, check_connection=theirs.check_connection, **arguments,
        )  # fmt: skip
    if isinstance(theirs, redis_py.BlockingConnectionPool):
        return redis_py.BlockingConnectionPool(  # type: ignore[no-untyped-call]
            connection_class=theirs.connection_class, timeout=theirs.timeout, **arguments
        )
    return redis_py.ConnectionPool(connection_class=theirs.connection_class, **arguments)


class Client:
    """The queue, for programs that block. Safe to share between threads; use it as a context manager, or close it.

    Nearly every method is one round trip. More may be: a lease that blocks or serves globs, wait, limit, check, sweep,
    put_many, what lists all queues, lanes or limits, and what deletes or cancels by content. Arguments are checked
    before anything is sent: TypeError and ValueError name the argument. StoreUnavailable: nothing has changed.
    OutcomeUnknown: the answer was lost; nothing is ever sent a second time.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        redis: redis_py.Redis | None = None,
    ) -> None:
        """`url`: None = LEASEHOLD_REDIS_URL, else the embedded server, which "embedded:" means too. `namespace`: None =
        LEASEHOLD_NAMESPACE, else leasehold. `clock` answers unix seconds in place of the server's clock. `redis`: an
        existing connection whose address and credentials are used; it is never closed.
        """
        self._namespace = find_namespace(namespace)
        #: Unix seconds of an injected clock; None: the server's.
        self.clock = checked_clock(clock)
        self._share: Share | None = None
        if redis is None:
            address = find_server(url)
            self._share = address.share
            pool, shown = _pool_of(address), address.shown
        elif url is not None:
            raise ValueError("url and redis exclude each other")
        else:
            pool = _pool_like(redis)
            shown = shown_address(pool.connection_kwargs)
        #: The configuration of the namespace, in Redis.
        self.config = Config(self)
        self._longest_wait_s = longest_wait_s(pool.connection_kwargs)
        self._store = _Store(pool, shown, self._namespace.prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, and leaves the embedded server. Idempotent; a later call connects again."""
        self._store.close()
        share, self._share = self._share, None
        if share is not None:
            share.release()

    def call(self, build: Callable[..., Command[T]], *args: Any, **kwargs: Any) -> T:
        """Run the command that `build` (of engine/commands/) makes of the arguments at this time."""
        return self.run(build(*args, now=self.clock(), **kwargs))

    def run(self, command: Command[T]) -> T:
        """Runs a command of engine/commands/writes.py or looks.py."""
        return self._store.run(command)

    def follow(self, call: Steps[T]) -> T:
        """Runs a call of several commands, of engine/commands/steps.py."""
        answer: Any = None
        refusal: LeaseholdError | None = None
        try:
            while True:
                command = call.throw(refusal) if refusal else call.send(answer)
                try:
                    answer, refusal = self.run(command), None
                except LeaseholdError as error:
                    refusal = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns is Any to typeshed

    # leasing

    def put_jobs(self, jobs: Sequence[NewJob]) -> list[bool | str]:
        """Puts jobs that were checked before, in one batch; Queue.put is what applications call. Answers of each
        whether anything was done, or the jid of another job that holds what was to be unique.
        """
        return self.call(writes.put, jobs)

    def lease(
        self,
        worker: str,
        queues: Sequence[str],
        count: int = 1,
        ttl: float | None = None,
        order: str = "strict",
        block: float = 0,
    ) -> list[Lease]:
        """Leases up to `count` (at most 1,000) jobs for `ttl` seconds (default: the queue's heartbeat). `queues` may be
        globs (`email-*`) and exclusions (`!email-bulk`), of which 1,000 queues are served at a time; `order` is strict
        (as listed), round-robin (going on where the worker's last lease stopped), random or weighted (`high:3`). With
        `block`, waits up to so many seconds for the first job; without, it may give none where it has met many that
        may not start now: it looks at 16 more than are wanted, and the next call goes on.
        """
        wanted = Queues(queues, order)
        deadline_at, woken = times.monotonic() + checked_wait_s("block", block), False
        while True:
            names = self._resolve(wanted)
            grant = NOTHING
            if names:
                weights = wanted.weights(names)
                grant = self.call(
                    writes.lease, worker, names, count, ttl_s=ttl, order=order, weights=weights, woken=woken
                )
            left_s = deadline_at - times.monotonic()
            if self._spawn(grant.due, grant.now_unix) and not grant.leases:
                continue
            if grant.leases or left_s <= 0 or count == 0:
                return [Lease(record, self) for record in grant.leases]
            wait_s = pause_s(grant, left_s, self._longest_wait_s)
            if wait_s > 0:
                # Nobody rings for a pattern; it stands for the queues that are not there yet.
                bells = [self._namespace.bell(queue) for queue in names or wanted.patterns]
                woken = self._store.pop(bells, wait_s) is not None

    def _resolve(self, wanted: Queues) -> tuple[str, ...]:
        return at_most(wanted, self.run(queries.names()) if wanted.has_globs else ())

    def _spawn(self, due: Sequence[DueCron], now_unix: float) -> bool:
        """Whether jobs came of the cron recurrences that are due."""
        spawned = False
        for one in due:
            try:
                run_at, next_unix = following(one, now_unix)
            except CronMissing:
                continue  # whoever has what it takes will do so; here it is no reason not to lease
            taken = self.call(writes.spawn, one, run_at, next_unix)
            spawned = spawned or (taken and bool(run_at))
        return spawned

    def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """Ends up to 1,000 leases of one worker in one step; in several where they put more than 1,000 jobs together,
        of which those with many tags or parents count for more. One answer each: Completed, Failed, Released: True, or
        False if the lease is lost; Retried: the retries remaining; Died: the new state; the last two None if lost.
        """
        outcomes = list(checked_each("outcomes", outcomes, "outcomes"))
        if not outcomes:
            return []
        worker, now = worker_of(outcomes), self.clock()
        together = [writes.settle(worker, some, now=now) for some in in_steps(outcomes)]
        return [answer for step in together for answer in self.run(step)]

    def sweep(self, count: int = 100) -> int:
        """The light clean: takes up to `count` (at most 1,000) jobs from workers that are lost for longer than the
        grace, and answers how many; lets come again what is due; drops what is kept too long. Masters do so by
        themselves.
        """
        left, offset = checked_int("count", count, 1, writes.MOST), 0
        while True:
            most = min(left, SWEPT)
            swept = self.call(writes.sweep, most, offset=offset)
            self._spawn(swept.due, swept.now_unix)
            left -= swept.taken
            if swept.taken < most:
                offset = swept.next_offset
            if left <= 0 or (not offset and swept.taken < most):
                return count - left

    # jobs

    def job(self, jid: str) -> Job | None:
        """A job as it is now; None if there is none."""
        record = self.follow(steps.job(jid, self.clock))
        return Job(record, self) if record else None

    def jobs(self, *jids: str) -> list[Job | None]:
        """Up to 1,000 jobs as they are now; None for each that there is none of. Data above 64 KiB, or beyond 1 MiB of
        all, is fetched when it is first asked for.
        """
        return [Job(record, self) if record else None for record in self.call(queries.jobs, jids)]

    def cancel(self, *jids: str, by: str | None = None) -> list[str]:
        """Deletes up to 1,000 jobs in whatever state, all or none, and answers those that there were; completed ones
        are left alone. Who runs one has lost it. `by`: who wants that, in at most 128 bytes, for `cancelled`, the log
        and the events. Raises DependencyError if a job that is not listed waits for one of them; those whose policy is
        to fail or run do so.
        """
        return self.call(writes.cancel, jids, by=by)

    def cancelled(self, jid: str) -> Cancelled | None:
        """When and by whom a job was cancelled; None: it was not, or that is forgotten. The newest 10,000 are
        remembered for up to seven days, those that were deleted with their queue too.
        """
        return self.run(queries.cancelled(jid))

    def wait(self, jid: str, timeout: float) -> Any:
        """Blocks until a job has ended, at most `timeout` seconds, and answers its result. Raises JobFailed if it
        fails, TimeoutError, and JobNotFound if there is no such job, it is cancelled, or nothing is kept of completed
        jobs.
        """
        deadline_at = times.monotonic() + checked_wait_s("timeout", timeout)
        while True:
            state = self.call(writes.wait_for, jid)
            if state in ENDED:
                result = result_of(jid, self.job(jid))
                if result is not UNSET:
                    return result
            left_s = deadline_at - times.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {jid} has not ended within {timeout:g} s")
            self._store.pop([self._namespace.ended(jid)], min(left_s, self._longest_wait_s))

    def completed(self, offset: int = 0, count: int = 25) -> list[Job]:
        """Completed jobs, newest first."""
        return self._acting(self.call(queries.listed, "complete", None, offset, count))

    @overload
    def failed(self) -> dict[str, int]: ...
    @overload
    def failed(self, group: str, start: int = 0, limit: int = 25) -> tuple[int, list[Job]]: ...
    def failed(
        self, group: str | None = None, start: int = 0, limit: int = 25
    ) -> dict[str, int] | tuple[int, list[Job]]:
        """How many failed jobs each group has; or, of one group, its size and some of its jobs, newest first."""
        if group is None:
            return self.call(queries.failed_groups)
        total, records = self.call(queries.failed_jobs, group, start, limit)
        return total, self._acting(records)

    def unfail(
        self, group: str, queue: str | None = None, count: int = 25, *, klass: str | None = None, data: Any = UNSET
    ) -> int:
        """Puts up to `count` (at most 1,000) failed jobs of a group back, oldest first, into a queue or each into its
        own, with new data or klass if given, and answers how many. Each begins anew. A broken entry of another program
        is read again; what is still broken stays failed.
        """
        return self.call(writes.unfail, group, queue, count, klass=klass, data=data)

    def log(self, jid: str, message: str, data: Any = None) -> None:
        """Writes a line into a job's history. Raises JobNotFound."""
        found(jid, self.call(writes.log, jid, message, data))

    def track(self, jid: str) -> bool:
        """Follows a job. False if it was tracked already. Raises JobNotFound."""
        answer = self.call(writes.track, jid)
        return found(jid, None if answer is None else (answer,))[0]

    def untrack(self, jid: str) -> bool:
        """Follows a job no longer, also one that is gone. False if it was not tracked."""
        return self.call(writes.untrack, jid)

    def tracked(self) -> Tracked[Job]:
        """The tracked jobs, and the jids of those that are gone: the 1,000 that were tracked last."""
        tracked = self.call(queries.tracked)
        return Tracked(self._acting(tracked.jobs), tracked.expired)

    def tagged(self, tag: str, offset: int = 0, count: int = 25) -> tuple[int, list[Job]]:
        """How many jobs have a tag, and some of them, oldest tagged first."""
        total, records = self.call(queries.tagged, tag, offset, count)
        return total, self._acting(records)

    def tags(self, offset: int = 0, count: int = 25) -> dict[str, int]:
        """The tags, most used first, with how many jobs have each."""
        return self.run(queries.tags(offset, count))

    def _acting(self, records: Sequence[JobRecord]) -> list[Job]:
        return [Job(record, self) for record in records]

    # queues and workers

    def queue(self, name: str) -> "Queue":
        """A queue by its name. No round trip; a queue comes into being with its first put."""
        return Queue(self, name)

    def queues(self) -> dict[str, Depths]:
        """All known queues, in the order of their first put, with their counts, and how old the oldest is."""
        return self.follow(steps.all_pages(lambda offset: queries.depths((), offset, now=self.clock())))

    def recurring(self, jid: str) -> RecurringJob | None:
        """What comes again under a jid; None if nothing does."""
        record = self.follow(steps.recurring(jid))
        return RecurringJob(record, self) if record else None

    def unrecur(self, jid: str) -> bool:
        """It comes no more; the jobs that it has put stay. False if it did not. A later `recur` of it counts anew."""
        return self.call(writes.unrecur, jid)

    def limit(self, key: str, running: int | None = None, rate: str | None = None, *, by: str | None = None) -> Limit:
        """Limits the jobs put with `limit=key`, over all queues and workers, and answers how it stands: `running` of
        them at once (0: none starts), and `rate` starts in a time, like "10/s", "100/m", "5/h", "3/10s". What is not
        given stays as it is; with neither it only answers. `by`: who sets it, in at most 128 bytes.
        """
        if running is not None or rate is not None:
            self.call(limits.limit, key, running, rate, by=by)
        return (self.run(limits.read(key)))[key]

    def unlimit(self, key: str, half: str | None = None) -> bool:
        """Takes a limit off, or only its "running" or "rate"; what that has held up starts. False if there was none."""
        return self.call(limits.unlimit, key, half)

    def limits(self) -> dict[str, Limit]:
        """All limits that are set, in the order in which they were set first."""
        return self.follow(steps.all_pages(lambda offset: limits.read(None, offset), least=1))

    def limit_jobs(self, key: str, offset: int = 0, count: int = 25) -> LimitJobs:
        """Some of the jobs that hold a limit, those leased first first, and some of those parked under it, by queue and
        lane: up to `count` (0 to 1,000) of each, from `offset` on.
        """
        return self.run(limits.jobs(key, offset, count))

    def workers(self) -> list[Worker]:
        """The workers that are known, most recently active first; at most 1,000."""
        return self.call(queries.workers)

    def worker(self, name: str) -> WorkerJobs:
        """The jids that a worker holds."""
        return self.call(queries.worker, name)

    def deregister(self, worker: str) -> int:
        """Forgets a worker: what it holds goes to the front, uncounted, its tokens are void. Answers how many jobs. A
        master that lives stops those jobs and goes on under a new name.
        """
        return self.call(writes.deregister, worker)

    def serve(self, worker: str, queues: Sequence[str], order: str | None = None) -> None:
        """Has a running supervisor serve these queues (names, globs, exclusions) from now on, in this order; None: in
        the one that it has. What it runs goes on. Raises LeaseholdError if there is no such worker.
        """
        served(worker, self.call(writes.serve, worker, queues, order))

    def ask(
        self, workers: str | Sequence[str] | None, what: str, timeout: float = 5.0, argument: Any = None
    ) -> dict[str, Any]:
        """Asks running supervisors (None: all that live) for something, like "stacks", and answers what each of them
        has said, up to 1 MiB of JSON, or None if it has not within `timeout` seconds. Blocks until all have. A question
        stands for a minute at least: a worker that is busy or away takes it up when it can. Raises LeaseholdError if
        one that is named is not there; nobody is asked then.
        """
        deadline_at = times.monotonic() + checked_wait_s("timeout", timeout)
        question, stands_s = new_jid(), max(timeout, writes.ASK_S)
        answers = Answers(self.call(writes.ask, question, workers, what, argument, stands_s=stands_s))
        while answers.missing and (left_s := deadline_at - times.monotonic()) > 0:
            answers.take(self._store.pop([self._namespace.answer(question)], min(left_s, self._longest_wait_s)))
        return answers.by_worker

    def check(self, repair: bool = False) -> list[Violation]:
        """Looks through the whole namespace for what cannot be, in slices, while jobs run; with `repair` mends what it
        finds and says what it did. A round trip for every hundred keys. Broken off, it has mended what it has mended.
        """
        walk = Check(self._namespace.prefix, repair, self.clock)
        for step in walk.steps():
            walk.answered(self.run(step))
        return walk.violations

    def events(
        self, queue: str | None = None, jid: str | None = None, worker: str | None = None, tracked: bool = False
    ) -> EventStream:
        """What happens from now on, to queues, jobs and workers, or only to what is given; `tracked`: to tracked jobs.
        No round trip; the stream has a connection of its own.
        """
        return self._store.events(Filter(self._namespace, queue, jid, worker, tracked))


class Config:
    """The configuration of a Client's namespace. Options of a queue are also written `<option>-<queue>`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, option: str) -> options.Value:
        """What an option is: as set, else its default. Raises ValueError for one that there is not."""
        options.checked_option(option)
        return options.value_in(self._client.run(queries.settings()), option)

    def set(self, option: str, value: options.Value, *, by: str | None = None) -> None:
        """Sets an option. `by`: who does, which is kept of a pause. Raises ValueError for an option that there is not,
        or a value that it cannot have.
        """
        known, queue = options.checked_option(option)
        self._client.call(writes.configure, known.name, queue, options.checked_value(known, value), by=by)

    def unset(self, option: str) -> None:
        """Back to the default; an option of a queue to that of all."""
        known, queue = options.checked_option(option)
        self._client.call(writes.configure, known.name, queue, None)

    def all(self) -> dict[str, options.Value]:
        """Every option's value, then those that are set for queues."""
        return options.values_in(self._client.run(queries.settings()))


class Queue:
    """One queue of a Client."""

    __slots__ = ("_client", "name")

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = checked_name("queue", name)

    def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """Creates a job and answers its jid. A known jid is moved, from whatever state, and begins anew; who runs it
        loses its lease; options not given keep what the job has. If another job that has not ended holds what `unique`
        names, nothing changes, and its jid is the answer. Raises DependencyError if it would wait for itself.
        """
        job = new_job("put", self.name, klass, data, options)
        return jid_of(job, self._client.put_jobs([job])[0])

    def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """Creates a job; False, and no change, if there is one of this jid, or `unique` is held by another."""
        return self._client.put_jobs([new_job("add", self.name, klass, data, options)])[0] is True

    def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Puts jobs, each a dict of put's arguments, and answers what put does of each. All are checked before the
        first is sent; each 1,000 (or 256 MB of data) are put as one. A job may depend on those before it.
        """
        batches = checked_many(self.name, jobs)
        answers = [answer for batch in batches for answer in self._client.put_jobs(batch)]
        return [jid_of(job, answer) for job, answer in zip(itertools.chain(*batches), answers, strict=True)]

    def recur(self, klass: str, data: Any = None, **options: Unpack[RecurOptions]) -> str:
        """Has a job come again, `every` so many seconds or by a `cron` expression, and answers the jid of the recurring
        job; its jobs are <jid>-1, <jid>-2 … A known jid is replaced, and its count goes on.
        """
        return self._client.call(writes.recur, self.name, klass, data, options)

    def lease(self, worker: str, count: int = 1, ttl: float | None = None, block: float = 0) -> list[Lease]:
        """Client.lease of this queue."""
        return self._client.lease(worker, [self.name], count, ttl, block=block)

    def jobs(self, state: str, offset: int = 0, count: int = 25) -> Sequence[Job | RecurringJob]:
        """The jobs in a state (waiting, running, stalled, scheduled, depends, parked, complete, failed), or what comes
        again (recurring): up to `count`, at most 1,000, from `offset` on.
        """
        if state == "recurring":
            found = self._client.run(queries.recurring_in(self.name, offset, count))
            return [RecurringJob(record, self._client) for record in found]
        records = self._client.call(queries.listed, state, self.name, offset, count)
        return [Job(record, self._client) for record in records]

    def peek(self, n: int = 1) -> list[Job]:
        """The next `n` jobs to be leased, as they are."""
        return [Job(record, self._client) for record in self._client.call(queries.peek, self.name, n)]

    def counts(self) -> Counts:
        """How many jobs are in each state, and whether the queue is paused."""
        return self._client.call(queries.counts, [self.name])[self.name]

    def length(self) -> int:
        """How many jobs there are to lease: waiting (the front and what is due included) and stalled."""
        counts = self.counts()
        return counts.waiting + counts.stalled

    def cancel(self, data: Any, *, by: str | None = None) -> list[str]:
        """Cancels every job of the queue with this data, but for those that are complete or failed, and answers their
        jids: who runs one has lost it. JSON is equal in whatever order its keys are. Several round trips; what is put
        meanwhile may be left.
        """
        return self._client.follow(steps.cancel_equal(self.name, data, self._client.clock, by))

    def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """Drops everything in the queue that does not run, what recurs included; what runs ends in peace, or is
        cancelled ("stop"), as persistent jobs are. Complete and failed jobs stay. A queue in which nothing is left is
        forgotten. Several round trips; what is put meanwhile may be left.
        """
        return self._client.follow(steps.delete(self.name, None, running, self._client.clock, by))

    def lane(self, name: str) -> "Lane":
        """A lane by its name. No round trip; a lane is there while a job is in it."""
        return Lane(self._client, self, name)

    def lanes(self) -> dict[str, LaneCounts]:
        """The lanes in which something lies, or that were weighed or paused, by name; "" is that of the jobs without
        one.
        """
        found = self._client.follow(
            steps.all_pages(lambda offset: lanes.read(self.name, None, offset, now=self._client.clock()))
        )
        return dict(sorted(found.items()))

    def stats(self, date: datetime.date | str | float | None = None) -> Stats:
        """How long jobs waited and ran on a UTC day (default: today), and what became of them."""
        return self._client.call(queries.stats, self.name, date)

    def pause(self, *, by: str | None = None) -> None:
        """Nothing new is leased from the queue; what runs goes on, and is looked after. `by`: who pauses it, in at most
        128 bytes, which `counts` answers.
        """
        self._client.config.set(f"paused-{self.name}", True, by=by)

    def unpause(self) -> None:
        """Ends a pause."""
        self._client.config.unset(f"paused-{self.name}")

    def forget(self) -> bool:
        """Takes the queue out of the list of queues. False if it was not there; LeaseholdError if it is not empty."""
        return self._client.call(writes.forget, self.name)

    def __len__(self) -> int:
        return self.length()

    def __bool__(self) -> bool:
        return True  # a queue without jobs is a queue


class Lane:
    """One lane of a Queue: the jobs of one client, or tenant. Lanes take turns by their weights, whatever lies in
    them.
    """

    __slots__ = ("_client", "_queue", "name")

    def __init__(self, client: Client, queue: Queue, name: str) -> None:
        self._client = client
        self._queue = queue
        self.name = checked_name("lane", name)

    def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """Queue.put into this lane."""
        return self._queue.put(klass, data, **in_lane(self.name, options))

    def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """Queue.add into this lane."""
        return self._queue.add(klass, data, **in_lane(self.name, options))

    def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Queue.put_many into this lane."""
        each = checked_each("jobs", jobs, "dicts of put's arguments")
        return self._queue.put_many(in_lane(self.name, job) for job in each)

    def counts(self) -> LaneCounts:
        """How many jobs are in each state, its weight, and whether it is paused."""
        return (self._client.call(lanes.read, self._queue.name, self.name))[self.name]

    def length(self) -> int:
        """How many jobs there are to lease: waiting and stalled."""
        counts = self.counts()
        return counts.waiting + counts.stalled

    def pause(self, *, by: str | None = None) -> None:
        """Nothing new starts from the lane; what runs goes on, and other lanes have its turns. `by`: as Queue.pause."""
        self._client.call(lanes.pause, self._queue.name, self.name, by=by)

    def unpause(self) -> None:
        """Ends a pause."""
        self._client.call(lanes.unpause, self._queue.name, self.name)

    def weight(self, n: int) -> None:
        """Gives the lane so many starts (1 to 1,000) for each one of a lane of weight 1."""
        self._client.call(lanes.weigh, self._queue.name, self.name, n)

    def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """Queue.delete of this lane: its jobs go, its weight and its pause stay."""
        return self._client.follow(steps.delete(self._queue.name, self.name, running, self._client.clock, by))
