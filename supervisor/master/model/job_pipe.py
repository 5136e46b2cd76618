"""Sends jobs to one child, and takes back those that it has not received. Runs in the master. Never blocks.

The socket pair `jobs` carries one packet per job, from the master to the child. The master keeps a duplicate of the
receiving end. The kernel gives each packet to one reader, so the child never sees a job that was taken back.
"""

import socket
from collections import deque
from typing import Final

from supervisor import messages
from supervisor.linux import foreign_files, kernel
from supervisor.linux.kernel import Memfd
from supervisor.master.model.held_lease import HeldLease

#: A child never has more unanswered jobs. With more packets in its socket a send might have to wait.
MAX_SENT: Final = 256
#: Requested send buffer. Every process may have this much unless the administrator has lowered the system's limit.
#: The kernel grants twice the requested size.
_SEND_BUFFER_BYTES: Final = 212_992
_DONT_WAIT: Final = int(socket.MSG_DONTWAIT)


def charge(packet_bytes: int) -> int:
    """Upper bound of what the kernel charges to the send buffer for a packet.

    The kernel adds its own header, rounds up to a power of two and adds more.
    """
    return (1 << (packet_bytes + 511).bit_length()) + 512


class JobPipe:
    def __init__(self, sent: deque[HeldLease]) -> None:
        """`sent`: the jobs that the child has not answered, oldest first. Only the pipe adds and removes jobs.

        Opens two sockets. Raises OSError if that fails.
        """
        self._sent = sent
        self.estimated_s = 0.0  # sum of the estimated run times of all jobs in `sent`
        self.charged_bytes = 0  # upper bound of what the packets of `sent` take of the send buffer
        self.is_cutting = False  # the child has set a filter that shortens the packets
        self.lacks_memory = False  # the last `take_back` may have left packets: the kernel had no memory for them
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The child could otherwise send a descriptor back. The master would have to close it, and that may block.
        self._sender.shutdown(socket.SHUT_RD)
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.room_bytes = self._sender.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    @property
    def child_fd(self) -> int:
        """The receiving end, which the child shares with the master."""
        return self._receiver.fileno()

    def send(self, held: HeldLease) -> None:
        """Send a job. The caller stays within MAX_SENT and `room_bytes`, so that this never blocks.

        A payload above INLINE_PAYLOAD_BYTES travels as a sealed memfd, and the master keeps no copy: it is in Redis,
        and comes back if the child does not receive it. Raises BrokenPipeError if the child has shut down the socket,
        PermissionError if it lets no descriptors through, BlockingIOError if packets that it has left fill it.
        """
        lease = held.lease
        counts = lease.failures, lease.deaths, lease.interruptions
        meta = (
            lease.jid, lease.klass, lease.queue, lease.priority, *counts, lease.tags, lease.lane, lease.persistent,
            lease.waited_s,
        )  # fmt: skip
        saved, replay = lease.raw_saved, lease.raw_replay
        rest = (
            lease.is_bytes, saved, lease.trace, held.replay_bytes, lease.at_most_once, lease.batch, lease.is_call,
            held.is_divided,
        )  # fmt: skip
        if held.payload_bytes + held.replay_bytes + (len(saved) if saved else 0) <= messages.INLINE_PAYLOAD_BYTES:
            packet = messages.pack_job(lease.token, meta, replay + lease.raw if replay else lease.raw, *rest)
            self._sender.send(packet, _DONT_WAIT)
            size_bytes = len(packet)
        else:
            packet = messages.pack_job(lease.token, meta, None, *rest)
            # A memfd counts as much as the largest inline payload: memfds under way count as open files.
            size_bytes = len(packet) + messages.INLINE_PAYLOAD_BYTES
            body = held.body or Memfd(kernel.sealed_memfd([part for part in (saved, replay, lease.raw) if part]))
            kernel.send(self._sender, packet, (body.fd,), _DONT_WAIT)
            held.body, lease.raw, lease.raw_replay = None, b"", None
        held.charged_bytes = charge(size_bytes)
        self._sent.append(held)
        self.estimated_s += held.estimate_s or 0.0
        self.charged_bytes += held.charged_bytes

    def pop_answered(self) -> HeldLease:
        """Remove the oldest job: the child has answered it."""
        held = self._sent.popleft()
        self.estimated_s -= held.estimate_s or 0.0
        self.charged_bytes -= held.charged_bytes
        return held

    def remove(self, held: HeldLease) -> None:
        """Remove a job, of whatever age: a shared child has answered it."""
        self._sent.remove(held)
        self.estimated_s -= held.estimate_s or 0.0
        self.charged_bytes -= held.charged_bytes

    def take_back(self) -> list[HeldLease]:
        """Remove the jobs that the child has not received, and return them, oldest first. The kernel decides which.

        Sets `is_cutting` if the packet of one was too short to be read, and `lacks_memory`.
        """
        self.lacks_memory = False
        cut = refused = 0
        bodies: dict[int, Memfd | None] = {}  # by token
        while True:
            try:
                packet, fds = kernel.receive(self._receiver, messages.MAX_PACKET_BYTES, 1, wait=False)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in kernel.OUT_OF_MEMORY:
                    raise
                refused += 1
                if refused < kernel.MEMORY_TRIES:  # of a dead child no later turn takes them
                    continue
                self.lacks_memory = True
                break
            if not packet:
                break
            body = Memfd(fds[0]) if fds else None
            try:
                bodies[messages.token_of(packet)] = body
            except ValueError:
                cut += 1
        if cut:
            self.is_cutting = True
            # The child reads packets in their order, so the youngest jobs are those that it has not received.
            others = [held.lease.token for held in self._sent if held.lease.token not in bodies]
            bodies.update(dict.fromkeys(others[-cut:]))
        if not bodies:
            return []
        taken = [held for held in self._sent if held.lease.token in bodies]
        for held in taken:
            held.body = bodies[held.lease.token]
            self.remove(held)
        return taken

    def end(self) -> None:
        """Send no more jobs. The child exits when it next waits for one."""
        self._sender.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        foreign_files.close_own_socket(self._sender)
        foreign_files.close_own_socket(self._receiver)
