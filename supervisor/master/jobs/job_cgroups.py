"""Has the kernel limit the memory of jobs, by a cgroup for each child with a memory limit. Runs in the master.

`memory.Meter` measures jobs at times, and the cgroup stands behind it. It also stops memory that grows between two
measurements, and memory that no measurement sees: files in tmpfs, and the kernel's own memory for a job. Its limit (the
wall) is a little above the job's. It is also higher by the zygote's size, because the kernel charges pages that a child
overwrites to the child, although they are not its growth.

Cgroups are made only where they harm no other process: below a cgroup that is not the root, and that only processes of
this supervisor live in. In v2 systemd's `Delegate=yes` and containers with a writable hierarchy give such a cgroup. In
v1 root may write everywhere, so the cgroup must also have a memory limit, which shows that it was made for the
supervisor. Docker and Kubernetes mount the hierarchy read-only, so most supervisors have no cgroups for jobs.
"""

import contextlib
import errno
import os
import select
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.linux import cgroups

#: In v2 a cgroup has either processes or limited cgroups below it. So the master, and processes without a cell, live in
#: this one.
LEAF: Final = "leasehold-master"
_CELL: Final = "leasehold-cell-"
_OURS: Final = "leasehold-"
#: A cgroup becomes empty a moment after its last process has ended.
_REMOVE_WITHIN_S: Final = 1.0
_REMOVE_EVERY_MS: Final = 5


class JobCgroups:
    """Has a cgroup (a cell) for each child number, made when it is first needed. Use `make`."""

    def __init__(self, directory: Path, unified: bool) -> None:
        self._directory = directory
        self._unified = unified
        self._job_cgroups: dict[int, _JobCgroup] = {}
        # A thread moves processes, because the kernel waits for all CPUs, which takes 15 ms.
        self._mover = ThreadPoolExecutor(1, "cells")

    @classmethod
    def make(cls, proc: Path = cgroups.PROC, mounted: Path = cgroups.CGROUPS) -> "tuple[JobCgroups | None, str]":
        """Return the cells below this process's own cgroup, or None, and a phrase that says where, or why not.

        Never raises. Call this in the master before it starts any process. In v2 it moves this process, and those below
        it, into a cgroup of their own.
        """
        found = cgroups.memory_group(proc, mounted)
        if found is None:
            return None, "this process has no cgroup with memory control"
        directory, unified = found
        try:
            why_not = _why_not(directory, unified)
            if why_not is None and unified:
                why_not = _move_into_leaf(directory)
        except OSError as error:
            why_not = _words(error)
        if why_not is not None:
            return None, f"{directory}: {why_not}"
        return cls(directory, unified), f"below {directory}"

    def admit(self, number: int, pid: int, limit_bytes: int, inherited_bytes: int = 0) -> "Future[bool] | None":
        """Move a child into the cell of its number, with a wall for `limit_bytes` (0: no wall). Does not block.

        Returns None if no move is needed, or if none can be asked for now: then the next call tries again. Otherwise
        the result says whether the child is in its cell. If it is not, because it has ended or the kernel refuses, only
        `memory.Meter` keeps the limit.
        """
        cell = self._job_cgroups.get(number)
        if cell is None:
            if not limit_bytes:
                return None
            cell = self._job_cgroups[number] = _JobCgroup(self._directory / f"{_CELL}{number}", self._unified)
        wall_bytes = limit_bytes + limit_bytes // 8 + inherited_bytes if limit_bytes else 0
        if cell.asked == (pid, limit_bytes) or (cell.asked[0] != pid and not limit_bytes):
            return None
        cell.asked = (pid, limit_bytes)
        try:
            return self._mover.submit(cell.admit, pid, wall_bytes)
        except RuntimeError:  # its thread cannot start: the limit of processes, or memory, is used up
            cell.asked = (0, 0)
            self._mover = ThreadPoolExecutor(1, "cells")  # the old one keeps the move, which may be outdated by then
            return None

    def oom_kills(self, number: int) -> int:
        """Return how many processes the kernel has killed at the cell's wall since its present child moved in."""
        cell = self._job_cgroups.get(number)
        return cell.oom_kills() if cell is not None else 0

    def close(self) -> list[Path]:
        """Remove all cells, and move this process back. Blocks for at most 1 s. Returns cells that are still there.

        All children must have ended before.
        """
        self._mover.shutdown()
        deadline_at = clock.monotonic() + _REMOVE_WITHIN_S
        left = [each.directory for each in self._job_cgroups.values() if not _remove(each.directory, deadline_at)]
        self._job_cgroups.clear()
        if self._unified and not left:
            _leave_leaf(self._directory)
            if not _remove(self._directory / LEAF, deadline_at):
                left.append(self._directory / LEAF)
        return left


class _JobCgroup:
    """The cgroup for the children of one number, which live in it one after the other."""

    def __init__(self, directory: Path, unified: bool) -> None:
        self.directory = directory
        # pid and limit of the last request. The wall does not follow small changes of the zygote's part.
        self.asked = (0, 0)
        self._unified = unified
        self._made = False
        self._pid = 0
        self._kills_before = 0

    def admit(self, pid: int, wall_bytes: int) -> bool:
        try:
            if not self._made:
                self._make()
            self._limit(wall_bytes)
            return pid == self._pid or self._move_in(pid)
        except OSError:  # ESRCH: it has ended; EBUSY: it has more already (v1); EACCES, ENOSPC: not permitted
            return False

    def _move_in(self, pid: int) -> bool:
        """Move the child, and move a stranger back: after the child's end another process may have its pid."""
        if not _is_ours(pid):
            return False
        self._kills_before = cgroups.oom_kills(self.directory) or 0
        _write(self.directory / "cgroup.procs", str(pid))
        if not _is_ours(pid):
            above = self.directory.parent
            _move([pid], above / LEAF if self._unified else above)
            return False
        self._pid = pid
        return True

    def oom_kills(self) -> int:
        return (cgroups.oom_kills(self.directory) or 0) - self._kills_before if self._made else 0

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):  # an earlier master has left it, empty
            _mkdir(self.directory)
        self._made = True
        # The wall holds without these files. Some kernels lack them, or do not account for swap.
        with contextlib.suppress(OSError):
            if self._unified:
                _write(self.directory / "memory.swap.max", "0")
                _write(self.directory / "memory.oom.group", "1")  # a job ends with all its processes

    def _limit(self, wall_bytes: int) -> None:
        if self._unified:
            _write(self.directory / "memory.max", str(wall_bytes or "max"))
            return
        limit, with_swap = self.directory / "memory.limit_in_bytes", self.directory / "memory.memsw.limit_in_bytes"
        # The limit with swap must not be the smaller one, so it is removed first. Some kernels have none.
        with contextlib.suppress(OSError):
            _write(with_swap, "-1")
        _write(limit, str(wall_bytes or -1))
        with contextlib.suppress(OSError):
            _write(with_swap, str(wall_bytes or -1))


def _why_not(directory: Path, unified: bool) -> str | None:
    """Return why no cells may be made below this cgroup, or None if they may."""
    if unified:
        if not (directory / "memory.max").exists():
            return "is the root of all cgroups" if "memory" in _controllers(directory) else "has no memory controller"
        if "memory" not in _controllers(directory):
            return "may not give memory control to cgroups below it"
    elif not cgroups.is_limited_v1(directory):
        return "has no memory limit, so it is not ours alone"
    if not all(os.access(each, os.W_OK) for each in (directory, directory / "cgroup.procs")):
        return "cannot be written"
    living = _processes(directory)
    if os.getpid() not in living:
        return "is not the one of this process"
    if strangers := [pid for pid in living if not _is_ours(pid)]:
        return f"other processes live in it ({', '.join(map(str, strangers[:5]))})"
    return _clear(directory)


def _clear(directory: Path) -> str | None:
    """Remove cells of an earlier master. Returns why no cells can be made beside the cgroups that remain, or None."""
    for below in sorted(each for each in directory.iterdir() if each.is_dir()):
        if not below.name.startswith(_OURS):
            return f"others have made cgroups below it ({below.name})"
        if not _remove(below, 0.0):
            return f"{below.name} is still in use"
    return None


def _move_into_leaf(directory: Path) -> str | None:
    """Move all processes of a v2 cgroup into a leaf, so that cgroups below it can limit memory.

    Returns why that fails, or None. After a failure all is as before.
    """
    leaf = directory / LEAF
    _mkdir(leaf)
    try:
        _move(_processes(directory), leaf)
        _write(directory / "cgroup.subtree_control", "+memory")
    except OSError as error:  # EBUSY: a process has come meanwhile; EACCES, EPERM: not delegated
        _leave_leaf(directory)
        _remove(leaf, 0.0)
        return _words(error)
    return None


def _leave_leaf(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it was not enabled yet, or another process has made cgroups there
        _write(directory / "cgroup.subtree_control", "-memory")
    with contextlib.suppress(OSError):
        _move(_processes(directory / LEAF), directory)


def _move(pids: Iterable[int], directory: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            _write(directory / "cgroup.procs", str(pid))


def _processes(directory: Path) -> list[int]:
    return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]


def _controllers(directory: Path) -> list[str]:
    return (directory / "cgroup.controllers").read_text().split()


def _is_ours(pid: int) -> bool:
    """Return whether this is the master's process or one below it. pid 0: a process of another PID namespace."""
    while pid not in (0, 1, os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended, and is no stranger
            return True
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return pid == os.getpid()


def _words(error: OSError) -> str:
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"


def _mkdir(directory: Path) -> None:
    directory.mkdir()


def _write(file: Path, text: str) -> None:
    """Write the text in one call, as the kernel demands. Never creates a file."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _remove(directory: Path, deadline_at: float) -> bool:
    """Remove a cgroup once it is empty, until the deadline (monotonic s). Returns whether it is gone."""
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # EBUSY: a process is in it; other errors stay
            if clock.monotonic() >= deadline_at:
                return False
            select.poll().poll(_REMOVE_EVERY_MS)
        else:
            return True
