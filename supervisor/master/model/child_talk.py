"""Carries all messages between one child and the master except jobs. Runs in the master. Never blocks.

The socket pair `talk` brings outcomes, progress, checkpoints and chunks, and takes notices, and answers to the latter
two. Only the child has the other end, so its end means that the child is gone.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from supervisor import messages
from supervisor.linux import foreign_files, kernel
from supervisor.linux.kernel import Memfd
from supervisor.master.model import packets
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.packets import LOST_FD, NO_FD
from supervisor.messages import MOST_BESIDE, Outcome, Stored, Taken, Verb

#: Most packets of one child in one turn: more than its socket holds, and few enough not to delay other children.
MOST_PACKETS: Final = 1024
#: The memfd of a larger completion is kept, so that the master need not keep the bytes.
_LARGE_BYTES: Final = 2**20

#: Packets that wait for a shared child: several for each of its jobs.
_MOST_UNSENT: Final = 4 * MOST_BESIDE
#: A packet finds no room in the socket, or the kernel lacks memory for it.
_NO_ROOM: Final = kernel.OUT_OF_MEMORY | {errno.EAGAIN}
#: The body of a retry in place of a completion that was lost. The back-off gives descriptors time to become free.
_COMPLETION_LOST: Final = messages.pack_trouble(
    messages.Trouble("completion-lost", "it is done, but this supervisor had no descriptor left to read its completion")
)


class ChildTalk:
    def __init__(self, sent: deque[HeldLease]) -> None:
        """`sent`: the jobs that the child has not answered. Opens two sockets; raises OSError if that fails."""
        self._sent = sent
        self._ours, self._childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.fd = self._ours.fileno()
        self.at_end = False  # the child has closed its end
        self._unsent: deque[bytes] = deque()  # packets that found no room
        self._on_unsent: Callable[[], None] | None = None  # a talk without it drops such packets
        self.memfd: Memfd | None = None  # of a large completion, while the reader of `read` handles it

    @property
    def child_fd(self) -> int:
        return self._childs.fileno()

    def close_child_end(self) -> None:
        self._childs.close()

    def read(self) -> Iterator[Outcome]:
        """Yield what the child has said since the last call. At the end of the socket set `at_end`.

        Raises ValueError for a packet that no honest child sends.
        """
        self.memfd = None  # the last reader may have refused what came with it
        try:
            for packet, fd in packets.receive(self._ours, MOST_PACKETS, max(1, len(self._sent))):
                if fd != NO_FD:
                    yield self._read_large(packet, fd)
                    self.memfd = None
                elif packet:
                    yield messages.unpack_outcome(packet)
                else:
                    self.at_end = True
                    return
        except OSError as error:
            if error.errno in kernel.OUT_OF_MEMORY:
                return  # the child is not at fault; a later turn reads the packets
            # EMSGSIZE: the packet is longer than any of ours, or has several descriptors.
            raise ValueError(str(error)) from error

    def _read_large(self, packet: bytes, fd: int) -> Outcome:
        """Read a large completion, whose body is in a memfd. Only a job in the child's hands may have one.

        If the memfd is lost, the job is tried again: its child has done nothing wrong.
        """
        try:
            outcome = messages.unpack_outcome(packet)
            expected = any(outcome.token == held.lease.token for held in self._sent)
            if outcome.verb != Verb.FOLLOWED or outcome.body or not expected:
                raise ValueError("a descriptor that nobody asked for")
            if fd == LOST_FD:
                return outcome._replace(verb=Verb.RETRIED, body=_COMPLETION_LOST)
            body = kernel.read_sealed(fd, messages.MAX_COMPLETION_BYTES)
            self.memfd = _copy_of(fd) if len(body) > _LARGE_BYTES else None
            return outcome._replace(body=body)
        finally:
            if fd != LOST_FD:
                foreign_files.close((fd,))

    def keep_unsent(self, on_unsent: Callable[[], None]) -> None:
        """From now on the child is sent much at once: packets that find no room wait for `flush`.

        `on_unsent()` is called when the first one waits.
        """
        self._on_unsent = on_unsent

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, packet: bytes) -> bool:
        """Send a packet. Return False if the child is gone, or does not read and its socket is full."""
        if self._unsent:
            return self._keep(packet)
        try:
            self._ours.send(packet)
        except (BrokenPipeError, ConnectionResetError):
            return False
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return self._keep(packet)
        return True

    def _keep(self, packet: bytes) -> bool:
        if self._on_unsent is None or len(self._unsent) >= _MOST_UNSENT:
            return False
        self._unsent.append(packet)
        if len(self._unsent) == 1:
            self._on_unsent()
        return True

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._unsent:
            try:
                self._ours.send(self._unsent[0])
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                return
            self._unsent.popleft()

    def answer_checkpoint(self, number: int, kept: bool) -> None:
        """Tell whether Redis has a checkpoint. No signal is needed: the thread that made it reads the socket."""
        self.send(messages.pack_stored(Stored(number, kept)))

    def answer_chunks(self, token: int, count: int) -> None:
        """Tell how many chunks of a job Redis has."""
        self.send(messages.pack_taken(Taken(token, count)))

    def close(self) -> None:
        foreign_files.close_socket(self._ours)


def _copy_of(fd: int) -> Memfd | None:
    """Return a copy for the reader, or None if no descriptor is free: then the reader keeps the bytes."""
    try:
        return Memfd(os.dup(fd))
    except OSError:  # EMFILE, ENFILE
        return None
