"""Receives many packets of a socket by one system call, recvmmsg(2). Runs in the master.

Outcomes come in bursts. One call for each would take twice the kernel's own time for it.
"""

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Iterator
from functools import cache
from struct import Struct, calcsize, unpack_from
from typing import Final

from supervisor.linux import foreign_files, kernel
from supervisor.messages import MAX_PACKET_BYTES

#: Packets per call.
_MOST: Final = 64
#: Pages behind a longer packet are given back to the kernel, because such packets are rare.
_USUAL_BYTES: Final = 4096
_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_CUT: Final = int(socket.MSG_TRUNC)
#: The packet was cut, or the kernel has dropped descriptors of it.
_LACKING: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
#: Room for as many descriptors as a packet can have. The kernel would close further ones in this process, and block it.
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(4 * kernel.MOST_RIGHTS)

_IOVEC: Final = Struct("@PN")
#: struct mmsghdr: name, its length; iovecs, their count; control data, its length; flags; the length of the packet.
_HEADER: Final = Struct("@PIPNPNi0PI0P")
#: The fields of a header that a call writes: the length of the control data, the flags, the length of the packet.
_GOT: Final = Struct(f"@{calcsize('@PIPNP')}xNi0PI0P")
#: struct cmsghdr: its length, with the descriptors behind it; level; type.
_RIGHTS: Final = Struct("@Nii")

_NONE: Final[tuple[int, ...]] = ()

#: In place of a descriptor: the packet came without one.
NO_FD: Final = -1
#: In place of a descriptor: the kernel has dropped it, because the process or the system may open no more files.
LOST_FD: Final = -2

_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


def receive(sock: socket.socket, most: int, likely: int = _MOST) -> Iterator[tuple[bytes, int]]:
    """Yield the packets that are there now, `most` or a few more, each with its descriptor, NO_FD or LOST_FD.

    An empty packet means that the other end is gone. `likely`: the number of packets to expect. Descriptors are closed
    on exec. Never blocks. Raises OSError (EMSGSIZE) for a packet that is longer than any of ours, and for one with
    several descriptors. Packets that the caller does not take are lost, and their descriptors are closed.
    """
    # The kernel fills all room with empty packets once the other end is gone, so ask for few.
    room, taken, asked = _room(), 0, min(likely + 1, _MOST)
    while taken < most:
        count = room.fill(sock.fileno(), asked)
        yield from room.take(count)
        if count < asked:
            return
        taken, asked = taken + count, _MOST


class _Room:
    """The memory that one call reads into. Allocated once."""

    def __init__(self) -> None:
        # Pages are allocated only as far as packets fill them.
        self._packets = mmap.mmap(-1, _MOST * MAX_PACKET_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._headers = bytearray(_MOST * _HEADER.size)
        self._rights = bytearray(_MOST * _RIGHTS_BYTES)
        self._iovecs = bytearray(_MOST * _IOVEC.size)
        packets_at, rights_at, iovecs_at = _address(self._packets), _address(self._rights), _address(self._iovecs)
        for i in range(_MOST):
            iovec_at = i * _IOVEC.size
            _IOVEC.pack_into(self._iovecs, iovec_at, packets_at + i * MAX_PACKET_BYTES, MAX_PACKET_BYTES)
            control = rights_at + i * _RIGHTS_BYTES, _RIGHTS_BYTES
            _HEADER.pack_into(self._headers, i * _HEADER.size, 0, 0, iovecs_at + iovec_at, 1, *control, 0, 0)
        self._headers_at = _address(self._headers)
        self._unused = bytes(self._headers)  # the kernel changes the headers, so each call starts from a copy

    def fill(self, fd: int, most: int) -> int:
        """Receive up to `most` packets. Return their number."""
        refused = 0
        while True:
            self._headers[: most * _HEADER.size] = self._unused[: most * _HEADER.size]
            count: int = _recvmmsg(fd, self._headers_at, most, _FLAGS, None)
            if count >= 0:
                return count
            number = ctypes.get_errno()
            if number == errno.EAGAIN:
                return 0
            if number in kernel.OUT_OF_MEMORY and refused < kernel.MEMORY_TRIES:
                refused += 1  # no later turn reads the packets of a dead child
            # ECONNRESET comes once, if the other end is gone and has left packets unread. Its own packets follow.
            elif number not in (errno.ECONNRESET, errno.EINTR):
                raise OSError(number, os.strerror(number))

    def take(self, count: int) -> Iterator[tuple[bytes, int]]:
        """Yield the packets of the last call. On an early end close the descriptors of the rest."""
        found = _GOT.iter_unpack(memoryview(self._headers)[: count * _HEADER.size])
        start, is_large = 0, False
        try:
            for rights_bytes, flags, length in found:
                fds = self._descriptors(start) if rights_bytes else _NONE
                is_large = is_large or length > _USUAL_BYTES
                fd = fds[0] if fds else NO_FD
                if flags & _LACKING or len(fds) > 1:
                    foreign_files.close(fds)
                    if flags & _CUT or len(fds) > 1:
                        raise OSError(errno.EMSGSIZE, f"packet of {length} bytes with {len(fds)} descriptors")
                    fd = LOST_FD
                yield self._packets[start : start + length], fd
                start += MAX_PACKET_BYTES
        finally:
            for rights_bytes, _flags, length in found:
                start += MAX_PACKET_BYTES
                is_large = is_large or length > _USUAL_BYTES
                if rights_bytes:
                    foreign_files.close(self._descriptors(start))
            if is_large:
                self._packets.madvise(mmap.MADV_DONTNEED)

    def _descriptors(self, start: int) -> tuple[int, ...]:
        """Return the descriptors of the packet that starts at this offset."""
        rights_at = start // MAX_PACKET_BYTES * _RIGHTS_BYTES
        length, level, kind = _RIGHTS.unpack_from(self._rights, rights_at)
        if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return _NONE
        return unpack_from(f"={(length - _RIGHTS.size) // 4}i", self._rights, rights_at + _RIGHTS.size)


@cache
def _room() -> _Room:
    return _Room()


def _address(room: "mmap.mmap | bytearray") -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(room))
