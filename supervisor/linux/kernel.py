"""Linux calls that Python lacks. Runs in master, zygote and child. Owns the reserved signals, and decides nothing."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from supervisor import clock

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_quick = ctypes.PyDLL(None)  # keeps the GIL: only for calls that never wait

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_MADV_COLLAPSE: Final = 25
_SFD_NONBLOCK: Final = os.O_NONBLOCK
_SFD_CLOEXEC: Final = os.O_CLOEXEC
_SIGINFO_BYTES: Final = 128  # sizeof(struct signalfd_siginfo)
_FIONREAD: Final = 0x541B
_INT: Final = struct.Struct("=i")
_BLOCK_BYTES: Final = 512  # of st_blocks
_CHILDREN_BYTES: Final = 2**20  # the kernel fills a read with whole pids
_MOST_OOM_SCORE: Final = 1000
#: Plain ints: with `socket`'s flag enums each `|` and `&` costs as much as a short system call.
_AND_WAIT: Final = int(socket.MSG_CMSG_CLOEXEC)
_AT_ONCE: Final = _AND_WAIT | int(socket.MSG_DONTWAIT)
_CUT: Final = int(socket.MSG_TRUNC)
_CMSG_HEAD_BYTES: Final = socket.CMSG_LEN(0)
#: Errors of a call for which the kernel lacks memory. The same call may succeed soon.
OUT_OF_MEMORY: Final = frozenset({errno.ENOMEM, errno.ENOBUFS})
#: A call that no later turn repeats is tried this often while the kernel lacks memory.
MEMORY_TRIES: Final = 10
#: Descriptors of the sender, with each packet, if the receiving socket has SO_PASSPIDFD (Linux 6.5).
_SCM_PIDFD: Final = 4
_SEALED: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

#: Most descriptors in one packet (SCM_MAX_FD).
MOST_RIGHTS: Final = 253
#: Descriptors that stay free for our own packets when children have used up theirs. The kernel checks before it adds a
#: packet's descriptors, so children may exceed their limit by one packet.
_OWN_FILES: Final = 2 * MOST_RIGHTS

#: Buffer of `receive`: a new one for each packet would cost ten times the call.
_room = memoryview(bytearray())

#: Buffer of `unread_bytes`.
_number = bytearray(_INT.size)

#: Room for one frame per signal, each of the largest size known (AMX: 11 KiB). Pages are taken only when touched.
_signal_stack = mmap.mmap(-1, 1024 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

_no_signals = ctypes.create_string_buffer(128)  # sizeof(sigset_t)
_sigmask = _quick.pthread_sigmask  # bound here: the look-up in a fork costs more than the call
_SIG_SETMASK: Final = int(signal.SIG_SETMASK)

#: Reserved in every child: "read the notice on `talk`" and "write all Python stacks".
NOTICE_SIGNAL: Final = signal.SIGRTMIN + 5
STACKS_SIGNAL: Final = signal.SIGRTMIN + 6
#: Reserved in the master: interrupts a thread in a system call. Its handler ends with the zygote's exec.
INTERRUPT_SIGNAL: Final = signal.SIGRTMIN + 7

#: Every signal that has a meaning for the master, with SIGCHLD.
HANDLED_SIGNALS: Final = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGHUP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCONT,
        signal.SIGCHLD,
    }
)


class Received(NamedTuple):
    """One signal, read as a value."""

    signo: signal.Signals
    sender_pid: int  # 0: the kernel, or a sender outside our PID namespace
    sender_uid: int
    by_kernel: bool


def last_error(call: str = "") -> OSError:
    """Return the errno of the last ctypes call as an OSError, prefixed with the name of the call if given."""
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}" if call else os.strerror(number))


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise last_error(f"prctl({option})")


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call that libc may lack, by its number on this machine. Arguments: small integers or references.

    Returns the call's result. Raises OSError.
    """
    answer: int = _libc.syscall(number, *arguments)
    if answer < 0:
        raise last_error()
    return answer


def bound_capability(capability: int) -> None:
    """Drop a capability from the bounding set: no later exec gains it. Irreversible and inherited. Raises OSError if
    the capability is unknown or may not be dropped.
    """
    _prctl(_PR_CAPBSET_DROP, capability)


def set_parent_death_signal(signo: int) -> None:
    """Have the kernel send `signo` when the forking thread ends. 0 clears it. setuid and setgid clear it, too."""
    _prctl(_PR_SET_PDEATHSIG, signo)


def unblock_all_signals() -> None:
    """Unblock all signals in the calling thread. Python's call builds a set of enums, which is expensive in a fork."""
    if _sigmask(_SIG_SETMASK, _no_signals, None) != 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def become_subreaper() -> None:
    """Orphans below this process become its children instead of PID 1's."""
    _quick.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # cannot fail


def forbid_new_privileges() -> None:
    """No later exec gains privileges by setuid bits or file capabilities. Irreversible and inherited."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_dumping(forbidden: bool = True) -> None:
    """Allow only tracers to read this process's memory, environment and descriptors, and write no core of it.

    Forks inherit it. An exec or a change of uid undoes it. `forbidden=False` allows processes of the same user again.
    """
    _prctl(_PR_SET_DUMPABLE, 0 if forbidden else 1)


class _SignalStack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


def make_room_for_signals() -> None:
    """Give the calling thread, and its forks, an alternate signal stack with room for all signals at once.

    faulthandler's stack has room for five. The kernel pushes all pending signals before the first is handled, and ends
    the process with SIGSEGV if they do not fit.
    """
    start = ctypes.addressof(ctypes.c_char.from_buffer(_signal_stack))
    if _libc.sigaltstack(ctypes.byref(_SignalStack(start, 0, len(_signal_stack))), None) != 0:
        raise last_error()


class SignalFd:
    """Blocked signals as a readable descriptor. Non-blocking, closed on exec."""

    def __init__(self, signals: Iterable[int]) -> None:
        mask = ctypes.create_string_buffer(128)
        _libc.sigemptyset(mask)
        for signo in signals:
            _libc.sigaddset(mask, int(signo))
        self._fd: int = _libc.signalfd(-1, mask, _SFD_NONBLOCK | _SFD_CLOEXEC)
        if self._fd < 0:
            raise last_error("signalfd")

    def fileno(self) -> int:
        return self._fd

    def read(self) -> list[Received]:
        """Return the signals since the last call, oldest first. Never blocks."""
        try:
            raw = os.read(self._fd, _SIGINFO_BYTES * 16)
        except BlockingIOError:
            return []
        received = []
        for offset in range(0, len(raw), _SIGINFO_BYTES):
            signo, _errno, code, pid, uid = struct.unpack_from("=IiiII", raw, offset)
            received.append(Received(signal.Signals(signo), pid, uid, code > 0))
        return received

    def close(self) -> None:
        os.close(self._fd)


def collapse(start: int, size_bytes: int) -> bool:
    """Have the kernel move this range of our memory into huge pages now. Returns whether it did."""
    refused: int = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _MADV_COLLAPSE)
    return not refused


def is_resident(start: int, size_bytes: int, share: float) -> bool:
    """True if at least `share` of this range of our memory is resident."""
    pages = ctypes.create_string_buffer(size_bytes // mmap.PAGESIZE)
    if _libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), pages) != 0:
        return False  # ENOMEM: part of the range is no longer mapped
    there = sum(page & 1 for page in pages.raw)  # the other bits are reserved
    return there >= share * len(pages)


def program_of(process: int | str) -> str | None:
    """Return the name of the program that a process runs (a pid, or a path below /proc).

    None: it has ended, is hidden from us, or no descriptor is left.
    """
    try:
        with open(f"/proc/{process}/comm", "rb") as comm:
            return comm.read().decode(errors="replace").strip()
    except OSError:
        return None


def children_of(process: int | str) -> set[int]:
    """Return the pids of a process's direct children (a pid, or "self"), zombies included. Costs about 20 µs."""
    found: set[int] = set()
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found  # it has ended, and its children have another parent
    for task in tasks:
        try:
            fd = os.open(f"/proc/{process}/task/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended, and its children belong to another thread
        try:
            while chunk := os.read(fd, _CHILDREN_BYTES):
                found.update(map(int, chunk.split()))
        except ProcessLookupError:
            continue
        finally:
            os.close(fd)
    return found


def children_of_self() -> set[int]:
    return children_of("self")


def catches(pid: int, signo: int) -> bool:
    """True if the process handles the signal, or if that cannot be read. Costs about 30 µs."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = int(status.read().partition(b"\nSigCgt:")[2].split(None, 1)[0], 16)
    except (OSError, IndexError):  # gone, hidden from us, or no descriptor is left; IndexError: no such line
        return True
    return bool(caught >> (signo - 1) & 1)


def reap_one() -> int:
    """Reap one ended child and return its pid. 0: none has ended; -1: there is no child. Never waits.

    Takes half the time of os.waitpid, which raises where there is no child.
    """
    pid: int = _quick.waitpid(-1, None, os.WNOHANG)
    return pid


def is_zombie(pid: int) -> bool:
    """True if the process has ended, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # EMFILE: unknown for now
        return False


def raise_oom_score(points: int) -> None:
    """Have the kernel's OOM killer take this process and its forks before others. Needs no privilege.

    Has no effect where /proc cannot be written.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = min(_MOST_OOM_SCORE, int(file.read()) + points)
        file.seek(0)
        file.write(str(score))


def allow_open_files() -> int:
    """Raise our soft limit of open files to the hard one. Returns the children's limit.

    That is the old soft limit, or less: descriptors in flight count for all processes of a user together.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # fs.nr_open may be below the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(soft, hard - min(_OWN_FILES, hard // 4))


def most_open_files() -> int:
    """Return this process's limit of open files. No descriptor has a higher number."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def unread_bytes(fd: int) -> int:
    """Return how many bytes of the pipe `fd` are unread. Works on either end."""
    fcntl.ioctl(fd, _FIONREAD, _number)
    count: int = _INT.unpack(_number)[0]
    return count


def sealed_memfd(parts: Iterable[bytes]) -> int:
    """Return an anonymous file with `parts`, which cannot be changed any more. The caller closes it."""
    fd = os.memfd_create("leasehold-payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Memfd:
    """A descriptor that closes with the last reference to this object."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def read_memfd(fd: int) -> bytes:
    """Return the whole content of a memfd, and close it."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()


def read_sealed(fd: int, most_bytes: int) -> bytes:
    """Return the whole content of a memfd from an untrusted sender. The caller closes it.

    Raises ValueError if the read could block, if the content could still change, if it is too large, or if it has
    holes: holes cost their sender nothing, and the reader memory.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED != _SEALED:
            raise ValueError("a descriptor that is not sealed")
        found = os.fstat(fd)
        if found.st_size > most_bytes:
            raise ValueError(f"{found.st_size} bytes in a memfd, the limit is {most_bytes}")
        if found.st_blocks * _BLOCK_BYTES < found.st_size:
            raise ValueError(f"a memfd of {found.st_size} bytes with {found.st_blocks * _BLOCK_BYTES} in it")
        return os.pread(fd, found.st_size, 0)
    except OSError as error:  # EINVAL: this kind of file has no seals
        raise ValueError(f"a descriptor of something else than a memfd ({error})") from error


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def receive(
    sock: socket.SocketType,
    size: int,
    max_fds: int,
    wait: bool = True,
    discard: Callable[[Iterable[int]], object] = _close_all,
) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, closed on exec (`socket.recv_fds` loses that flag).

    Without `wait` it never blocks. An empty packet means that the other end is gone. Not safe for several threads.
    `discard` closes the descriptors of a packet that is too long; the kernel closes those beyond `max_fds`.
    """
    global _room
    if len(_room) != size:
        _room = memoryview(bytearray(size))
    try:
        got, ancillary, message_flags, _address = sock.recvmsg_into(
            (_room,), max_fds and _CMSG_HEAD_BYTES + max_fds * _INT.size, _AND_WAIT if wait else _AT_ONCE
        )
    except ConnectionResetError:
        # Reported once if the peer is gone without having read everything. The peer's own last packets follow.
        return receive(sock, size, max_fds, wait, discard)
    fds = _rights_in(ancillary) if ancillary else []
    if message_flags & _CUT:
        discard(fds)
        raise OSError(errno.EMSGSIZE, f"packet longer than {size} bytes")
    return _room[:got].tobytes(), fds


def comes_within(sock: socket.SocketType, timeout_s: float) -> bool:
    """True if a packet, or the end of the connection, comes within that time."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _rights_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that were sent. Close the sender's pidfd, which another holder of the socket asked for."""
    rights: list[int] = []
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET or kind not in (socket.SCM_RIGHTS, _SCM_PIDFD):
            continue
        fds = struct.unpack(f"={len(payload) // 4}i", payload[: len(payload) // 4 * 4])
        if kind == socket.SCM_RIGHTS:
            rights.extend(fds)
        else:
            _close_all(fd for fd in fds if fd >= 0)  # below 0: the error that kept the kernel from making one
    return rights


def send(sock: socket.SocketType, data: bytes, fds: Iterable[int] = (), flags: int = 0) -> None:
    """Send one packet with descriptors."""
    rights = struct.pack(f"={len(packed)}i", *packed) if (packed := tuple(fds)) else b""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
    sock.sendmsg([data], ancillary, flags)


def await_ends(pidfds: Iterable[int], timeout_s: float) -> bool:
    """Wait at most `timeout_s` for all these processes to end. Returns whether they have. Polls at least once."""
    waiting = set(pidfds)
    deadline_at = clock.monotonic() + timeout_s
    poll = select.poll()
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    while waiting:
        left_s = deadline_at - clock.monotonic()
        for pidfd, _events in poll.poll(max(0.0, left_s) * 1000):
            poll.unregister(pidfd)
            waiting.discard(pidfd)
        if left_s <= 0:
            break
    return not waiting
