"""Many packets of a socket by one system call. Runs in master. Owns the room that they are read into.

Children's answers come in bursts, and a call for each one would cost twice what the kernel needs for it.
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

from supervisor.linux import foreign_files
from supervisor.linux.kernel import MOST_RIGHTS
from supervisor.messages import MAX_PACKET_BYTES

#: By one call.
_MOST: Final = 64
#: The room of a packet that is longer is given back to the kernel: the next one will hardly be.
_USUAL_BYTES: Final = 4096
_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_CUT: Final = int(socket.MSG_TRUNC)
#: Room for as many descriptors as a packet can have: the kernel would close the rest in our context, and we would wait.
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(4 * MOST_RIGHTS)

_IOVEC: Final = Struct("@PN")
#: struct mmsghdr: name, its length; iovecs, their count; control data, its length; flags; the length of the packet.
_HEADER: Final = Struct("@PIPNPNi0PI0P")
#: Of that, what a call leaves there: the length of the control data, the flags, the length of the packet.
_GOT: Final = Struct(f"@{calcsize('@PIPNP')}xNi0PI0P")
#: struct cmsghdr: its length, with the descriptors behind it; level; type.
_RIGHTS: Final = Struct("@Nii")

_NONE: Final[tuple[int, ...]] = ()

_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


def receive(sock: socket.socket, most: int, likely: int = _MOST) -> Iterator[tuple[bytes, int]]:
    """The packets that are there now, `most` or a few more, each with the descriptor that came with it, closed on exec,
    or -1. An empty packet means that the other end is gone. No more than `likely` are expected.

    Never blocks. Raises OSError (EMSGSIZE) for a packet that is longer than any of ours, and for one with several
    descriptors. Packets that the caller does not take are lost, and their descriptors are closed.
    """
    # Of room for more, all would be filled with the end, which is told again and again.
    room, taken, asked = _room(), 0, min(likely + 1, _MOST)
    while taken < most:
        count = room.fill(sock.fileno(), asked)
        yield from room.take(count)
        if count < asked:
            return
        taken, asked = taken + count, _MOST


class _Room:
    """Where one call puts what it reads."""

    def __init__(self) -> None:
        # Touched, and so taken, only as far as packets fill it.
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
        self._unused = bytes(self._headers)  # the kernel writes into them

    def fill(self, fd: int, most: int) -> int:
        """Read what is there. Answers how many packets."""
        while True:
            self._headers[: most * _HEADER.size] = self._unused[: most * _HEADER.size]
            count: int = _recvmmsg(fd, self._headers_at, most, _FLAGS, None)
            if count >= 0:
                return count
            number = ctypes.get_errno()
            if number == errno.EAGAIN:
                return 0
            # ECONNRESET is told once: it is gone without having read all that we said. Its own last words come now.
            if number not in (errno.ECONNRESET, errno.EINTR):
                raise OSError(number, os.strerror(number))

    def take(self, count: int) -> Iterator[tuple[bytes, int]]:
        found = _GOT.iter_unpack(memoryview(self._headers)[: count * _HEADER.size])
        start, is_large = 0, False
        try:
            for rights_bytes, flags, length in found:
                fds = self._descriptors(start) if rights_bytes else _NONE
                is_large = is_large or length > _USUAL_BYTES
                if flags & _CUT or len(fds) > 1:
                    foreign_files.close(fds)
                    raise OSError(errno.EMSGSIZE, f"packet of {length} bytes with {len(fds)} descriptors")
                yield self._packets[start : start + length], fds[0] if fds else -1
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
        """Return the descriptors that came with the packet that starts there."""
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
