"""Runs in asyncio applications (never in zygote or child). Owns: a pool of connections to Redis.
Must not: send anything twice, or block the event loop (only making an AsyncClient of the embedded server may block).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import redis as redis_py
import redis.asyncio as redis_aio
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from supervisor import clock as times
from supervisor.engine import commands
from supervisor.engine.client import (
    EMBEDDED_URL,
    SOCKET_TIMEOUT_S,
    Address,
    Clock,
    Share,
    borrowed_arguments,
    checked_block_s,
    checked_clock,
    checked_many,
    find_namespace,
    find_server,
    longest_wait_s,
    pause_s,
    refused,
    shown_address,
    unanswered,
    unreachable,
    worker_of,
)
from supervisor.engine.commands import Command, Counts
from supervisor.engine.jobs import UNSET, Answer, AsyncLease, Job, LeaseRecord, NewJob, Outcome, PutOptions, new_job
from supervisor.engine.keys import checked_name
from supervisor.engine.scripts import check_server

T = TypeVar("T")

_LOST = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)


class _Store:
    """Runs commands, each on a pooled connection, each sent once."""

    def __init__(self, pool: Any, shown: str, prefix: str) -> None:
        self._pool = pool
        self._shown = shown
        self._prefix = prefix
        self._checked = False

    async def run(self, command: Command[T]) -> T:
        """One round trip. Raises StoreUnavailable (nothing changed) or OutcomeUnknown."""
        connection = await self._connect()
        try:
            await self._check_server(connection)
            return command.parse(await self._answered(connection, command))
        except redis_py.ResponseError as error:
            raise refused(self._shown, command, error) from error
        finally:
            await self._pool.release(connection)

    async def wait(self, bells: Sequence[str], seconds: float) -> None:
        """Returns when one of the bells rings, at the latest after so long. Raises StoreUnavailable."""
        connection = await self._connect()
        try:
            await connection.send_command("BLPOP", *bells, f"{max(seconds, 0.001):.3f}")  # 0 would be for ever
            await connection.read_response()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        await self._pool.disconnect()

    async def _connect(self) -> Any:
        try:
            return await self._pool.get_connection()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

    async def _check_server(self, connection: Any) -> None:
        if self._checked:
            return
        try:
            await connection.send_command("INFO", "server")
            check_server(await connection.read_response())
        except redis_py.exceptions.NoPermissionError:
            pass  # an ACL without INFO: the scripts' first lines refuse a server that is too old
        except _LOST as error:
            raise unreachable(self._shown, error) from error
        self._checked = True

    async def _answered(self, connection: Any, command: Command[Any]) -> Any:
        try:
            return await self._ask(connection, command)
        except redis_py.exceptions.NoScriptError:
            # Not carried out, so this is no second time.
            try:
                await connection.send_command("SCRIPT", "LOAD", command.script.text)
                await connection.read_response()
            except _LOST as error:
                raise unreachable(self._shown, error) from error
            return await self._ask(connection, command)

    async def _ask(self, connection: Any, command: Command[Any]) -> Any:
        try:
            await connection.send_command(*command.wire(self._prefix))
        except _LOST as error:
            raise unreachable(self._shown, error) from error  # Redis runs no command that has not come to its end
        try:
            return await connection.read_response()
        except _LOST as error:
            raise unanswered(self._shown, command, error) from error


def _pool_of(address: Address) -> Any:
    arguments: dict[str, Any] = {
        "protocol": 2, "decode_responses": False, "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S,
    }  # fmt: skip
    try:
        return redis_aio.ConnectionPool.from_url(address.url, **arguments)
    except ValueError as error:
        raise ValueError(f"url must be redis://, rediss://, unix:// or {EMBEDDED_URL} ({error})") from None


def _pool_like(given: redis_aio.Redis) -> Any:
    if not isinstance(given, redis_aio.Redis):
        raise TypeError(f"redis must be a redis.asyncio.Redis, not {type(given).__name__}: {given!r:.100}")
    theirs: Any = given.connection_pool
    arguments = borrowed_arguments(theirs.connection_kwargs) | {"retry": Retry(NoBackoff(), 0)}
    if isinstance(theirs, SentinelConnectionPool):
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, theirs.sentinel_manager, connection_class=theirs.connection_class,
            is_master=theirs.is_master, check_connection=theirs.check_connection, **arguments,
        )  # fmt: skip
    return redis_aio.ConnectionPool(connection_class=theirs.connection_class, **arguments)


class AsyncClient:
    """The queue, for asyncio programs: as Client, awaited. Use it as an async context manager, or close it."""

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        redis: redis_aio.Redis | None = None,
    ) -> None:
        """As Client; `redis` is a redis.asyncio.Redis."""
        self._namespace = find_namespace(namespace)
        self._now = checked_clock(clock)
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

    def queue(self, name: str) -> "AsyncQueue":
        """As Client.queue; not awaited."""
        return AsyncQueue(self, name)

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[bool]:
        """As Client.put_jobs."""
        return await self._store.run(commands.put(jobs, now=self._now()))

    async def lease(
        self, worker: str, queues: Sequence[str], count: int = 1, ttl: float | None = None, block: float = 0
    ) -> list[AsyncLease]:
        """As Client.lease."""
        deadline_at = times.monotonic() + checked_block_s(block)
        while True:
            command = commands.lease(worker, queues, count, ttl_s=ttl, now=self._now())
            grant = await self._store.run(command)
            left_s = deadline_at - times.monotonic()
            if grant.leases or left_s <= 0 or count == 0:
                return [AsyncLease(record, self) for record in grant.leases]
            wait_s = pause_s(grant, left_s, self._longest_wait_s)
            if wait_s > 0:
                await self._store.wait([self._namespace.bell(queue) for queue in queues], wait_s)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """As Client.settle."""
        outcomes = list(outcomes)
        if not outcomes:
            return []
        return await self._store.run(commands.settle(worker_of(outcomes), outcomes, now=self._now()))

    async def renew_lease(self, lease: LeaseRecord, data: Any = UNSET) -> float:
        """What AsyncLease.renew does."""
        entry = commands.Renewal(lease.jid, lease.token, data=data)
        return (await self._store.run(commands.renew(lease.worker, [entry], now=self._now())))[0]

    async def sweep(self, count: int = 100) -> int:
        """As Client.sweep."""
        return await self._store.run(commands.sweep(count, now=self._now()))

    async def job(self, jid: str) -> Job | None:
        """As Client.job."""
        return (await self.jobs(jid))[0]

    async def jobs(self, *jids: str) -> list[Job | None]:
        """As Client.jobs."""
        return await self._store.run(commands.jobs(jids, now=self._now()))

    @overload
    async def failed(self) -> dict[str, int]: ...
    @overload
    async def failed(self, group: str, start: int = 0, limit: int = 25) -> tuple[int, list[Job]]: ...
    async def failed(
        self, group: str | None = None, start: int = 0, limit: int = 25
    ) -> dict[str, int] | tuple[int, list[Job]]:
        """As Client.failed."""
        if group is None:
            return await self._store.run(commands.failed_groups(now=self._now()))
        return await self._store.run(commands.failed_jobs(group, start, limit, now=self._now()))

    async def queues(self) -> dict[str, Counts]:
        """As Client.queues."""
        return await self._store.run(commands.counts(now=self._now()))

    async def counts(self, queue: str) -> Counts:
        """As Client.counts."""
        return (await self._store.run(commands.counts([queue], now=self._now())))[queue]

    async def deregister(self, worker: str) -> int:
        """As Client.deregister."""
        return await self._store.run(commands.deregister(worker, now=self._now()))


class AsyncQueue:
    """One queue of an AsyncClient: as Queue, awaited. It has no len(): that cannot be awaited."""

    __slots__ = ("_client", "name")

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = checked_name("queue", name)

    async def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """As Queue.put."""
        job = new_job("put", self.name, klass, data, options)
        await self._client.put_jobs([job])
        return job.jid

    async def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """As Queue.add."""
        return (await self._client.put_jobs([new_job("add", self.name, klass, data, options)]))[0]

    async def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """As Queue.put_many."""
        batches = checked_many(self.name, jobs)
        for batch in batches:
            await self._client.put_jobs(batch)
        return [job.jid for batch in batches for job in batch]

    async def lease(self, worker: str, count: int = 1, ttl: float | None = None, block: float = 0) -> list[AsyncLease]:
        """As Queue.lease."""
        return await self._client.lease(worker, [self.name], count, ttl, block)

    async def counts(self) -> Counts:
        """As Queue.counts."""
        return await self._client.counts(self.name)

    async def length(self) -> int:
        """As Queue.length."""
        counts = await self.counts()
        return counts.waiting + counts.stalled
