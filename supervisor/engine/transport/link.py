"""One connection to Redis that never waits. Runs in master; owns the socket and the bytes under way.

It is made (dial.py) in a thread, for only there may that block. From then on nothing here waits, sends anything twice
or connects by itself: what a lost connection means is decided above.
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

from supervisor.engine.transport.dial import Line, dial

#: By one call: from 128 KiB on malloc would ask the kernel for the room each time, which takes ten times the call.
_CHUNK_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 1024 * 1024
_JOINED_BYTES: Final = 2**20
#: Of each step of making connections.
CONNECT_S: Final = 5.0


class LinkLost(Exception):
    """The connection has ended, or cannot be had. What was under way may or may not have been carried out."""


class ReplyTooLarge(LinkLost):
    """A reply has come that is larger than whoever reads it wants to have. The rest of it is still under way."""


class Link:
    """An established connection: `send` commands, `receive` replies when the descriptor is readable."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._not_now, self._is_tls = _not_now(connected)
        self._reader = hiredis.Reader()
        self._is_large = False  # its buffer
        self._unsent: deque[memoryview] = deque()

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room: call `flush` when the descriptor is writable."""
        return bool(self._unsent)

    @property
    def is_readable(self) -> bool:
        """Whether something has come, or the connection has ended, and `receive` has not seen it yet."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

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
            except self._not_now:
                return
            except OSError as error:
                raise LinkLost(f"writing to Redis failed: {error}") from error

    def receive(self, most_bytes: float = math.inf) -> list[Any]:
        """The replies that are complete; an error reply is a value, `hiredis.ReplyError`. Raises LinkLost, and
        ReplyTooLarge once more than `most_bytes` (and a chunk) of them have come.
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
                break  # TLS may still hold decrypted bytes that no poll would tell of
        replies = []
        try:
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
                if self._is_large and not self._reader.has_data():
                    # It would keep its buffer. Amid a reply it cannot go: it holds the parts that it has parsed.
                    self._reader, self._is_large = hiredis.Reader(), False
        except hiredis.ProtocolError as error:
            raise LinkLost(f"what answers there is not Redis: {error}") from error
        return replies

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end may have done so
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _not_now(connected: socket.socket) -> tuple[tuple[type[OSError], ...], bool]:
    """What it raises instead of waiting, and whether it is TLS: who has that has loaded it, others do without."""
    if type(connected) is socket.socket:
        return (BlockingIOError,), False
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError), True


class Connector:
    """Makes links in a thread of its own, and makes its descriptor readable when it has made them or failed."""

    def __init__(self, url: str, count: int, greeting: Sequence[tuple[Any, ...]], timeout_s: float) -> None:
        """`greeting`: commands sent on the first connection, their replies, or the errors, in `finish`. `timeout_s`: of
        each step.
        """
        self._url = url
        self._timeout_s = timeout_s
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
        lines: list[Line] = []
        try:
            for _ in range(self._count):
                lines.append(dial(self._url, self._timeout_s))
            self._replies = [lines[0].ask(*command) for command in self._greeting]
            self._links = [Link(line.socket) for line in lines]
        except Exception as error:  # noqa: BLE001 -- the thread's boundary: whatever it is, it is told
            for line in lines:
                line.close()
            self._error = LinkLost(f"{error}")
        finally:
            os.eventfd_write(self._event_fd, 1)

    def finish(self) -> tuple[list[Link], list[Any]]:
        """The links and the replies to the greeting, once the descriptor is readable. Raises LinkLost."""
        os.close(self._event_fd)
        if self._error is not None:
            raise self._error
        return self._links, self._replies
