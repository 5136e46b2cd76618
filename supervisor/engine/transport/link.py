"""One connection to Redis that never blocks. Runs in the master. Owns the socket and the bytes in flight.

Must not wait, send anything twice or reconnect: the caller decides what a lost connection means. dial.py makes the
connection in a thread, because connecting blocks.
"""

import contextlib
import math
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import hiredis

from supervisor.engine.transport.dial import BlockingConnection
from supervisor.engine.transport.dialer import Dialer

#: Bytes of one recv. From 128 KiB on malloc maps fresh memory for each buffer, ten times as slow as the call.
_CHUNK_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 1024 * 1024
_JOINED_BYTES: Final = 2**20
#: Errors of a server that cannot serve the namespace now, while another one may.
_ELSEWHERE: Final = frozenset({"READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING"})
#: Timeout of each step of connecting.
CONNECT_S: Final = 5.0


class LinkLost(Exception):
    """The connection has ended, or could not be made. Commands in flight may or may not have been carried out."""


class LayoutRefused(LinkLost):
    """The namespace has another layout than this Leasehold's. `leasehold upgrade` converts it."""

    @staticmethod
    def check(reply: Any) -> None:
        """Raise it if a script has refused its call for that."""
        code, _, why = str(reply).partition(" ") if isinstance(reply, hiredis.ReplyError) else ("", "", "")
        if code == "LAYOUT":
            raise LayoutRefused(why.partition(" script: ")[0])


class ServedElsewhere(LinkLost):
    """The server has been demoted, has moved the namespace to another one, or has none of its data as yet."""

    @staticmethod
    def check(reply: Any) -> None:
        """Raise it if a reply says so. Redis has not carried out the command then."""
        if isinstance(reply, hiredis.ReplyError) and str(reply).partition(" ")[0] in _ELSEWHERE:
            raise ServedElsewhere(str(reply).partition(" script: ")[0])


class ReplyTooLarge(LinkLost):
    """A reply exceeds the reader's limit. The rest of it is still in flight."""


class Link:
    """An established connection: `send` commands, `receive` replies when the descriptor is readable."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._not_now, self._is_tls = _not_now(connected)
        self._reader = hiredis.Reader()
        self._is_large = False  # the reader's buffer has grown large
        self._unsent: deque[memoryview] = deque()

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    @property
    def wants_write(self) -> bool:
        """Return whether bytes wait to be sent: call `flush` when the descriptor is writable."""
        return bool(self._unsent)

    @property
    def is_readable(self) -> bool:
        """Return whether `receive` has something to read, or the end of the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Queue commands as one pipeline and write what the socket takes. Raises LinkLost."""
        packed = [hiredis.pack_command(command) for command in commands]
        if len(packed) > 1 and sum(map(len, packed)) <= _JOINED_BYTES:
            packed = [b"".join(packed)]  # one write; large commands are sent without a copy
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
            except self._not_now:
                return
            except OSError as error:
                raise LinkLost(f"writing to Redis failed: {error}") from error

    def receive(self, most_bytes: float = math.inf) -> list[Any]:
        """Return the complete replies. An error reply is a value, `hiredis.ReplyError`.

        Raises LinkLost, and ReplyTooLarge when more than `most_bytes` (and a chunk) of an incomplete reply are here.
        """
        while True:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except self._not_now:
                break
            except OSError as error:
                raise LinkLost(f"reading from Redis failed: {error}") from error
            if not chunk:
                raise LinkLost("Redis has closed the connection")
            self._reader.feed(chunk)
            if (held_bytes := self._reader.len()) > most_bytes:
                raise ReplyTooLarge(f"{held_bytes} bytes of a reply, and more is to come")
            self._is_large = self._is_large or held_bytes > _LARGE_BYTES
            if len(chunk) < _CHUNK_BYTES and not self._is_tls:
                break  # TLS may hold decrypted bytes that poll does not report
        replies = []
        try:
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
                if self._is_large and not self._reader.has_data():
                    # The reader never shrinks its buffer. It can be replaced only between replies, because it holds
                    # parsed parts.
                    self._reader, self._is_large = hiredis.Reader(), False
        except hiredis.ProtocolError as error:
            raise LinkLost(f"what answers there is not Redis: {error}") from error
        return replies

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the peer may have closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _not_now(connected: socket.socket) -> tuple[tuple[type[OSError], ...], bool]:
    """Return the exceptions that stand for EWOULDBLOCK, and whether the socket is TLS. ssl is imported only for TLS."""
    if type(connected) is socket.socket:
        return (BlockingIOError,), False
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError), True


class Connector:
    """Makes links in its own thread. Its descriptor becomes readable when they are made, or have failed."""

    def __init__(self, dialer: Dialer, count: int, greeting: Sequence[tuple[Any, ...]], timeout_s: float) -> None:
        """Start the thread. If it cannot start, `finish` raises LinkLost as for any failure.

        `greeting`: commands for the first connection, whose replies, also errors, `finish` returns. `timeout_s` limits
        each step.
        """
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._count = count
        self._greeting = greeting
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links: list[Link] = []
        self._replies: list[Any] = []
        self._error: LinkLost | None = None
        try:
            threading.Thread(target=self._connect, name="redis-connect", daemon=True).start()
        except RuntimeError as error:  # the limit of processes, or memory, is used up
            self._error = LinkLost(f"{error}")
            os.eventfd_write(self._event_fd, 1)

    def fileno(self) -> int:
        return self._event_fd

    def _connect(self) -> None:
        connections: list[BlockingConnection] = []
        try:
            connections = self._dialer.dial(self._count, self._timeout_s)
            self._replies = [connections[0].call(*command) for command in self._greeting]
            self._links = [Link(connection.socket) for connection in connections]
        except BaseException as error:  # noqa: BLE001 -- the thread's boundary: `finish` raises any error
            for connection in connections:
                connection.close()
            self._error = LinkLost(f"{error}")
        finally:
            os.eventfd_write(self._event_fd, 1)

    def finish(self) -> tuple[list[Link], list[Any]]:
        """Return the links and the replies to the greeting, once the descriptor is readable. Raises LinkLost."""
        os.close(self._event_fd)
        if self._error is not None:
            raise self._error
        return self._links, self._replies
