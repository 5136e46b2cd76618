"""One connection that all calls under way share, each with its own answer. Runs in asyncio applications.

redis-py says where the server is and how to be let in. The connection is made here, because redis-py's own has no
public way to take its bytes. Must not: send anything twice. The store decides what a lost connection means.
"""

import asyncio
import contextlib
import os
import select
import socket
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import hiredis
import redis as redis_py
import redis.asyncio as redis_aio
from redis.connection import DefaultParser

from supervisor.engine.client.cancels import Cancels
from supervisor.engine.client.connection import is_elsewhere
from supervisor.engine.client.following import OurProvider, follows
from supervisor.engine.client.tls import AsyncTls

LOST: Final = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)
#: A longer command has its own connection, because all others would wait until it is written.
MOST_BYTES: Final = 2**20
_CLOSED: Final = "Connection closed by server."
_ELSEWHERE: Final = "another server is to be looked for"
_PLAIN: Final = (redis_aio.Connection, AsyncTls, redis_aio.UnixDomainSocketConnection)


class NotSent(Exception):
    """A command was not sent as a whole, so Redis does not run it."""


def can_share(pool: Any) -> bool:
    """Return whether the calls of a pool's client can share one connection.

    redis-py renews or tries out some connections between two calls (its Sentinel, credential providers, health checks),
    and others are made in a way of their own.
    """
    given = pool.connection_kwargs
    if not (pool.connection_class in _PLAIN or follows(pool.connection_class)) or given.get("protocol") != 2:
        return False
    special = (given.get(name) for name in ("credential_provider", "health_check_interval", "redis_connect_func"))
    return all(not each or isinstance(each, OurProvider) for each in special)


async def dialled(address: Any) -> "SharedLine":
    """Connect, and log in, as a connection of redis.asyncio says that it would. It stays unconnected itself.

    Raises NotSent, one of LOST, or ResponseError if the server refuses.
    """
    if follows(type(address)):
        await address.find()  # it takes its own time
    try:
        async with asyncio.timeout(address.socket_connect_timeout):
            line = await _connected(address)
    except TimeoutError:
        raise redis_py.TimeoutError("Timeout connecting to server") from None
    except OSError as error:
        # asyncio words the errors of connect() in its own way, and leaves the cause out.
        why = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error.strerror
        raise redis_py.ConnectionError(f"connecting failed: {why or error}") from error
    except RuntimeError as error:  # no thread can be started that would look up the host
        raise redis_py.ConnectionError(f"connecting failed: {error}") from error
    try:
        _keep_alive(line.socket, address)
        if address.credential_provider:
            await line.ask(packed("AUTH", *await address.credential_provider.get_credentials_async()))
        for words in _greeting(address):
            await line.ask(packed(*words))
        if follows(type(address)):
            address.check(await _role(line))
    except BaseException:
        await line.close()
        raise
    return line


async def _role(line: "SharedLine") -> Any:
    """Return the reply to ROLE, or its error: an account or a proxy may refuse the question."""
    try:
        return await line.ask(packed("ROLE"))
    except redis_py.ResponseError as error:
        return error


async def _connected(address: Any) -> "SharedLine":
    loop, line = asyncio.get_running_loop(), SharedLine(address.socket_timeout)
    if isinstance(address, redis_aio.UnixDomainSocketConnection):
        await loop.create_unix_connection(lambda: line, address.path)
        return line
    is_tls = isinstance(address, AsyncTls)
    arguments = address.connect_arguments() if is_tls else {"host": address.host, "port": address.port}
    await loop.create_connection(lambda: line, **arguments)
    return line


def _keep_alive(connected: Any, address: Any) -> None:
    if getattr(address, "socket_keepalive", False):  # a unix socket has none
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in address.socket_keepalive_options.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _greeting(address: Any) -> Iterator[tuple[Any, ...]]:
    if address.username:
        yield "AUTH", address.username, address.password or ""
    elif address.password:
        yield "AUTH", address.password
    if address.client_name:
        yield "CLIENT", "SETNAME", address.client_name
    if address.db:
        yield "SELECT", address.db


class SharedLine(asyncio.Protocol):
    """An established connection. Once it is lost it stays lost, and all calls that wait for an answer fail."""

    def __init__(self, timeout_s: float | None) -> None:
        """`timeout_s`: the server is lost if it has answered nothing for so long; None: it never is."""
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader(replyError=DefaultParser.parse_error)
        self._readable = select.poll()
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()  # in the order in which their commands were written
        self._loading: dict[str, asyncio.Future[Any]] = {}
        self._lost: Exception | None = None
        self._is_obsolete = False  # the next call needs a new one
        self._gone = self._loop.create_future()  # the transport has closed
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.socket = transport.get_extra_info("socket")
        self._readable.register(self.socket.fileno(), select.POLLIN)

    def stands(self) -> bool:
        """Return whether calls of the running loop can use the connection.

        Bytes that can be read while no call waits are its end, or would be taken for the next answer.
        """
        if self._lost is not None or self._loop is not asyncio.get_running_loop():
            return False
        if not self._waiting and not self._unsent and self._readable.poll(0):
            self._lose(redis_py.ConnectionError(_CLOSED))
        return self._lost is None and not self._is_obsolete

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """Return the reply to a packed command, to be awaited. An error is raised as redis-py's exception.

        Raises NotSent, or one of LOST. The answer to a cancelled call is dropped. A call that was cancelled before it
        was written is never sent.
        """
        answer = self._loop.create_future()
        if self._lost is not None:
            answer.set_exception(NotSent(str(self._lost)))
            return answer
        if not self._unsent:
            self._loop.call_soon(self._write)  # together with the other calls of this turn of the loop
        self._unsent.append((packed, answer))
        return answer

    async def ask_all(self, packed: Sequence[bytes]) -> list[Any]:
        """Send several commands together, and return their replies. Raises as `ask`."""
        return await asyncio.gather(*map(self.ask, packed))

    async def load(self, script: str) -> None:
        """Load a script into the server, once for all calls that miss it. Raises as `ask`."""
        answer = self._loading.get(script)
        if answer is None:
            answer = self._loading[script] = self.ask(packed("SCRIPT", "LOAD", script))
            answer.add_done_callback(lambda _: self._loading.pop(script))
        await asyncio.shield(answer)

    async def close(self) -> None:
        """Close the connection. Calls that still wait fail. Idempotent."""
        if self._loop is asyncio.get_running_loop():
            self._lose(redis_py.ConnectionError("the client was closed"))
            await asyncio.shield(self._gone)

    def retire(self) -> None:
        """Close the connection as soon as no call waits. The next call needs a new one."""
        self._is_obsolete = True
        if self._loop is asyncio.get_running_loop():
            self._end_if_unused()

    def leave(self) -> None:
        """Close a connection that the client forgot, if this is its loop, which would keep it open."""
        if self._lost is None:
            warnings.warn("unclosed AsyncClient", ResourceWarning, source=self, stacklevel=2)
            with contextlib.suppress(RuntimeError):  # there is no loop
                if self._loop is asyncio.get_running_loop():
                    self._lose(redis_py.ConnectionError("the client is gone"))

    def _write(self) -> None:
        if self._transport.is_closing():
            # `connection_lost` comes next. From Python 3.12 on, a write to a closing transport would watch its
            # descriptor again, and the next connection with the same number would get no events.
            return
        calls = [call for call in self._unsent if not call[1].done()]
        self._unsent.clear()
        if not calls:
            self._end_if_unused()
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
        self._is_obsolete = self._is_obsolete or is_elsewhere(reply)
        if answer.done():
            pass  # cancelled
        elif isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._is_obsolete and not self._waiting and not self._unsent:
            self._lose(redis_py.ConnectionError(_ELSEWHERE))

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


def packed(*words: Any) -> bytes:
    """Return a command as it is sent."""
    many: Any = words  # of any number: hiredis says that it takes one
    packed: bytes = hiredis.pack_command(many)
    return packed


async def sent(connection: Any, packed: Sequence[bytes]) -> None:
    """Send packed commands by a connection of redis.asyncio. Cancelled, it closes the connection."""
    cancels = Cancels()
    await connection.send_packed_command(packed)
    try:
        cancels.check()
    except asyncio.CancelledError:
        await connection.disconnect(nowait=True)
        raise


class OwnLine:
    """A connection of redis.asyncio that one call uses alone."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, packed: bytes) -> Any:
        """As SharedLine.ask."""
        await self._send([packed])
        try:
            return await self._connection.read_response()
        except redis_py.RedisError as error:
            if is_elsewhere(error):
                await self._connection.disconnect(nowait=True)
            raise

    async def ask_all(self, packed: Sequence[bytes]) -> list[Any]:
        """As SharedLine.ask_all."""
        await self._send(packed)
        try:
            return [await self._connection.read_response() for _ in packed]
        except redis_py.ResponseError:
            await self._connection.disconnect(nowait=True)  # the replies behind it would answer other calls
            raise

    async def load(self, script: str) -> None:
        """As SharedLine.load."""
        await self.ask(packed("SCRIPT", "LOAD", script))

    async def _send(self, packed: Sequence[bytes]) -> None:
        try:
            await sent(self._connection, packed)
        except LOST as error:
            raise NotSent(str(error)) from error
