"""Runs in asyncio applications. Owns: one connection that all calls under way share, and which call is to have which
answer. Must not: connect, block, or send anything twice: what a lost connection means is decided in aio.py.

redis-py makes the connection (TLS, credentials, timeouts); from then on its bytes come here.
"""

import asyncio
import contextlib
import select
import warnings
from collections import deque
from typing import Any, Final

import hiredis
import redis as redis_py
import redis.asyncio as redis_aio

LOST: Final = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)
#: What is longer has a connection of its own, for all others would wait until it is written.
MOST_BYTES: Final = 2**20
_CLOSED: Final = "Connection closed by server."
_PLAIN: Final = (redis_aio.Connection, redis_aio.SSLConnection, redis_aio.UnixDomainSocketConnection)


class NotSent(Exception):
    """A command has not come to its end, so Redis does not run it."""


def can_share(pool: Any) -> bool:
    """Whether connections of a pool are fit for it: not those that redis-py may wish to renew or to try out between two
    calls (Sentinel, credential providers, health checks), nor what speaks in a way of its own.
    """
    given = pool.connection_kwargs
    renews = given.get("credential_provider") or given.get("health_check_interval")
    return pool.connection_class in _PLAIN and given.get("protocol") == 2 and not renews


class SharedLine(asyncio.Protocol):
    """An established connection. It stands, and once it is lost it stays so: all who wait then hear of it."""

    def __init__(self, connection: Any) -> None:
        """Takes the streams of a redis.asyncio connection that is connected and idle, on the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._timeout_s: float | None = connection.socket_timeout
        self._reader = hiredis.Reader(replyError=connection._parser.parse_error)
        # It is ours from here on: redis-py would close it with the object that has made it.
        self._writer, connection._writer, connection._reader = connection._writer, None, None
        self._transport = self._writer.transport
        self._transport.set_protocol(self)
        self._readable = select.poll()
        self._readable.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()  # in the order in which their commands were written
        self._loading: dict[str, asyncio.Future[Any]] = {}
        self._lost: Exception | None = None
        self._gone = self._loop.create_future()  # the transport has closed
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def stands(self) -> bool:
        """Whether calls of the loop that runs can use it. What can be read while nobody waits is its end, or would be
        taken for the next answer.
        """
        if self._lost is not None or self._loop is not asyncio.get_running_loop():
            return False
        if not self._waiting and not self._unsent and self._readable.poll(0):
            self._lose(redis_py.ConnectionError(_CLOSED))
        return self._lost is None

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """The reply to a command, to be awaited; raises what redis-py makes of one that is an error. Raises NotSent, or
        one of LOST. Who is cancelled leaves its answer to nobody; what was not written by then is never sent.
        """
        answer = self._loop.create_future()
        if self._lost is not None:
            answer.set_exception(NotSent(str(self._lost)))
            return answer
        if not self._unsent:
            self._loop.call_soon(self._write)  # together with all that this turn of the loop still brings
        self._unsent.append((packed, answer))
        return answer

    async def load(self, script: str) -> None:
        """Gives the server a script, once for all who find that it has none. Raises as `ask`."""
        answer = self._loading.get(script)
        if answer is None:
            answer = self._loading[script] = self.ask(_packed_load(script))
            answer.add_done_callback(lambda _: self._loading.pop(script))
        await asyncio.shield(answer)

    async def close(self) -> None:
        """Ends it; who still waits hears that it was lost. Idempotent."""
        if self._loop is asyncio.get_running_loop():
            self._lose(redis_py.ConnectionError("the client was closed"))
            await asyncio.shield(self._gone)

    def leave(self) -> None:
        """Ends it where nobody can use it any more, if this is its loop, which would keep it open."""
        if self._lost is None:
            warnings.warn("unclosed AsyncClient", ResourceWarning, source=self, stacklevel=2)
            with contextlib.suppress(RuntimeError):  # there is no loop
                if self._loop is asyncio.get_running_loop():
                    self._lose(redis_py.ConnectionError("the client is gone"))

    def _write(self) -> None:
        if self._transport.is_closing():
            # `connection_lost` comes next. From Python 3.12 on a closing transport would have its number watched again,
            # and who connects next, with the same number, would hear nothing.
            return
        calls = [call for call in self._unsent if not call[1].done()]
        self._unsent.clear()
        if not calls:
            return
        if not self._waiting:
            self._heard_at = self._loop.time()
        self._waiting.extend(answer for _, answer in calls)
        self._transport.writelines([packed for packed, _ in calls])
        if self._timer is None and self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self._waiting or self._timeout_s is None:
            return
        left_s = self._heard_at + self._timeout_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._on_time)
        else:
            self._lose(redis_py.TimeoutError("Timeout reading from socket"))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._hand_out(reply)
        except hiredis.ProtocolError as error:
            self._lose(redis_py.ConnectionError(f"what answers there is not Redis: {error}"))

    def _hand_out(self, reply: Any) -> None:
        if not self._waiting:
            raise hiredis.ProtocolError("it answers what nobody has asked")
        answer = self._waiting.popleft()
        if answer.done():
            return  # cancelled
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def eof_received(self) -> None:
        self._lose(redis_py.ConnectionError(_CLOSED))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        self._lose(redis_py.ConnectionError(str(error or _CLOSED)))

    def _lose(self, error: Exception) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(error)
        for _, answer in self._unsent:
            if not answer.done():
                answer.set_exception(NotSent(str(error)))
        self._waiting.clear()
        self._unsent.clear()


def _packed_load(script: str) -> bytes:
    words: Any = ("SCRIPT", "LOAD", script)  # of any number: hiredis says that it takes one
    packed: bytes = hiredis.pack_command(words)
    return packed


class OwnLine:
    """The connection of one call alone."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, packed: bytes) -> Any:
        """As SharedLine.ask."""
        try:
            await self._connection.send_packed_command([packed])
        except LOST as error:
            raise NotSent(str(error)) from error
        return await self._connection.read_response()

    async def load(self, script: str) -> None:
        """As SharedLine.load."""
        await self.ask(_packed_load(script))
