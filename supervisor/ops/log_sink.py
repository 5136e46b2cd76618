"""Opens the descriptor of the log for writes that never wait. Runs in the master.

Must not change the flags of a descriptor that it shares with other processes.
"""

import errno
import os
import select
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: A pipe takes up to PIPE_BUF bytes whole or not at all, so that lines are never torn or mixed.
PIPE_BYTES: Final = select.PIPE_BUF
#: A regular file takes twice as much in one write as waits before the log is written by itself.
FILE_BYTES: Final = 2**17


@dataclass(frozen=True, slots=True)
class Sink:
    """The target of lines. `write` returns the number of bytes taken, or raises BlockingIOError at once."""

    fd: int
    write: Callable[[bytes], int]
    chunk_bytes: int
    close: Callable[[], None]


def open_sink(fd: int) -> Sink:
    """Return a sink that never waits, and leaves the flags alone that `fd` shares with other processes."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # EBADF: stderr was closed at start
        return nowhere()
    if stat.S_ISREG(mode):
        return Sink(fd, lambda chunk: os.write(fd, chunk), FILE_BYTES, lambda: None)
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(fd))
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        return Sink(peer.fileno(), lambda chunk: peer.send(chunk, flags), PIPE_BYTES, peer.close)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # EACCES: another user's terminal; ENOENT: no /proc; ENXIO: a pipe without reader
        return Sink(fd, lambda chunk: _write_if_ready(fd, chunk), PIPE_BYTES, lambda: None)
    return Sink(own, lambda chunk: os.write(own, chunk), PIPE_BYTES, lambda: os.close(own))


def nowhere() -> Sink:
    def refuse(chunk: bytes) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    return Sink(-1, refuse, PIPE_BYTES, lambda: None)


def _write_if_ready(fd: int, chunk: bytes) -> int:
    """Write to a blocking descriptor. A pipe that is ready takes PIPE_BUF bytes without waiting."""
    waiter = select.poll()
    waiter.register(fd, select.POLLOUT)
    if not waiter.poll(0):
        raise BlockingIOError
    return os.write(fd, chunk[:PIPE_BYTES])
