"""Readers of what a handler streams, each on its own connection. Runs in applications and commands.

Must not: change anything but that the job's end is told. A reader reads Redis' stream itself, and sends nothing while
there is nothing to read, unless its client looks (`poll`).
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import redis as redis_py

from supervisor import clock
from supervisor.engine.client.cancels import Cancels
from supervisor.engine.client.connection import unreachable
from supervisor.engine.client.pools import closed, uncounted_connection
from supervisor.engine.commands.waits import Followed
from supervisor.engine.model.chunks import unpack
from supervisor.engine.model.errors import JobNotFound, StoreUnavailable
from supervisor.engine.model.keys import Namespace, checked_name
from supervisor.engine.model.validation import Duration, checked_seconds

BEGINNING: Final = "beginning"
END: Final = "end"
#: A reader that hears nothing asks after so long whether its job has ended: a worker of an earlier release does not
#: tell it.
_SILENCE_S: Final = 10.0
#: A read that is not answered for so long after its end means that the server is lost.
_PATIENCE_S: Final = 5.0
#: A thread that waits in a stream sees within this time that another thread has closed it.
_CLOSE_S: Final = 0.2
#: Entries of one read. The largest has 128 KiB.
_MOST_ENTRIES: Final = 16
_SILENT: Final = f"it has been silent for {_PATIENCE_S:g} s"
_LOST: Final = (redis_py.RedisError, OSError)


class StreamReading:
    """Where a reader is, and what it has read. Does no I/O."""

    def __init__(self, namespace: Namespace, jid: str, position: str, timeout: Duration | None, poll_s: float) -> None:
        """`poll_s`: how often it looks; 0: it waits in Redis. Raises TypeError or ValueError naming the argument."""
        self.jid = checked_name("jid", jid)
        self.place = namespace  # the shard that has the stream
        self._starts_at_end = position == END
        self._at = (0, 0) if position in (BEGINNING, END) else _checked_position(position)
        self._timeout_s = None if timeout is None else checked_seconds("timeout", timeout)
        self._poll_s = poll_s
        self._chunks: deque[tuple[tuple[int, int], int, Any]] = deque()  # position after it, attempt, value
        self._read_to = self._at  # the end of the last entry
        self._heard_at = clock.monotonic()
        self.attempt = 0
        self.missed = 0
        self._told_state = ""  # how the job has ended: there may be more to read
        self._end_state = ""  # the same, once the stream was read to its end
        self.is_registered = False  # the job's end is told in the stream
        self._ask_at = 0.0  # then whether it has ended
        self.pause_s = 0.0  # until the next look

    @property
    def position(self) -> str:
        return f"{self._at[0]}-{self._at[1]}"

    @property
    def state(self) -> str:
        return "" if self._chunks else self._end_state

    def next(self) -> tuple[Any] | None:
        """Return the next chunk that has come, in a tuple. None: read on, or `state` is set."""
        if not self._chunks:
            return None
        self._at, self.attempt, value = self._chunks.popleft()
        self._heard_at = clock.monotonic()
        return (value,)

    def registered(self, followed: Followed | None) -> None:
        """The job was asked for. Raises JobNotFound."""
        if followed is None:
            raise JobNotFound(f"there is no job {self.jid}")
        self.is_registered, self._ask_at = True, clock.monotonic() + _SILENCE_S
        self._told_state = followed.state
        if self._starts_at_end:
            self._starts_at_end = False
            self._at = self._read_to = _checked_position(followed.position)
            self._end_state = followed.state  # nothing is to come of a job that has ended

    @property
    def _waits(self) -> bool:
        return not (self._told_state or self._poll_s)

    def command(self) -> tuple[Any, ...]:
        """Return the command that reads on. It waits unless the job has ended, or the client looks."""
        last = f"{self._read_to[0]}-{self._read_to[1]}"
        if self._waits:
            wait_ms = int(self.wait_s * 1000) or 1
            return ("XREAD", "COUNT", _MOST_ENTRIES, "BLOCK", wait_ms, "STREAMS", self.place.stream(self.jid), last)
        return ("XRANGE", self.place.stream(self.jid), f"({last}", "+", "COUNT", _MOST_ENTRIES)

    @property
    def wait_s(self) -> float:
        """The longest that reading may wait for a chunk: in Redis, or until the next look."""
        most_s = self._poll_s or _SILENCE_S
        if self._timeout_s is None:
            return most_s
        return max(min(most_s, self._heard_at + self._timeout_s - clock.monotonic()), 0.0)

    def take(self, reply: Any) -> None:
        """Take the reply to `command`. Raises TimeoutError if nothing has come for too long."""
        now_at = clock.monotonic()
        self.pause_s = 0.0
        if reply:
            for name, fields in reply[0][1] if self._waits else reply:
                self._take_entry(_checked_position(name.decode()), dict(zip(fields[::2], fields[1::2], strict=True)))
        elif self._told_state:
            self._end_state = self._told_state
        elif self._timeout_s is not None and now_at >= self._heard_at + self._timeout_s:
            raise TimeoutError(f"nothing has come of job {self.jid} for {self._timeout_s:g} s")
        elif self._waits:
            self.is_registered = False
        else:
            self.is_registered, self.pause_s = now_at < self._ask_at, self.wait_s

    def _take_entry(self, end: tuple[int, int], fields: dict[bytes, bytes]) -> None:
        if b"end" in fields:
            self._end_state = fields[b"end"].decode()
            return
        try:
            chunks, attempt = list(unpack(fields[b"chunks"])), int(fields[b"attempt"])
        except (ValueError, KeyError):  # another program may add anything here
            self._read_to = end
            return
        at = end[0] - sum(cost for cost, _value in chunks), end[1] - len(chunks)
        self.missed += max(0, at[1] - self._read_to[1])
        for cost, value in chunks:
            at = at[0] + cost, at[1] + 1
            if at > self._read_to:
                self._chunks.append((at, attempt, value))
        self._read_to = end


def _checked_position(position: object) -> tuple[int, int]:
    if not isinstance(position, str):
        raise TypeError(f"position must be a str, not {type(position).__name__}: {position!r:.100}")
    size, dash, count = position.partition("-")
    if not (dash and size.isdecimal() and count.isdecimal()):
        raise ValueError(f"position must be 'beginning', 'end' or the position of a stream: {position!r:.100}")
    return int(size), int(count)


def _lost(shown: str, error: Exception) -> StoreUnavailable:
    why = str(error).rstrip(".")
    return StoreUnavailable(f"Redis at {shown} tells no more of the stream: {why}. The next call goes on where it was.")


class _JobStreamState:
    _reading: StreamReading

    @property
    def position(self) -> str:
        """Where the last chunk ends. Another stream goes on from it with `position=`."""
        return self._reading.position

    @property
    def attempt(self) -> int:
        """Which start of the job has streamed the last chunk, from 1 on. A higher one has begun anew."""
        return self._reading.attempt

    @property
    def missed(self) -> int:
        """How many chunks were dropped, because the stream was full, before this reader had them."""
        return self._reading.missed

    @property
    def state(self) -> str:
        """How the job has ended, once all chunks are read: complete, failed, cancelled or gone. Empty until then."""
        return self._reading.state


class JobStream(_JobStreamState):
    """An iterator over what a job's handler streams. It ends with the job, or with `close`.

    StoreUnavailable: the connection is lost; the next call goes on where it was. Another thread may call `close`.
    """

    def __init__(
        self, pool: Callable[[], Any], shown: str, reading: StreamReading, follow: Callable[[str], Followed | None]
    ) -> None:
        """`pool` returns the client's, once the job was followed. The stream makes one connection like the pool's,
        which the pool does not count. `follow` names the job's shard in `reading`.
        """
        self._pool = pool
        self._shown = shown
        self._reading = reading
        self._follow = follow
        self._connection: Any = None
        self._closed = threading.Event()
        self._in_use = threading.Lock()  # one thread at a time uses the connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        reading = self._reading
        with self._in_use:
            while not self._closed.is_set():
                chunk = reading.next()
                if chunk is not None:
                    return chunk[0]
                if reading.state:
                    break
                if not reading.is_registered:
                    reading.registered(self._follow(reading.jid))
                    continue
                self._read()
                self._closed.wait(reading.pause_s)
            self._disconnect()
            raise StopIteration

    def close(self) -> None:
        """End the stream, also for threads that wait in it. Idempotent."""
        self._closed.set()
        if self._in_use.acquire(blocking=False):  # else the thread that waits disconnects
            self._disconnect()
            self._in_use.release()

    def _read(self) -> None:
        connection, reading = self._connected(), self._reading
        late_at = clock.monotonic() + reading.wait_s + _PATIENCE_S
        is_answered = False
        try:
            connection.send_command(*reading.command(), check_health=False)
            while not connection.can_read(timeout=_CLOSE_S):
                if self._closed.is_set():
                    return
                if clock.monotonic() >= late_at:
                    raise TimeoutError(_SILENT)
            reply = connection.read_response()
            is_answered = True
        except _LOST as error:
            raise _lost(self._shown, error) from error
        finally:
            if not is_answered:  # the reply would be taken for that of the next command
                self._disconnect()
        reading.take(reply)

    def _connected(self) -> Any:
        if self._connection is None:
            connection = uncounted_connection(self._pool())
            try:
                connection.connect()
            except _LOST as error:
                raise unreachable(self._shown, error) from error
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


class AsyncJobStream(_JobStreamState):
    """As JobStream, to iterate over with `async for`; an async context manager. One task at a time reads it."""

    def __init__(
        self,
        pool: Callable[[], Any],
        shown: str,
        reading: StreamReading,
        follow: Callable[[str], Awaitable[Followed | None]],
    ) -> None:
        """As JobStream. `pool` returns the client's for the running loop."""
        self._pool = pool
        self._shown = shown
        self._reading = reading
        self._follow = follow
        self._connection: Any = None
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """Cancelled, it loses nothing."""
        reading = self._reading
        while not self._closed.is_set():
            chunk = reading.next()
            if chunk is not None:
                return chunk[0]
            if reading.state:
                break
            if not reading.is_registered:
                reading.registered(await self._follow(reading.jid))
                continue
            await self._read()
            if reading.pause_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), reading.pause_s)
        await self._disconnect()
        raise StopAsyncIteration

    async def close(self) -> None:
        """As JobStream.close."""
        self._closed.set()
        await self._disconnect()

    async def _read(self) -> None:
        cancels = Cancels()
        connection, reading = await self._connected(), self._reading
        if self._closed.is_set():  # Another task closed the stream meanwhile, and saw no connection to close.
            return
        wait_s, is_answered = reading.wait_s + _PATIENCE_S, False
        try:
            await connection.send_command(*reading.command(), check_health=False)
            cancels.check()
            # redis-py's own time-out is an answer of None, as that of a read which found nothing.
            async with asyncio.timeout(wait_s):
                reply = await connection.read_response(timeout=2 * wait_s, disconnect_on_error=False)
            is_answered = True
        except _LOST as error:
            if self._closed.is_set():
                return
            raise _lost(self._shown, error) from error
        finally:
            if not is_answered:  # cancelled, too: the reply would be taken for that of the next command
                await self._disconnect(nowait=True)
        reading.take(reply)

    async def _connected(self) -> Any:
        if self._connection is None:
            connection = uncounted_connection(self._pool())
            try:
                await connection.connect()
            except _LOST as error:
                raise unreachable(self._shown, error) from error
            self._connection = connection
        return self._connection

    async def _disconnect(self, nowait: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await closed(connection.disconnect(nowait=nowait))
