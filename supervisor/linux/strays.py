"""Ending and removing what a job has left. Runs in master, zygote and child. Owns nothing; must not decide whose it is.

Orphans come to the nearest subreaper: whatever is directly below a process without being one of its own was left by a
job whose child is dead.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Set
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

_SEGMENTS: Final = Path("/proc/sysvipc/shm")
_IPC_RMID: Final = 0
_SHM_INFO: Final = 14

_libc = ctypes.CDLL(None, use_errno=True)


class _ShmInfo(ctypes.Structure):
    _fields_ = [("used_ids", ctypes.c_int), ("sizes", ctypes.c_ulong * 5)]


#: How long it is tried at the most: the kernel may not let go of one, or one forks faster than it is killed.
TRY_S: Final = 1.0


def end_strangers(spare: Set[int], by_at: float) -> tuple[int, set[int]]:
    """Kill and reap every direct child of the calling process but `spare`, and what comes to it by that, until none is
    left or it is `by_at`. Answers how many have ended, and which have not: what the kernel does not let go of, and what
    forks faster than it is killed.
    """
    ended = 0
    stuck: set[int] = set()
    while strangers := kernel.children_of_self() - spare - stuck:
        for pid in strangers:
            kill(pid, spare)
        for pid in strangers:
            if _reap(pid, by_at):
                ended += 1
            else:
                stuck.add(pid)
        if clock.monotonic() >= by_at:
            return ended, kernel.children_of_self() - spare
    return ended, stuck


def end_strangers_of(parent: int, spare: Set[int], by_at: float) -> bool:
    """The same below a process that does not do it itself, and does not reap: it hangs. Whether all have ended."""
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
    """SIGKILL to a process that nobody reaps meanwhile, and to its group."""
    _kill_group(pid, spare)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have another user, whom we may not touch
        os.kill(pid, signal.SIGKILL)


def remove_segments(creator: int, since_unix: float) -> None:
    """Remove the System V shared memory that a dead process has made, and that nobody has attached.

    `creator`: its pid, which is not reaped yet, and so nobody else's since `since_unix`. What its subprocesses have
    made is not told from that of other programs. Where /proc does not list the segments they all stay.
    """
    in_use = _ShmInfo()
    if _libc.shmctl(0, _SHM_INFO, ctypes.byref(in_use)) < 0 or not in_use.used_ids:
        return
    try:
        lines = _SEGMENTS.read_text().splitlines()[1:]
    except OSError:  # systemd's ProcSubset=pid, or another mount without it
        return
    for line in lines:
        _key, shmid, _mode, _size, cpid, _lpid, attached, *_owners, _atime, _dtime, ctime = line.split()[:14]
        if int(cpid) == creator and int(attached) == 0 and int(ctime) >= int(since_unix):
            _libc.shmctl(int(shmid), _IPC_RMID, None)


def _kill_group(pid: int, spare: Set[int]) -> None:
    """All of its group as one, so that none of it gets away by forking. Groups of ours are spared."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        # 0: its leader is outside of our PID namespace. To 1, killpg would mean every process there is.
        if group > 1 and group != os.getpgrp() and group not in spare:
            os.killpg(group, signal.SIGKILL)


def _kill_below(parent: int, pid: int, spare: Set[int]) -> int | None:
    """Kill one that was below `parent` a moment ago. Answers its pidfd, which the caller closes."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if pid in kernel.children_of(parent):  # still: so the pidfd is its own, and not a successor's of the same pid
        _kill_group(pid, spare)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd


def _reap(pid: int, by_at: float) -> bool:
    """Wait for a killed process; False where the kernel does not let go of it in time."""
    pidfd = os.pidfd_open(pid)
    try:
        if not kernel.await_ends([pidfd], by_at - clock.monotonic()):
            return False
        os.waitpid(pid, 0)
        return True
    finally:
        os.close(pidfd)
