"""Streams of events, each on its own connection. Runs in applications and commands (never in zygote or child).

Must not: keep events that happen while no stream listens. The jobs' histories have those.
"""

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import orjson
import redis as redis_py

from supervisor import clock
from supervisor.engine.client.cancels import Cancels
from supervisor.engine.client.connection import clause, unreachable
from supervisor.engine.client.pools import closed, uncounted_connection
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.keys import Namespace, checked_name
from supervisor.engine.model.validation import Duration, checked_seconds

#: The events and their own fields. Every event of a job also has its jid, queue, klass, and whether it is tracked.
#: A release has a reason if its worker gives one. The message of a failure is cut after 512 bytes. `by` names who did
#: it, if that was given.
STREAM_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "job.put": (),
    "lease.granted": ("worker", "token"),
    "job.completed": ("worker",),
    "job.advanced": ("worker", "to"),
    "job.failed": ("worker", "group", "message"),
    "job.dropped": ("group",),
    "job.retried": ("worker", "remaining"),
    "job.released": ("worker", "reason"),
    "job.returned": ("worker",),
    "job.suspended": ("worker", "signal"),
    "job.signalled": ("signal",),
    "job.died": ("worker", "reason", "state", "deaths"),
    "job.cancelled": ("worker", "by"),
    "job.stalled": ("worker",),
    "job.progressed": ("worker", "fraction", "text"),
    "lease.lost": ("worker", "token"),
    "batch.ended": ("batch", "state", "total", "failed"),
    "batch.paused": ("batch", "by"),
    "batch.resumed": ("batch",),
    "job.tracked": (),
    "job.untracked": (),
    "queue.paused": ("by",),
    "queue.unpaused": (),
    "queue.deleted": (),
    "lane.paused": ("lane", "by"),
    "lane.unpaused": ("lane",),
    "limit.changed": ("limit", "by"),
    "config.changed": ("option", "value"),
    "worker.told": ("worker", "queues"),
    "worker.deregistered": ("worker", "handed_back"),
}

#: After this silence the stream sends a PING. After as much again the server is lost.
_SILENCE_S = 10.0
#: The last wait for the answer to the PING, which may lie unread if the application has held up its event loop.
_LAST_S = 1.0
#: A thread that waits in a stream sees within this time that another thread has closed it.
_CLOSE_S = 0.2
_LOST = (redis_py.RedisError, OSError)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Attributes that do not apply are None. STREAM_EVENTS lists the `fields` of each name."""

    name: str
    when_unix: float
    jid: str | None = None
    queue: str | None = None
    klass: str | None = None
    worker: str | None = None
    tracked: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


class EventFilter:
    """The events that a stream lets through, and the channels on which Redis publishes them."""

    def __init__(self, queue: str | None, jid: str | None, worker: str | None, tracked: bool) -> None:
        """Raises TypeError or ValueError naming the argument."""
        if not isinstance(tracked, bool):
            raise TypeError(f"tracked must be a bool, not {type(tracked).__name__}: {tracked!r:.100}")
        given = {"queue": queue, "jid": jid, "worker": worker}
        self._wanted = {about: checked_name(about, name) for about, name in given.items() if name is not None}
        self._end = "tracked" if tracked else "events"

    def channels(self, places: Sequence[Namespace]) -> list[str]:
        """Return the channels of these shards."""
        return [f"{place.prefix}{self._end}" for place in places]

    def event_of(self, reply: object) -> Event | None:
        """Return the event that a received reply holds; None if it holds none, or one that is not wanted."""
        if not isinstance(reply, list) or reply[0] != b"message":
            return None  # the answer to SUBSCRIBE or PING
        try:
            said = orjson.loads(reply[2])
            event = Event(
                name=said.pop("event"),
                when_unix=said.pop("when"),
                jid=said.pop("jid", None),
                queue=said.pop("queue", None),
                klass=said.pop("klass", None),
                worker=said.pop("worker", None),
                tracked=said.pop("tracked", False),
                fields=said,
            )
        except (ValueError, KeyError, AttributeError, TypeError):  # another program may publish anything here
            return None
        return event if all(getattr(event, about) == name for about, name in self._wanted.items()) else None


class _Silence:
    """Says what the silence of a connection means. Outlives a call: short ones may never see it last."""

    def __init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        self.ends_at, self._asked, self._is_last = clock.monotonic() + _SILENCE_S, False, False

    def must_ask(self) -> bool:
        """Return whether a PING is due after silence. Raises TimeoutError if the last one was not answered."""
        if clock.monotonic() < self.ends_at:
            return False
        if not self._asked:
            self.heard()
            self._asked = True
            return True
        if self._is_last:
            raise TimeoutError(f"it has been silent for {2 * _SILENCE_S:g} s")
        self.ends_at, self._is_last = clock.monotonic() + _LAST_S, True
        return False


class _Patience:
    """Says how long one call waits for the next reply."""

    def __init__(self, timeout: Duration | None) -> None:
        seconds = math.inf if timeout is None else checked_seconds("timeout", timeout)
        if seconds < 0:
            raise ValueError(f"timeout must be 0 or more seconds: {timeout!r}")
        self._end_at = clock.monotonic() + seconds

    @property
    def over(self) -> bool:
        return clock.monotonic() >= self._end_at

    def wait_s(self, silence: _Silence) -> float:
        """Above 0, so that a reply that has come already is read in any case."""
        return max(min(self._end_at, silence.ends_at) - clock.monotonic(), 0.001)


def _unheard(shown: str, error: Exception) -> StoreUnavailable:
    """Return the error of a stream that cannot begin."""
    if type(error) is not redis_py.ResponseError:
        return unreachable(shown, error)
    return StoreUnavailable(f"Redis at {shown} tells nobody of events, which come by SUBSCRIBE: {clause(error)}.")


def _lost(shown: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"Redis at {shown} tells of no more events: {clause(error)}. What happens before you go on is missed."
    )


def _receive(connection: Any, patience: _Patience, silence: _Silence) -> Any:
    if connection.can_read(timeout=min(patience.wait_s(silence), _CLOSE_S)):
        silence.heard()
        return connection.read_response()
    if silence.must_ask():
        connection.send_command("PING", check_health=False)
    return None


async def _receive_async(connection: Any, patience: _Patience, silence: _Silence) -> Any:
    reply = await connection.read_response(timeout=patience.wait_s(silence), disconnect_on_error=False)
    if reply is not None:
        silence.heard()
    elif silence.must_ask():
        cancels = Cancels()
        await connection.send_command("PING", check_health=False)
        cancels.check()
    return reply


class EventStream:
    """An iterator over events from now on, without end until `close`, which another thread may call.

    As a context manager it misses no event after it was entered. StoreUnavailable: the connection is lost; the next
    call listens anew.
    """

    def __init__(self, pool: Any, shown: str, wanted: EventFilter, places: Callable[[], Sequence[Namespace]]) -> None:
        """`pool` is the client's. The stream makes one connection like the pool's, which the pool does not count.

        `places` returns the shards of the namespace.
        """
        self._pool = pool
        self._places = places
        self._shown = shown
        self._wanted = wanted
        self._connection: Any = None
        self._silence = _Silence()
        self._closed = False
        self._in_use = threading.Lock()  # one thread at a time uses the connection

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout: Duration | None = None) -> Event | None:
        """Wait for the next event, for at most `timeout` seconds (None = for ever), and return it.

        Returns None if none came, or if the stream is closed.
        """
        patience = _Patience(timeout)
        with self._in_use:
            while not self._closed:
                reply = self._reply(patience)
                event = self._wanted.event_of(reply)
                if event is not None or (reply is None and patience.over):
                    return event
            self._disconnect()
            return None

    def close(self) -> None:
        """End the stream, also for threads that wait in it. Idempotent."""
        self._closed = True
        if self._in_use.acquire(blocking=False):  # else the thread that waits disconnects
            self._disconnect()
            self._in_use.release()

    def _reply(self, patience: _Patience) -> Any:
        connection = self._listen()
        try:
            return None if self._closed else _receive(connection, patience, self._silence)
        except _LOST as error:
            self._disconnect()
            if self._closed:
                return None
            raise _lost(self._shown, error) from error

    def _listen(self) -> Any:
        if self._connection is not None:
            return self._connection
        channels = self._wanted.channels(self._places())
        connection = uncounted_connection(self._pool)
        try:
            connection.connect()
            connection.send_command("SUBSCRIBE", *channels, check_health=False)
            connection.read_response()
        except _LOST as error:
            connection.disconnect()
            raise _unheard(self._shown, error) from error
        self._connection = connection
        self._silence.heard()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


class AsyncEventStream:
    """As EventStream, to iterate over with `async for`; an async context manager."""

    def __init__(
        self,
        pool: Callable[[], Any],
        shown: str,
        wanted: EventFilter,
        places: Callable[[], Awaitable[Sequence[Namespace]]],
    ) -> None:
        """As EventStream. `pool` returns the client's for the running loop."""
        self._pool = pool
        self._places = places
        self._shown = shown
        self._wanted = wanted
        self._connection: Any = None
        self._silence = _Silence()
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self._listen()
        except BaseException:
            await self._disconnect(nowait=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def get(self, timeout: Duration | None = None) -> Event | None:
        """As EventStream.get. Cancelled, it loses nothing."""
        patience = _Patience(timeout)
        while not self._closed:
            connection = await self._listen()
            if self._closed:  # Another task closed the stream meanwhile, and saw no connection to close.
                break
            try:
                reply = await _receive_async(connection, patience, self._silence)
            except _LOST as error:
                await self._disconnect(nowait=True)
                if self._closed:
                    return None
                raise _lost(self._shown, error) from error
            event = self._wanted.event_of(reply)
            if event is not None or (reply is None and patience.over):
                return event
        await self._disconnect()
        return None

    async def close(self) -> None:
        """As EventStream.close."""
        self._closed = True
        await self._disconnect()

    async def _listen(self) -> Any:
        if self._connection is not None:
            return self._connection
        channels = self._wanted.channels(await self._places())
        cancels, connection = Cancels(), uncounted_connection(self._pool())
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", *channels, check_health=False)
            await connection.read_response()
        except _LOST as error:
            await connection.disconnect(nowait=True)
            raise _unheard(self._shown, error) from error
        self._connection = connection
        self._silence.heard()
        cancels.check()
        return connection

    async def _disconnect(self, nowait: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await closed(connection.disconnect(nowait=nowait))
