"""Closes foreign files beside the loop. Runs in master.

A child may send descriptors to the master. Closing the last reference to a foreign file can wait in the kernel: a
socket with SO_LINGER waits for as long as its sender has chosen. So the loop closes none of them. It hands them to one
daemon thread, and so it does with the sockets of children: such descriptors may still lie in their queues. Below Linux
6.10, besides, whoever closes a socket of the Unix family closes what others have left in queues that nobody reads.
"""

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

#: A close that takes longer is interrupted when the next descriptor comes. One that goes on nevertheless (a dead file
#: system) keeps its thread, and another thread takes its place.
_PATIENCE_S: Final = 1.0
#: The pause between two interruptions while the master waits for the last closes.
_INTERRUPT_S: Final = 0.05
#: On, for 0 seconds: the close drops what is not sent yet.
_NO_LINGER: Final = struct.pack("=ii", 1, 0)
_NO_MORE: Final = -1
#: How many sockets of children that are gone are closed together: a child has three.
_BATCH: Final = 24


class Closer:
    """A queue of descriptors and the thread that closes them, which starts with the first."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._idle: list[int] = []  # to be closed with the next ones
        self._thread: Thread | None = None
        self._began_at = 0.0  # the close under way; 0: there is none
        self._interrupted_at = 0.0  # the beginning of the close that was interrupted last

    def take(self, fds: Iterable[int]) -> None:
        """Close these soon. Never blocks."""
        for fd in (*self._idle, *fds):
            self._queue.put(fd)
        self._idle.clear()
        if self._is_stuck and not self._interrupt():
            self._thread = None
        if self._thread is None or not self._thread.is_alive():  # a fork has no thread
            self._start()

    def take_later(self, fd: int) -> None:
        """Close this with others: to wake the thread costs more than a close."""
        self._idle.append(fd)
        if len(self._idle) >= _BATCH:
            self.take(())

    def finish(self, timeout_s: float) -> bool:
        """Close all that is left, without patience. False: some is left after that time."""
        deadline_at = clock.monotonic() + timeout_s
        if self._idle:
            self.take(())
        if self._thread is None:
            return True
        self._queue.put(_NO_MORE)
        while self._thread.is_alive():
            self._thread.join(_INTERRUPT_S)
            self._interrupt()
            if clock.monotonic() >= deadline_at:
                return False
        self._thread = None
        return True

    @property
    def _is_stuck(self) -> bool:
        began_at = self._began_at
        return began_at > 0 and clock.monotonic() - began_at > _PATIENCE_S

    def _interrupt(self) -> bool:
        """Have the close under way end without its wait. False: that was tried before, in vain."""
        began_at = self._began_at
        if not began_at or self._thread is None or self._thread.ident is None:
            return True
        is_first, self._interrupted_at = began_at != self._interrupted_at, began_at
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(self._thread.ident, kernel.INTERRUPT_SIGNAL)
        return is_first

    def _start(self) -> None:
        signal.signal(kernel.INTERRUPT_SIGNAL, _do_nothing)
        self._began_at = 0.0
        self._thread = Thread(target=self._serve, name="closer", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        thread = current_thread()
        while self._thread is thread:
            fd = self._queue.get()
            if fd == _NO_MORE:
                return
            self._began_at = clock.monotonic()
            _close(fd)
            if self._thread is thread:
                self._began_at = 0.0


_closer: Final = Closer()
close = _closer.take
finish = _closer.finish


def close_socket(sock: socket.socket) -> None:
    """End the connection now, for both sides, and close our end beside the loop."""
    with contextlib.suppress(OSError):  # the other end is gone
        sock.shutdown(socket.SHUT_RDWR)
    _closer.take_later(sock.detach())


def _close(fd: int) -> None:
    try:
        sock = socket.socket(fileno=fd)
    except OSError:  # another kind of file
        sock = None
    with contextlib.suppress(OSError):  # a socket without this option; or what was written last is lost
        if sock is None:
            os.close(fd)
        else:
            with sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _do_nothing(_signo: int, _frame: object) -> None:
    """A handler, so that the signal interrupts a system call and ends nothing."""
