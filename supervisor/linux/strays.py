"""Ends stray processes and removes what jobs have left. Runs in master, zygote and child. Owns no state.

Must not decide whose process it is. Orphans become children of the nearest subreaper. So a direct child that a process
did not start itself is a stray: a job left it, and that job's child is dead.
"""

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Set
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

_SEGMENTS: Final = "/proc/sysvipc/shm"
_CHUNK_BYTES: Final = 2**16
_IPC_RMID: Final = 0
_SHM_INFO: Final = 14

_libc = ctypes.CDLL(None, use_errno=True)


class _ShmInfo(ctypes.Structure):
    _fields_ = [("used_ids", ctypes.c_int), ("sizes", ctypes.c_ulong * 5)]


#: Time limit of one attempt. The kernel may not let go of a process, or a process forks faster than it is killed.
TRY_S: Final = 1.0
#: Pause in milliseconds after a round in which no process could be reaped. A debugger outside may hold them all.
_PAUSE_MS: Final = 1


def end_strays(spare: Set[int], by_at: float) -> tuple[int, set[int]]:
    """Kill and reap every direct child of the calling process but `spare`, and the orphans that come with it.

    Ends when none is left, or at `by_at`. Returns how many have ended, and the pids that have not: processes that the
    kernel does not let go of, that a debugger holds, or that fork faster than they are killed.
    """
    ended = 0
    while strangers := kernel.children_of_self() - spare:
        for pid in strangers:
            kill(pid, spare)
        reaped = sum(_reap(pid, by_at) for pid in strangers)
        ended += reaped
        if clock.monotonic() >= by_at:
            return ended, kernel.children_of_self() - spare
        if not reaped:
            select.poll().poll(_PAUSE_MS)
    return ended, set()


def end_strays_of(parent: int, spare: Set[int], by_at: float) -> bool:
    """Kill the strays below another process, which hangs and does not reap them. Returns whether all have ended."""
    while strangers := {pid for pid in kernel.children_of(parent) - spare if not kernel.is_zombie(pid)}:
        pidfds = [pidfd for pid in strangers if (pidfd := _kill_below(parent, pid, spare)) is not None]
        try:
            kernel.await_ends(pidfds, by_at - clock.monotonic())
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
        if clock.monotonic() >= by_at:
            return False
    return True


def kill(pid: int, spare: Set[int]) -> None:
    """Send SIGKILL to a direct child of this process, and to its group.

    In a job's process a thread of the job may reap the child just before. The kernel does not reuse its pid so soon.
    """
    _kill_group(pid, spare)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # a process of another user may be out of reach
        os.kill(pid, signal.SIGKILL)


def remove_segments(creator: int, since_unix: float) -> None:
    """Remove the System V shared memory segments that a dead process has made and that no process has attached.

    `creator`: its pid, not yet reaped, and so not reused since `since_unix`. Segments of its subprocesses stay, because
    they cannot be told from those of other programs. All stay where /proc does not list segments.
    """
    in_use = _ShmInfo()
    if _libc.shmctl(0, _SHM_INFO, ctypes.byref(in_use)) < 0 or not in_use.used_ids:
        return
    try:
        lines = _read(_SEGMENTS).splitlines()[1:]
    except OSError:  # systemd's ProcSubset=pid, or another mount without it
        return
    for line in lines:
        _key, shmid, _mode, _size, cpid, _lpid, attached, *_owners, _atime, _dtime, ctime = line.split()[:14]
        if int(cpid) == creator and int(attached) == 0 and int(ctime) >= int(since_unix):
            _libc.shmctl(int(shmid), _IPC_RMID, None)


def _read(path: str) -> bytes:
    """Return the content of a file. Python's own file objects touch 36 pages more, and each fork copies those."""
    chunks = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, _CHUNK_BYTES):
            chunks.append(chunk)
    finally:
        os.close(fd)
    return b"".join(chunks)


def _kill_group(pid: int, spare: Set[int]) -> None:
    """Kill its group as one, so that no member escapes by forking. Spares our own groups."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        # 0: the leader is outside of our PID namespace. For 1, killpg would signal every process.
        if group > 1 and group != os.getpgrp() and group not in spare:
            os.killpg(group, signal.SIGKILL)


def _kill_below(parent: int, pid: int, spare: Set[int]) -> int | None:
    """Kill a process that was just below `parent`. Returns its pidfd, which the caller closes."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if pid in kernel.children_of(parent):  # unchanged, so the pidfd is not that of a successor with the same pid
        _kill_group(pid, spare)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd


def _reap(pid: int, by_at: float) -> bool:
    """Wait for a killed process. False: the kernel does not let go of it in time, or its tracer holds it.

    In a job's process the kernel reaps it where the job ignores SIGCHLD, or a thread of the job does.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not kernel.await_ends([pidfd], by_at - clock.monotonic()):
            return False
        # An ended process that is traced has a ready pidfd, and only its tracer can wait for it. A tracer below it is a
        # direct child by now, and is killed in the next round.
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
    finally:
        os.close(pidfd)
