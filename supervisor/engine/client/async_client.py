"""Runs in asyncio applications (never in zygote or child). Owns: its connections to Redis, and when they are made.
Must not: send anything twice, or block the event loop (only making an AsyncClient of the embedded server may block).
"""

import asyncio
import datetime
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import hiredis
import redis as redis_py
import redis.asyncio as redis_aio
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

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
    uncounted_connection,
    unreachable,
    worker_of,
)
from supervisor.engine.client.event_stream import AsyncEventStream, Filter
from supervisor.engine.client.handles import AsyncJob, AsyncLease, AsyncRecurringJob, found
from supervisor.engine.client.shared_line import LOST, MOST_BYTES, NotSent, OwnLine, SharedLine, can_share
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


class _Store:
    """Runs commands, each sent once. Those that are under way together share a connection, where that can be; what
    waits in Redis, or is large, has one of its own out of the pool.
    """

    def __init__(self, pool: Any, shown: str, prefix: str) -> None:
        self._pool = pool
        self._shares = can_share(pool)
        self._line: SharedLine | None = None
        self._dialling: asyncio.Task[SharedLine] | None = None
        self._shown = shown
        self._prefix = prefix
        self._checked = False

    def __del__(self) -> None:
        if self._line is not None:
            self._line.leave()

    async def run(self, command: Command[T]) -> T:
        """One round trip. Raises StoreUnavailable (nothing changed) or OutcomeUnknown."""
        words: Any = command.wire(self._prefix)  # of any number: hiredis says that it takes one
        packed = hiredis.pack_command(words)
        try:
            if self._shares and len(packed) <= MOST_BYTES:
                line = self._line
                if line is None or not line.stands():
                    line = await self._dialled()
                return command.parse(await self._answered(line, command, packed))
            return command.parse(await self._run_alone(command, packed))
        except redis_py.ResponseError as error:
            raise refused(self._shown, command, error) from error

    async def _run_alone(self, command: Command[Any], packed: bytes) -> Any:
        connection = await self._connect()
        try:
            await self._check_server(connection)
            return await self._answered(OwnLine(connection), command, packed)
        finally:
            await self._pool.release(connection)

    async def pop(self, keys: Sequence[str], seconds: float) -> bytes | None:
        """Takes what comes into one of the lists, waiting for it at most so long. Raises StoreUnavailable."""
        connection = await self._connect()
        try:
            await connection.send_command("BLPOP", *keys, f"{max(seconds, 0.001):.3f}")  # 0 would be for ever
            found = await connection.read_response()
            return found[1] if found else None
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            await self._pool.release(connection)

    def events(self, wanted: Filter) -> AsyncEventStream:
        return AsyncEventStream(self._pool, self._shown, wanted)

    async def close(self) -> None:
        if dialling := self._under_way():
            await asyncio.wait([dialling])  # else what it makes would stay
        if self._line is not None:
            await self._line.close()
        await self._pool.disconnect()

    async def _connect(self) -> Any:
        try:
            return await self._pool.get_connection()
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

    async def _dialled(self) -> SharedLine:
        """The shared connection, made anew once for all who need it, whoever of them is cancelled meanwhile."""
        dialling = self._under_way()
        if dialling is None:
            dialling = self._dialling = asyncio.create_task(self._dial())
        return await asyncio.shield(dialling)

    def _under_way(self) -> asyncio.Task[SharedLine] | None:
        """What is being dialled, on the loop that runs; one that was left with its loop will never be."""
        dialling = self._dialling
        return dialling if dialling is not None and dialling.get_loop() is asyncio.get_running_loop() else None

    async def _dial(self) -> SharedLine:
        try:
            connection = uncounted_connection(self._pool)
            try:
                await connection.connect()
                await self._check_server(connection)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        except (*LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            self._dialling = None
        self._line = SharedLine(connection)
        return self._line

    async def _check_server(self, connection: Any) -> None:
        if self._checked:
            return
        try:
            await connection.send_command("INFO", "server")
            check_server(await connection.read_response())
        except redis_py.exceptions.NoPermissionError:
            pass  # an ACL without INFO: the scripts' first lines refuse a server that is too old
        except LOST as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    async def _answered(self, line: SharedLine | OwnLine, command: Command[Any], packed: bytes) -> Any:
        try:
            return await self._ask(line, command, packed)
        except redis_py.exceptions.NoScriptError:
            # Not carried out, so this is no second time.
            try:
                await line.load(command.script.text)
            except (NotSent, *LOST) as error:
                raise unreachable(self._shown, error) from error
            return await self._ask(line, command, packed)

    async def _ask(self, line: SharedLine | OwnLine, command: Command[Any], packed: bytes) -> Any:
        try:
            return await line.ask(packed)
        except NotSent as error:
            raise unreachable(self._shown, error) from error
        except LOST as error:
            raise unanswered(self._shown, command, error) from error


def _pool_of(address: Address) -> Any:
    arguments: dict[str, Any] = {
        "protocol": 2, "decode_responses": False, "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "max_connections": MOST_CONNECTIONS,
    }  # fmt: skip
    return redis_aio.ConnectionPool.from_url(address.url, **arguments)


def _pool_like(given: redis_aio.Redis) -> Any:
    if not isinstance(given, redis_aio.Redis):
        raise TypeError(f"redis must be a redis.asyncio.Redis, not {type(given).__name__}: {given!r:.100}")
    theirs: Any = given.connection_pool
    arguments = borrowed_arguments(theirs) | {"retry": Retry(NoBackoff(), 0)}
    if isinstance(theirs, SentinelConnectionPool):
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, theirs.sentinel_manager, connection_class=theirs.connection_class,
            is_master=theirs.is_master, check_connection=theirs.check_connection, **arguments,
        )  # fmt: skip
    if isinstance(theirs, redis_aio.BlockingConnectionPool):
        return redis_aio.BlockingConnectionPool(
            connection_class=theirs.connection_class, timeout=theirs.timeout, **arguments
        )
    return redis_aio.ConnectionPool(connection_class=theirs.connection_class, **arguments)


class AsyncClient:
    """The queue, for asyncio programs: as Client, awaited. Use it as an async context manager, or close it.

    Calls that are under way together share a connection. What waits (a blocking lease, wait, ask), event streams, and
    what has more than a megabyte to say have their own.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        redis: redis_aio.Redis | None = None,
    ) -> None:
        """As Client; `redis` is a redis.asyncio.Redis."""
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
        #: As Client.config, awaited.
        self.config = AsyncConfig(self)
        self._longest_wait_s = longest_wait_s(pool.connection_kwargs)
        self._store = _Store(pool, shown, self._namespace.prefix)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As Client.close."""
        await self._store.close()
        share, self._share = self._share, None
        if share is not None:
            share.release()

    async def call(self, build: Callable[..., Command[T]], *args: Any, **kwargs: Any) -> T:
        """As Client.call."""
        return await self.run(build(*args, now=self.clock(), **kwargs))

    async def run(self, command: Command[T]) -> T:
        """As Client.run."""
        return await self._store.run(command)

    async def follow(self, call: Steps[T]) -> T:
        """As Client.follow."""
        answer: Any = None
        refusal: LeaseholdError | None = None
        try:
            while True:
                command = call.throw(refusal) if refusal else call.send(answer)
                try:
                    answer, refusal = await self.run(command), None
                except LeaseholdError as error:
                    refusal = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what a generator returns is Any to typeshed

    # leasing

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[bool | str]:
        """As Client.put_jobs."""
        return await self.call(writes.put, jobs)

    async def lease(
        self,
        worker: str,
        queues: Sequence[str],
        count: int = 1,
        ttl: float | None = None,
        order: str = "strict",
        block: float = 0,
    ) -> list[AsyncLease]:
        """As Client.lease."""
        wanted = Queues(queues, order)
        deadline_at, woken = times.monotonic() + checked_wait_s("block", block), False
        while True:
            names = await self._resolve(wanted)
            grant = NOTHING
            if names:
                weights = wanted.weights(names)
                grant = await self.call(
                    writes.lease, worker, names, count, ttl_s=ttl, order=order, weights=weights, woken=woken
                )
            left_s = deadline_at - times.monotonic()
            if await self._spawn(grant.due, grant.now_unix) and not grant.leases:
                continue
            if grant.leases or left_s <= 0 or count == 0:
                return [AsyncLease(record, self) for record in grant.leases]
            wait_s = pause_s(grant, left_s, self._longest_wait_s)
            if wait_s > 0:
                # Nobody rings for a pattern; it stands for the queues that are not there yet.
                bells = [self._namespace.bell(queue) for queue in names or wanted.patterns]
                woken = await self._store.pop(bells, wait_s) is not None

    async def _resolve(self, wanted: Queues) -> tuple[str, ...]:
        return at_most(wanted, await self.run(queries.names()) if wanted.has_globs else ())

    async def _spawn(self, due: Sequence[DueCron], now_unix: float) -> bool:
        """As Client._spawn."""
        spawned = False
        for one in due:
            try:
                run_at, next_unix = following(one, now_unix)
            except CronMissing:
                continue  # whoever has what it takes will do so; here it is no reason not to lease
            taken = await self.call(writes.spawn, one, run_at, next_unix)
            spawned = spawned or (taken and bool(run_at))
        return spawned

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """As Client.settle."""
        outcomes = list(checked_each("outcomes", outcomes, "outcomes"))
        if not outcomes:
            return []
        worker, now = worker_of(outcomes), self.clock()
        together = [writes.settle(worker, some, now=now) for some in in_steps(outcomes)]
        return [answer for step in together for answer in await self.run(step)]

    async def sweep(self, count: int = 100) -> int:
        """As Client.sweep."""
        left, offset = checked_int("count", count, 1, writes.MOST), 0
        while True:
            most = min(left, SWEPT)
            swept = await self.call(writes.sweep, most, offset=offset)
            await self._spawn(swept.due, swept.now_unix)
            left -= swept.taken
            if swept.taken < most:
                offset = swept.next_offset
            if left <= 0 or (not offset and swept.taken < most):
                return count - left

    # jobs

    async def job(self, jid: str) -> AsyncJob | None:
        """As Client.job."""
        record = await self.follow(steps.job(jid, self.clock))
        return AsyncJob(record, self) if record else None

    async def jobs(self, *jids: str) -> list[AsyncJob | None]:
        """As Client.jobs; what one answer has no room for is fetched at once, job by job."""
        found = await self.call(queries.jobs, jids)
        whole = [await self.job(one.jid) if one and one.left_out else one for one in found]
        return [AsyncJob(record, self) if record else None for record in whole]

    async def cancel(self, *jids: str, by: str | None = None) -> list[str]:
        """As Client.cancel."""
        return await self.call(writes.cancel, jids, by=by)

    async def cancelled(self, jid: str) -> Cancelled | None:
        """As Client.cancelled."""
        return await self.run(queries.cancelled(jid))

    async def wait(self, jid: str, timeout: float) -> Any:
        """As Client.wait."""
        deadline_at = times.monotonic() + checked_wait_s("timeout", timeout)
        while True:
            state = await self.call(writes.wait_for, jid)
            if state in ENDED:
                result = result_of(jid, await self.job(jid))
                if result is not UNSET:
                    return result
            left_s = deadline_at - times.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {jid} has not ended within {timeout:g} s")
            await self._store.pop([self._namespace.ended(jid)], min(left_s, self._longest_wait_s))

    async def completed(self, offset: int = 0, count: int = 25) -> list[AsyncJob]:
        """As Client.completed."""
        return self._acting(await self.call(queries.listed, "complete", None, offset, count))

    @overload
    async def failed(self) -> dict[str, int]: ...
    @overload
    async def failed(self, group: str, start: int = 0, limit: int = 25) -> tuple[int, list[AsyncJob]]: ...
    async def failed(
        self, group: str | None = None, start: int = 0, limit: int = 25
    ) -> dict[str, int] | tuple[int, list[AsyncJob]]:
        """As Client.failed."""
        if group is None:
            return await self.call(queries.failed_groups)
        total, records = await self.call(queries.failed_jobs, group, start, limit)
        return total, self._acting(records)

    async def unfail(
        self, group: str, queue: str | None = None, count: int = 25, *, klass: str | None = None, data: Any = UNSET
    ) -> int:
        """As Client.unfail."""
        return await self.call(writes.unfail, group, queue, count, klass=klass, data=data)

    async def log(self, jid: str, message: str, data: Any = None) -> None:
        """As Client.log."""
        found(jid, await self.call(writes.log, jid, message, data))

    async def track(self, jid: str) -> bool:
        """As Client.track."""
        answer = await self.call(writes.track, jid)
        return found(jid, None if answer is None else (answer,))[0]

    async def untrack(self, jid: str) -> bool:
        """As Client.untrack."""
        return await self.call(writes.untrack, jid)

    async def tracked(self) -> Tracked[AsyncJob]:
        """As Client.tracked."""
        tracked = await self.call(queries.tracked)
        return Tracked(self._acting(tracked.jobs), tracked.expired)

    async def tagged(self, tag: str, offset: int = 0, count: int = 25) -> tuple[int, list[AsyncJob]]:
        """As Client.tagged."""
        total, records = await self.call(queries.tagged, tag, offset, count)
        return total, self._acting(records)

    async def tags(self, offset: int = 0, count: int = 25) -> dict[str, int]:
        """As Client.tags."""
        return await self.run(queries.tags(offset, count))

    def _acting(self, records: Sequence[JobRecord]) -> list[AsyncJob]:
        return [AsyncJob(record, self) for record in records]

    # queues and workers

    def queue(self, name: str) -> "AsyncQueue":
        """As Client.queue; not awaited."""
        return AsyncQueue(self, name)

    async def queues(self) -> dict[str, Depths]:
        """As Client.queues."""
        return await self.follow(steps.all_pages(lambda offset: queries.depths((), offset, now=self.clock())))

    async def recurring(self, jid: str) -> AsyncRecurringJob | None:
        """As Client.recurring."""
        record = await self.follow(steps.recurring(jid))
        return AsyncRecurringJob(record, self) if record else None

    async def unrecur(self, jid: str) -> bool:
        """As Client.unrecur."""
        return await self.call(writes.unrecur, jid)

    async def limit(
        self, key: str, running: int | None = None, rate: str | None = None, *, by: str | None = None
    ) -> Limit:
        """As Client.limit."""
        if running is not None or rate is not None:
            await self.call(limits.limit, key, running, rate, by=by)
        return (await self.run(limits.read(key)))[key]

    async def unlimit(self, key: str, half: str | None = None) -> bool:
        """As Client.unlimit."""
        return await self.call(limits.unlimit, key, half)

    async def limits(self) -> dict[str, Limit]:
        """As Client.limits."""
        return await self.follow(steps.all_pages(lambda offset: limits.read(None, offset), least=1))

    async def limit_jobs(self, key: str, offset: int = 0, count: int = 25) -> LimitJobs:
        """As Client.limit_jobs."""
        return await self.run(limits.jobs(key, offset, count))

    async def workers(self) -> list[Worker]:
        """As Client.workers."""
        return await self.call(queries.workers)

    async def worker(self, name: str) -> WorkerJobs:
        """As Client.worker."""
        return await self.call(queries.worker, name)

    async def deregister(self, worker: str) -> int:
        """As Client.deregister."""
        return await self.call(writes.deregister, worker)

    async def serve(self, worker: str, queues: Sequence[str], order: str | None = None) -> None:
        """As Client.serve."""
        served(worker, await self.call(writes.serve, worker, queues, order))

    async def ask(
        self, workers: str | Sequence[str] | None, what: str, timeout: float = 5.0, argument: Any = None
    ) -> dict[str, Any]:
        """As Client.ask."""
        deadline_at = times.monotonic() + checked_wait_s("timeout", timeout)
        question, stands_s = new_jid(), max(timeout, writes.ASK_S)
        answers = Answers(await self.call(writes.ask, question, workers, what, argument, stands_s=stands_s))
        while answers.missing and (left_s := deadline_at - times.monotonic()) > 0:
            wait_s = min(left_s, self._longest_wait_s)
            answers.take(await self._store.pop([self._namespace.answer(question)], wait_s))
        return answers.by_worker

    async def check(self, repair: bool = False) -> list[Violation]:
        """As Client.check."""
        walk = Check(self._namespace.prefix, repair, self.clock)
        for step in walk.steps():
            walk.answered(await self.run(step))
        return walk.violations

    def events(
        self, queue: str | None = None, jid: str | None = None, worker: str | None = None, tracked: bool = False
    ) -> AsyncEventStream:
        """As Client.events; not awaited."""
        return self._store.events(Filter(self._namespace, queue, jid, worker, tracked))


class AsyncConfig:
    """The configuration of an AsyncClient's namespace: as Config, awaited."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, option: str) -> options.Value:
        """As Config.get."""
        options.checked_option(option)
        return options.value_in(await self._client.run(queries.settings()), option)

    async def set(self, option: str, value: options.Value, *, by: str | None = None) -> None:
        """As Config.set."""
        known, queue = options.checked_option(option)
        await self._client.call(writes.configure, known.name, queue, options.checked_value(known, value), by=by)

    async def unset(self, option: str) -> None:
        """As Config.unset."""
        known, queue = options.checked_option(option)
        await self._client.call(writes.configure, known.name, queue, None)

    async def all(self) -> dict[str, options.Value]:
        """As Config.all."""
        return options.values_in(await self._client.run(queries.settings()))


class AsyncQueue:
    """One queue of an AsyncClient: as Queue, awaited. It has no len(): that cannot be awaited."""

    __slots__ = ("_client", "name")

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = checked_name("queue", name)

    async def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """As Queue.put."""
        job = new_job("put", self.name, klass, data, options)
        return jid_of(job, (await self._client.put_jobs([job]))[0])

    async def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """As Queue.add."""
        return (await self._client.put_jobs([new_job("add", self.name, klass, data, options)]))[0] is True

    async def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """As Queue.put_many."""
        batches = checked_many(self.name, jobs)
        answers = [answer for batch in batches for answer in await self._client.put_jobs(batch)]
        return [jid_of(job, answer) for job, answer in zip(itertools.chain(*batches), answers, strict=True)]

    async def recur(self, klass: str, data: Any = None, **options: Unpack[RecurOptions]) -> str:
        """As Queue.recur."""
        return await self._client.call(writes.recur, self.name, klass, data, options)

    async def lease(self, worker: str, count: int = 1, ttl: float | None = None, block: float = 0) -> list[AsyncLease]:
        """As Queue.lease."""
        return await self._client.lease(worker, [self.name], count, ttl, block=block)

    async def jobs(self, state: str, offset: int = 0, count: int = 25) -> Sequence[AsyncJob | AsyncRecurringJob]:
        """As Queue.jobs."""
        if state == "recurring":
            found = await self._client.run(queries.recurring_in(self.name, offset, count))
            return [AsyncRecurringJob(record, self._client) for record in found]
        return [
            AsyncJob(record, self._client)
            for record in await self._client.call(queries.listed, state, self.name, offset, count)
        ]

    async def peek(self, n: int = 1) -> list[AsyncJob]:
        """As Queue.peek."""
        return [AsyncJob(record, self._client) for record in await self._client.call(queries.peek, self.name, n)]

    async def counts(self) -> Counts:
        """As Queue.counts."""
        return (await self._client.call(queries.counts, [self.name]))[self.name]

    async def length(self) -> int:
        """As Queue.length."""
        counts = await self.counts()
        return counts.waiting + counts.stalled

    async def cancel(self, data: Any, *, by: str | None = None) -> list[str]:
        """As Queue.cancel."""
        return await self._client.follow(steps.cancel_equal(self.name, data, self._client.clock, by))

    async def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """As Queue.delete."""
        return await self._client.follow(steps.delete(self.name, None, running, self._client.clock, by))

    def lane(self, name: str) -> "AsyncLane":
        """As Queue.lane; not awaited."""
        return AsyncLane(self._client, self, name)

    async def lanes(self) -> dict[str, LaneCounts]:
        """As Queue.lanes."""
        found = await self._client.follow(
            steps.all_pages(lambda offset: lanes.read(self.name, None, offset, now=self._client.clock()))
        )
        return dict(sorted(found.items()))

    async def stats(self, date: datetime.date | str | float | None = None) -> Stats:
        """As Queue.stats."""
        return await self._client.call(queries.stats, self.name, date)

    async def pause(self, *, by: str | None = None) -> None:
        """As Queue.pause."""
        await self._client.config.set(f"paused-{self.name}", True, by=by)

    async def unpause(self) -> None:
        """As Queue.unpause."""
        await self._client.config.unset(f"paused-{self.name}")

    async def forget(self) -> bool:
        """As Queue.forget."""
        return await self._client.call(writes.forget, self.name)


class AsyncLane:
    """One lane of an AsyncQueue: as Lane, awaited."""

    __slots__ = ("_client", "_queue", "name")

    def __init__(self, client: AsyncClient, queue: AsyncQueue, name: str) -> None:
        self._client = client
        self._queue = queue
        self.name = checked_name("lane", name)

    async def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """As Lane.put."""
        return await self._queue.put(klass, data, **in_lane(self.name, options))

    async def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """As Lane.add."""
        return await self._queue.add(klass, data, **in_lane(self.name, options))

    async def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """As Lane.put_many."""
        each = checked_each("jobs", jobs, "dicts of put's arguments")
        return await self._queue.put_many(in_lane(self.name, job) for job in each)

    async def counts(self) -> LaneCounts:
        """As Lane.counts."""
        return (await self._client.call(lanes.read, self._queue.name, self.name))[self.name]

    async def length(self) -> int:
        """As Lane.length."""
        counts = await self.counts()
        return counts.waiting + counts.stalled

    async def pause(self, *, by: str | None = None) -> None:
        """As Lane.pause."""
        await self._client.call(lanes.pause, self._queue.name, self.name, by=by)

    async def unpause(self) -> None:
        """As Lane.unpause."""
        await self._client.call(lanes.unpause, self._queue.name, self.name)

    async def weight(self, n: int) -> None:
        """As Lane.weight."""
        await self._client.call(lanes.weigh, self._queue.name, self.name, n)

    async def delete(self, running: Literal["finish", "stop"] = "finish", *, by: str | None = None) -> Deleted:
        """As Lane.delete."""
        return await self._client.follow(steps.delete(self._queue.name, self.name, running, self._client.clock, by))
