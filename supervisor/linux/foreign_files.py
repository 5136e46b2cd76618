"""Closes foreign files in a thread beside the loop. Runs in the master, whose loop must not close them itself.

A child may send descriptors to the master. Closing the last reference to a foreign file can block: SO_LINGER waits for
as long as the sender has chosen. One daemon thread closes them all. It also closes the sockets of children, because
such descriptors may still lie in their queues. Below Linux 6.10 the close of any Unix socket can also close what other
processes have left in unread queues. The loop therefore closes a socket itself only on a newer kernel, and only if no
other process can send into it.
"""

import contextlib
import os
import re
import signal
import socket
import struct
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

#: A close that takes longer is interrupted when the next descriptor comes. If it still goes on (a dead file system),
#: another thread takes over.
_PATIENCE_S: Final = 1.0
#: Pause between two interruptions while the master waits for the last closes.
_INTERRUPT_S: Final = 0.05
#: struct linger: on, 0 seconds. The close drops unsent data.
_NO_LINGER: Final = struct.pack("=ii", 1, 0)
_NO_MORE: Final = -1
#: Sockets of dead children that are closed together.
_BATCH: Final = 24


def _release() -> tuple[int, ...]:
    """Return the numbers of the kernel's release."""
    return tuple(map(int, re.findall(r"\d+", os.uname().release)))


#: From Linux 6.10 on a close leaves the unread queues of other sockets to a thread of the kernel.
_CLOSES_ONLY_ITSELF: Final = _release() >= (6, 10)


class Closer:
    """A queue of descriptors and the thread that closes them, which starts with the first.

    If the thread cannot start, the queue is kept, and each later call tries again.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._idle: list[int] = []  # closed together with the next ones
        self._thread: Thread | None = None
        self._began_at = 0.0  # start of the close under way; 0: none
        self._interrupted_at = 0.0  # start of the close that was interrupted last

    def take(self, fds: Iterable[int]) -> None:
        """Close these soon, with what `take_later` has kept. Never blocks."""
        self._idle += fds
        self.close_kept()

    def take_later(self, fd: int) -> None:
        """Close this together with others: waking the thread costs more than a close."""
        self._idle.append(fd)
        if len(self._idle) >= _BATCH:
            self.close_kept()

    def close_kept(self) -> None:
        """Close soon what `take_later` has kept. Never blocks."""
        if not self._idle and (self._thread is not None or self._queue.empty()):
            return
        for fd in self._idle:
            self._queue.put(fd)
        self._idle.clear()
        if self._is_stuck and not self._interrupt():
            self._thread = None
        if self._thread is None or not self._thread.is_alive():  # a fork loses the thread
            self._start()

    def finish(self, timeout_s: float) -> bool:
        """Close everything left, interrupting closes that block. False: some are open after `timeout_s`."""
        deadline_at = clock.monotonic() + timeout_s
        self.close_kept()
        if self._thread is None:
            return self._queue.empty()
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
        """Interrupt the close under way. False: it was interrupted before, in vain."""
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
        try:
            self._thread.start()
        except RuntimeError:  # the limit of processes, or memory, is used up: the next call tries again
            self._thread = None

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
close_kept = _closer.close_kept
finish = _closer.finish


def close_socket(sock: socket.socket) -> None:
    """Shut the connection down now, and close our end in the thread."""
    _shut_down(sock)
    _closer.take_later(sock.detach())


def close_own_socket(sock: socket.socket) -> None:
    """Shut down and close a Unix socket into whose queue only this process can have sent anything."""
    if not _CLOSES_ONLY_ITSELF:
        close_socket(sock)
        return
    _shut_down(sock)
    sock.close()


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer is gone
        sock.shutdown(socket.SHUT_RDWR)


def _close(fd: int) -> None:
    try:
        sock = socket.socket(fileno=fd)
    except OSError:  # no socket
        sock = None
    with contextlib.suppress(OSError):  # a socket without SO_LINGER; or unsent data is lost
        if sock is None:
            os.close(fd)
        else:
            with sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _do_nothing(_signo: int, _frame: object) -> None:
    """A handler, so that the signal interrupts a system call and ends no process."""
