"""Runs in applications and commands (never in zygote or child). Owns: a pool of connections to Redis.
Must not: send anything twice. A call whose answer was lost raises OutcomeUnknown; its caller knows what to do then.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack, overload
from urllib.parse import urlsplit

import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from supervisor import clock as times
from supervisor.engine import commands
from supervisor.engine.commands import MOST, Command, Counts, Grant
from supervisor.engine.errors import OutcomeUnknown, StoreUnavailable
from supervisor.engine.jobs import (
    DATA_BYTES,
    UNSET,
    Answer,
    Job,
    Lease,
    LeaseRecord,
    NewJob,
    Outcome,
    PutOptions,
    checked_number,
    new_job,
)
from supervisor.engine.keys import Namespace, checked_name
from supervisor.engine.scripts import check_server

T = TypeVar("T")
Clock = Callable[[], float]

SOCKET_TIMEOUT_S = 10.0
_LONGEST_WAIT_S = 5.0
EMBEDDED_URL = "embedded:"


# What both clients share.


class Share(Protocol):
    """A share in the embedded server."""

    @property
    def url(self) -> str: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is: `shown` is fit for messages, `share` what must be released."""

    url: str
    shown: str
    share: Share | None


def find_server(url: str | None) -> Address:
    """The server of an url; if None, of LEASEHOLD_REDIS_URL; else the embedded one, started if need be (blocks)."""
    if url is not None and not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}: {url!r:.100}")
    url = url or os.environ.get("LEASEHOLD_REDIS_URL") or EMBEDDED_URL
    if url == EMBEDDED_URL:
        from supervisor.engine import embedded  # only those who want a server of their own load what starts one

        share = embedded.acquire()
        return Address(share.url, "the embedded server", share)
    return Address(url, redacted(url), None)


def redacted(url: str) -> str:
    """The url without its user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def find_namespace(namespace: str | None) -> Namespace:
    """The namespace of a name; of LEASEHOLD_NAMESPACE, if None; else leasehold."""
    return Namespace(os.environ.get("LEASEHOLD_NAMESPACE") or "leasehold" if namespace is None else namespace)


def checked_clock(clock: Clock | None) -> Clock:
    """A clock to call; one that says None (the server's) if none was injected."""
    if clock is None:
        return lambda: None  # type: ignore[return-value]  # commands take None as the server's clock
    if not callable(clock):
        raise TypeError(f"clock must be callable, not {type(clock).__name__}: {clock!r:.100}")
    return clock


# Of a given connection's arguments, what redis-py has added for the pool they are from.
_OF_THE_POOL = ("maint_notif", "oss_cluster", "orig_", "himport_registry", "event_dispatcher", "connection_pool")


def borrowed_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a given pool, to make one of our own: nothing is sent twice, and replies are bytes."""
    kept = {name: value for name, value in given.items() if not name.startswith(_OF_THE_POOL)}
    own = {"retry_on_error": [], "retry_on_timeout": False, "decode_responses": False, "protocol": 2}
    return {**kept, **own}


def shown_address(given: Mapping[str, Any]) -> str:
    """A given connection's server, fit for messages."""
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def longest_wait_s(arguments: Mapping[str, Any]) -> float:
    """How long one wait for bells may be: a socket that times out first would look like a lost server."""
    timeout_s: float | None = arguments.get("socket_timeout", SOCKET_TIMEOUT_S)
    return _LONGEST_WAIT_S if timeout_s is None else min(_LONGEST_WAIT_S, timeout_s / 2)


def _clause(error: Exception) -> str:
    return str(error).rstrip(".")


def unreachable(shown: str, error: Exception) -> StoreUnavailable:
    """Nothing was carried out: there was no connection to send it on."""
    return StoreUnavailable(
        f"cannot reach Redis at {shown}: {_clause(error)}. Nothing was sent;"
        " is it running, and is LEASEHOLD_REDIS_URL right?"
    )


def unanswered(shown: str, command: Command[Any], error: Exception) -> StoreUnavailable | OutcomeUnknown:
    """The connection ended between a call and its answer."""
    name = command.script.name
    if command.script.reads_only or isinstance(error, redis_py.BusyLoadingError):
        return StoreUnavailable(
            f"Redis at {shown} did not answer {name}: {_clause(error)}. Nothing has changed; try again."
        )
    return OutcomeUnknown(
        f"Redis at {shown} did not answer {name}: {_clause(error)}. The outcome is unknown:"
        " all of it was carried out, or none. Look before you call again."
    )


def refused(shown: str, command: Command[Any], error: Exception) -> StoreUnavailable:
    """The server answered with an error. Our scripts raise none after their first write."""
    return StoreUnavailable(f"Redis at {shown} refused {command.script.name}: {_clause(error)}. Nothing has changed.")


def checked_block_s(block: float) -> float:
    """Seconds to wait for a job at most. Raises TypeError or ValueError naming the argument."""
    if checked_number("block", block) < 0:
        raise ValueError(f"block must be 0 or more seconds: {block!r}")
    return block


def checked_many(queue: str, given: Iterable[Mapping[str, Any]]) -> list[list[NewJob]]:
    """put_many's jobs, all checked before the first is sent, in batches of at most 1,000 jobs and 256 MB of data."""
    batches: list[list[NewJob]] = []
    room_bytes = 0
    for one in given:
        if not isinstance(one, Mapping):
            raise TypeError(f"jobs must be dicts of put's arguments, not {type(one).__name__}: {one!r:.100}")
        arguments = dict(one)
        if "klass" not in arguments:
            raise TypeError(f"jobs must each have a klass: {one!r:.100}")
        job = new_job("put", queue, arguments.pop("klass"), arguments.pop("data", None), arguments)
        if not batches or len(batches[-1]) == MOST or room_bytes < job.size_bytes:
            batches.append([])
            room_bytes = DATA_BYTES
        batches[-1].append(job)
        room_bytes -= job.size_bytes
    return batches


def worker_of(outcomes: Sequence[Outcome]) -> str:
    """The one worker whose leases these outcomes end. Raises TypeError or ValueError naming the argument."""
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be Completed, Retried, Failed, Released or Died: {outcome!r:.100}")
    workers = {outcome.lease.worker for outcome in outcomes}
    if len(workers) > 1:
        raise ValueError(f"outcomes must all be of one worker's leases, not of {', '.join(sorted(workers))}")
    return workers.pop()


def pause_s(grant: Grant, left_s: float, longest_s: float) -> float:
    """How long to wait for a bell before the next lease, if none rings."""
    pause = min(left_s, longest_s)
    return pause if grant.next_at_unix is None else min(pause, grant.next_at_unix - grant.now_unix)


# The sync client.

_LOST = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)


class _Store:
    """Runs commands, each on a pooled connection, each sent once."""

    def __init__(self, pool: Any, shown: str, prefix: str) -> None:
        self._pool = pool
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
        finally:
            self._pool.release(connection)

    def wait(self, bells: Sequence[str], seconds: float) -> None:
        """Blocks until one of the bells rings, at most so long. Raises StoreUnavailable."""
        connection = self._connect()
        try:
            connection.send_command("BLPOP", *bells, f"{max(seconds, 0.001):.3f}")  # 0 would be for ever
            connection.read_response()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error
        finally:
            self._pool.release(connection)

    def close(self) -> None:
        self._pool.disconnect()

    def _connect(self) -> Any:
        try:
            return self._pool.get_connection()
        except (*_LOST, redis_py.ResponseError) as error:
            raise unreachable(self._shown, error) from error

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
        try:
            connection.send_command(*command.wire(self._prefix))
        except _LOST as error:
            raise unreachable(self._shown, error) from error  # Redis runs no command that has not come to its end
        try:
            return connection.read_response()
        except _LOST as error:
            raise unanswered(self._shown, command, error) from error


def _pool_of(address: Address) -> Any:
    arguments: dict[str, Any] = {
        "protocol": 2, "decode_responses": False, "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S,
    }  # fmt: skip
    try:
        return redis_py.ConnectionPool.from_url(address.url, **arguments)
    except ValueError as error:
        raise ValueError(f"url must be redis://, rediss://, unix:// or {EMBEDDED_URL} ({error})") from None


def _pool_like(given: redis_py.Redis) -> Any:
    if not isinstance(given, redis_py.Redis):
        raise TypeError(f"redis must be a redis.Redis, not {type(given).__name__}: {given!r:.100}")
    theirs: Any = given.connection_pool
    arguments = borrowed_arguments(theirs.connection_kwargs) | {"retry": Retry(NoBackoff(), 0)}
    if isinstance(theirs, SentinelConnectionPool):
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, theirs.sentinel_manager, connection_class=theirs.connection_class,
            is_master=theirs.is_master, check_connection=theirs.check_connection, **arguments,
        )  # fmt: skip
    return redis_py.ConnectionPool(connection_class=theirs.connection_class, **arguments)


class Client:
    """The queue, for programs that block. Safe to share between threads; use it as a context manager, or close it.

    Every method but a blocking lease is one round trip. Arguments are checked before anything is sent: TypeError and
    ValueError name the argument. StoreUnavailable: nothing has changed. OutcomeUnknown: the answer was lost; nothing is
    ever sent a second time.
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

    def queue(self, name: str) -> "Queue":
        """A queue by its name. No round trip; a queue comes into being with its first put."""
        return Queue(self, name)

    def put_jobs(self, jobs: Sequence[NewJob]) -> list[bool]:
        """Puts jobs that were checked before, in one batch; Queue.put is what applications call."""
        return self._store.run(commands.put(jobs, now=self._now()))

    def lease(
        self, worker: str, queues: Sequence[str], count: int = 1, ttl: float | None = None, block: float = 0
    ) -> list[Lease]:
        """Leases up to `count` (at most 1,000) jobs of the queues, in their order, for `ttl` seconds (default: the
        queue's heartbeat). With `block`, waits up to so many seconds for the first one.
        """
        deadline_at = times.monotonic() + checked_block_s(block)
        while True:
            command = commands.lease(worker, queues, count, ttl_s=ttl, now=self._now())
            grant = self._store.run(command)
            left_s = deadline_at - times.monotonic()
            if grant.leases or left_s <= 0 or count == 0:
                return [Lease(record, self) for record in grant.leases]
            wait_s = pause_s(grant, left_s, self._longest_wait_s)
            if wait_s > 0:
                self._store.wait([self._namespace.bell(queue) for queue in queues], wait_s)

    def settle(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """Ends up to 1,000 leases of one worker in one step. One answer each: Completed, Failed, Released: True, or
        False if the lease is lost; Retried: the retries remaining; Died: the new state; the last two None if lost.
        """
        outcomes = list(outcomes)
        if not outcomes:
            return []
        return self._store.run(commands.settle(worker_of(outcomes), outcomes, now=self._now()))

    def renew_lease(self, lease: LeaseRecord, data: Any = UNSET) -> float:
        """What Lease.renew does."""
        entry = commands.Renewal(lease.jid, lease.token, data=data)
        return self._store.run(commands.renew(lease.worker, [entry], now=self._now()))[0]

    def sweep(self, count: int = 100) -> int:
        """Takes up to `count` (at most 1,000) jobs from workers that are lost for longer than the grace; masters do so
        by themselves. Answers how many.
        """
        return self._store.run(commands.sweep(count, now=self._now()))

    def job(self, jid: str) -> Job | None:
        """A job as it is now; None if there is none."""
        return self.jobs(jid)[0]

    def jobs(self, *jids: str) -> list[Job | None]:
        """Up to 1,000 jobs as they are now; None for each that there is none of."""
        return self._store.run(commands.jobs(jids, now=self._now()))

    @overload
    def failed(self) -> dict[str, int]: ...
    @overload
    def failed(self, group: str, start: int = 0, limit: int = 25) -> tuple[int, list[Job]]: ...
    def failed(
        self, group: str | None = None, start: int = 0, limit: int = 25
    ) -> dict[str, int] | tuple[int, list[Job]]:
        """How many failed jobs each group has; or, of one group, its size and some of its jobs, newest first."""
        if group is None:
            return self._store.run(commands.failed_groups(now=self._now()))
        return self._store.run(commands.failed_jobs(group, start, limit, now=self._now()))

    def queues(self) -> dict[str, Counts]:
        """All queues that were ever put to, in the order of their first put, with their counts."""
        return self._store.run(commands.counts(now=self._now()))

    def counts(self, queue: str) -> Counts:
        """The counts of one queue."""
        return self._store.run(commands.counts([queue], now=self._now()))[queue]

    def deregister(self, worker: str) -> int:
        """Forgets a worker: what it holds goes to the front, uncounted, its tokens are void. Answers how many jobs."""
        return self._store.run(commands.deregister(worker, now=self._now()))


class Queue:
    """One queue of a Client."""

    __slots__ = ("_client", "name")

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = checked_name("queue", name)

    def put(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> str:
        """Creates a job and answers its jid. A known jid is moved, from whatever state, and begins anew; who runs it
        loses its lease; options not given keep what the job has.
        """
        job = new_job("put", self.name, klass, data, options)
        self._client.put_jobs([job])
        return job.jid

    def add(self, klass: str, data: Any = None, **options: Unpack[PutOptions]) -> bool:
        """Creates a job; False, and no change, if there is one of this jid."""
        return self._client.put_jobs([new_job("add", self.name, klass, data, options)])[0]

    def put_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Puts jobs, each a dict of put's arguments, and answers their jids. All are checked before the first is sent;
        each 1,000 (or 256 MB of data) are put as one.
        """
        batches = checked_many(self.name, jobs)
        for batch in batches:
            self._client.put_jobs(batch)
        return [job.jid for batch in batches for job in batch]

    def lease(self, worker: str, count: int = 1, ttl: float | None = None, block: float = 0) -> list[Lease]:
        """Client.lease of this queue."""
        return self._client.lease(worker, [self.name], count, ttl, block)

    def counts(self) -> Counts:
        """How many jobs are waiting, running, stalled, scheduled."""
        return self._client.counts(self.name)

    def length(self) -> int:
        """How many jobs there are to lease: waiting (the front and what is due included) and stalled."""
        counts = self.counts()
        return counts.waiting + counts.stalled

    def __len__(self) -> int:
        return self.length()

    def __bool__(self) -> bool:
        return True  # a queue without jobs is a queue
