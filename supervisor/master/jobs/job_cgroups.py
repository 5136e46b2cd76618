"""The kernel's wall around jobs with a memory limit: a cgroup for each child. Runs in master. Owns the tree it makes.

A backstop behind the master's looks (`memory.Meter`), never instead of them: it also stops what grows between two looks
and what they cannot see (files in tmpfs, the kernel's own memory for a job). It stands a little above the limit, and
higher by the zygote's size, since pages that a child overwrites are charged to it though they are not its growth.

Made only where nobody can mind: below a cgroup that is not the root and in which no process lives but ours. In v2 that
is what systemd's `Delegate=yes` or a container with a writable hierarchy gives. In v1 root may write everywhere, so the
cgroup must have a memory limit as well: somebody has made it for us. Mostly it is not so (Docker and Kubernetes mount
the hierarchy read-only), and that is no fault.
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

#: Where the master and all without a cell live in v2: processes and limited cgroups cannot be side by side in one.
LEAF: Final = "leasehold-master"
_CELL: Final = "leasehold-cell-"
_OURS: Final = "leasehold-"
#: A cgroup is empty a moment after its last process has ended.
_REMOVE_WITHIN_S: Final = 1.0
_REMOVE_EVERY_MS: Final = 5


class JobCgroups:
    """A cgroup for each child number, made when it is first needed. `make` says whether there can be any."""

    def __init__(self, directory: Path, unified: bool) -> None:
        self._directory = directory
        self._unified = unified
        self._job_cgroups: dict[int, _JobCgroup] = {}
        # The kernel takes 15 ms to move a process (it waits for all CPUs): no loop may wait for that.
        self._mover = ThreadPoolExecutor(1, "cells")

    @classmethod
    def make(cls, proc: Path = cgroups.PROC, mounted: Path = cgroups.CGROUPS) -> "tuple[JobCgroups | None, str]":
        """The cells below this process's own cgroup, or None; and where, or why not, in words. Never raises.

        To be called before any other process is started, from the process that all others are to be below. In v2 it
        moves this process (and those below it) into a cgroup of its own.
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
        """Put a child into the cell of its number, with a wall for `limit_bytes` (0: none). Does not block.

        None: it is there already, and nothing changes, or it needs none. Else whether it is there, once that is known;
        where it is not (the child has gone, the kernel refuses), the looks are alone.
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
        return self._mover.submit(cell.admit, pid, wall_bytes)

    def oom_kills(self, number: int) -> int:
        """How many processes the kernel has killed at the wall of that cell since its child was put there."""
        cell = self._job_cgroups.get(number)
        return cell.oom_kills() if cell is not None else 0

    def close(self) -> list[Path]:
        """Remove all cells, and move this process back. Blocks for at most 1 s. Answers what could not be removed.

        All children must have been ended before.
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
    """The cgroup for the children of one number. One after the other lives in it."""

    def __init__(self, directory: Path, unified: bool) -> None:
        self.directory = directory
        # pid and limit of the last wish: the wall does not follow every page that the zygote's part shrinks by
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
        except OSError:  # ESRCH: it has ended; EBUSY: it has more already (v1); EACCES, ENOSPC: we may not (any more)
            return False

    def _move_in(self, pid: int) -> bool:
        """Cgroups take numbers alone. The child may have ended while this waited, and its number be a stranger's."""
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
        with contextlib.suppress(FileExistsError):  # of an earlier master, and nobody was in it
            _mkdir(self.directory)
        self._made = True
        # Without these it is a wall all the same: the kernel may lack them, or have no swap to account for.
        with contextlib.suppress(OSError):
            if self._unified:
                _write(self.directory / "memory.swap.max", "0")
                _write(self.directory / "memory.oom.group", "1")  # no half of a job goes on without the other

    def _limit(self, wall_bytes: int) -> None:
        if self._unified:
            _write(self.directory / "memory.max", str(wall_bytes or "max"))
            return
        limit, with_swap = self.directory / "memory.limit_in_bytes", self.directory / "memory.memsw.limit_in_bytes"
        # That with swap may never be the smaller one, so first it goes out of the way; it need not be there at all.
        with contextlib.suppress(OSError):
            _write(with_swap, "-1")
        _write(limit, str(wall_bytes or -1))
        with contextlib.suppress(OSError):
            _write(with_swap, str(wall_bytes or -1))


def _why_not(directory: Path, unified: bool) -> str | None:
    """Why this cgroup is not one to make others below; None: it is."""
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
    """Removes what an earlier master may have left. Why there cannot be cells: others have made cgroups there."""
    for below in sorted(each for each in directory.iterdir() if each.is_dir()):
        if not below.name.startswith(_OURS):
            return f"others have made cgroups below it ({below.name})"
        if not _remove(below, 0.0):
            return f"{below.name} is still in use"
    return None


def _move_into_leaf(directory: Path) -> str | None:
    """Clears a cgroup (v2) of processes, and lets those below it limit memory. Why not; then all is as before."""
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
    with contextlib.suppress(OSError):  # it had not come so far, or somebody has made cgroups there meanwhile
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
    """Whether it is this process or one below it. 0 is one of another PID namespace."""
    while pid not in (0, 1, os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended, and lives nowhere
            return True
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return pid == os.getpid()


def _words(error: OSError) -> str:
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"


def _mkdir(directory: Path) -> None:
    directory.mkdir()


def _write(file: Path, text: str) -> None:
    """One write, as the kernel wants it. Makes no file."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _remove(directory: Path, deadline_at: float) -> bool:
    """Remove a cgroup, as soon as nobody is in it any more; whether it is gone."""
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # EBUSY: somebody is in it; else it stays for ever
            if clock.monotonic() >= deadline_at:
                return False
            select.poll().poll(_REMOVE_EVERY_MS)
        else:
            return True
