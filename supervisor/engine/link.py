"""One connection to Redis that never waits. Runs in master; owns the socket and the bytes under way.

redis-py makes the connection (address, TLS, authentication, protocol), in a thread, for only there may it block. From
then on nothing here waits, sends anything twice or connects by itself: what a lost connection means is decided above.
"""

import os
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_CHUNK_BYTES: Final = 256 * 1024
_JOINED_BYTES: Final = 2**20
#: Of each step of making connections.
CONNECT_S: Final = 5.0


class LinkLost(Exception):
    """The connection has ended, or cannot be had. What was under way may or may not have been carried out."""


class Link:
    """An established connection: `send` commands, `receive` replies when the descriptor is readable."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # kept: it closes the socket when it is collected
        self._socket: Any = connection._sock  # redis-py has no public name for it
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._unsent: deque[memoryview] = deque()

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room: call `flush` when the descriptor is writable."""
        return bool(self._unsent)

    def send(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Queue commands as one pipeline and write what the socket takes. Raises LinkLost."""
        packed = [hiredis.pack_command(command) for command in commands]
        if len(packed) > 1 and sum(map(len, packed)) <= _JOINED_BYTES:
            packed = [b"".join(packed)]  # one write; what is large is not copied once more
        self._unsent.extend(map(memoryview, packed))
        self.flush()

    def flush(self) -> None:
        while self._unsent:
            try:
                view = self._unsent[0]
                sent = self._socket.send(view)
                if sent < len(view):
                    self._unsent[0] = view[sent:]
                else:
                    self._unsent.popleft()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise LinkLost(f"writing to Redis failed: {error}") from error

    def receive(self) -> list[Any]:
        """The replies that are complete; an error reply is a value, `hiredis.ReplyError`. Raises LinkLost."""
        while True:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                raise LinkLost(f"reading from Redis failed: {error}") from error
            if not chunk:
                raise LinkLost("Redis has closed the connection")
            self._reader.feed(chunk)
            if len(chunk) < _CHUNK_BYTES and not isinstance(self._socket, ssl.SSLSocket):
                break  # TLS may still hold decrypted bytes that no poll would tell of
        replies = []
        try:
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        except hiredis.ProtocolError as error:
            raise LinkLost(f"what answers there is not Redis: {error}") from error
        return replies

    def close(self) -> None:
        self._connection.disconnect()


def pool_of(url: str, timeout_s: float) -> Any:
    """A pool that makes connections which speak as ours do: bytes, and nothing is ever sent twice. `timeout_s`: of each
    step. Raises ValueError.
    """
    return redis.ConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )


class Connector:
    """Makes links in a thread of its own, and makes its descriptor readable when it has made them or failed."""

    def __init__(self, url: str, count: int, greeting: Sequence[tuple[Any, ...]], timeout_s: float) -> None:
        """`greeting`: commands sent on the first connection, their replies, or the errors, in `finish`. `timeout_s`: of
        each step.
        """
        self._pool = pool_of(url, timeout_s)
        self._count = count
        self._greeting = greeting
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links: list[Link] = []
        self._replies: list[Any] = []
        self._error: LinkLost | None = None
        threading.Thread(target=self._connect, name="redis-connect", daemon=True).start()

    def fileno(self) -> int:
        return self._event_fd

    def _connect(self) -> None:
        connections: list[Any] = []  # redis-py's connections have no types
        try:
            for _ in range(self._count):
                connection: Any = self._pool.make_connection()
                connection.connect()
                connections.append(connection)
            for command in self._greeting:
                connections[0].send_command(*command)
                self._replies.append(_reply_of(connections[0]))
            self._links = [Link(connection) for connection in connections]
        except (redis.RedisError, OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            for connection in connections:
                connection.disconnect()
            self._error = LinkLost(f"{error}")
        finally:
            os.eventfd_write(self._event_fd, 1)

    def finish(self) -> tuple[list[Link], list[Any]]:
        """The links and the replies to the greeting, once the descriptor is readable. Raises LinkLost."""
        os.close(self._event_fd)
        if self._error is not None:
            raise self._error
        return self._links, self._replies


def _reply_of(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
