"""Measures the private memory of a child's process tree. Runs in the master. Kills nothing.

Counts growth since the fork, by `RssAnon + VmSwap + RssShmem` of `/proc/<pid>/status`. That file can be read for any
process of ours. `smaps` cannot be read for a process that is not dumpable, and costs forty times as much. Pages that a
process shares with the one it was forked from count once, and those of the zygote never.

Limits of the method: a page that a child only overwrites was counted in the zygote and stays so. Shared memory counts
by the process that uses most of it, and not at all while no process maps it.
"""

import os
from typing import Final, NamedTuple

#: No process touches new memory faster than this without huge pages, so no excess stays unseen for long.
_GROWTH_BYTES_PER_S: Final = 2 * 10**9
#: The shortest time between two samples of a child. A process of 1 GB/s gets 5 MB in it.
_SHORTEST_S: Final = 0.005
#: For each process of a large tree, ten times the cost of a sample, so samples take a tenth of the master at most.
_SHORTEST_EACH_S: Final = 0.0003
#: The longest time under a limit, and from half the limit on.
_LIMITED_S: Final = 0.1
_CLOSE_S: Final = 0.02
#: Without a limit only the peak needs samples: soon in a short job, seldom in a long one.
_FIRST_S: Final = 0.25
_SELDOM_S: Final = 2.0

_READ_BYTES: Final = 8192  # a status has 1.5 kB, unless the process is in very many groups
#: With more threads, the children of all threads are listed in every n-th sample only: each thread costs 6 µs.
_MANY_THREADS: Final = 8
_MOST_LOOKS: Final = 8

# Indexes of fields in /proc/<pid>/stat, counted from the state, which follows the name in parentheses.
_PARENT: Final = 1
_FLAGS: Final = 6
_STARTED: Final = 19
_STACK: Final = 25
#: PF_FORKNOEXEC: the process was forked and has not called exec since.
_FORKED: Final = 0x40
#: The stack address of a process that the kernel hides from us.
_UNREADABLE: Final = b"0"


class Usage(NamedTuple):
    """The memory of one process that no file backs, with inherited pages."""

    anon_bytes: int  # including swapped out pages
    shared_bytes: int  # mapped shared memory: anonymous, memfd or tmpfs
    threads: int

    @property
    def total_bytes(self) -> int:
        return self.anon_bytes + self.shared_bytes


NOTHING: Final = Usage(0, 0, 0)


def of(pid: int) -> Usage | None:
    """Return the memory of a process. None: it has ended, is a zombie, or /proc cannot be read now."""
    try:
        return _usage(pid)
    except _Unseen:
        return None


def _usage(pid: int) -> Usage | None:
    status = _read(f"/proc/{pid}/status")
    anon_at = status.find(b"\nRssAnon:")  # the name comes first, but cannot contain a newline
    if anon_at < 0:  # the main thread is a zombie, but other threads may run on
        for task in _list(f"/proc/{pid}/task"):
            status = _read(f"/proc/{pid}/task/{task}/status")
            if (anon_at := status.find(b"\nRssAnon:")) >= 0:
                break
        else:
            return None
    shared_at = status.index(b"\nRssShmem:", anon_at)
    swap_at = status.index(b"\nVmSwap:", shared_at)
    threads_at = status.index(b"\nThreads:", swap_at)
    return Usage(
        (_kb(status, anon_at + 9) + _kb(status, swap_at + 8)) << 10,
        _kb(status, shared_at + 10) << 10,
        int(status[threads_at + 9 : status.index(b"\n", threads_at + 9)]),
    )


def first_sample_s(limit_bytes: int) -> float:
    """Return the time of the first sample after a job's start. `limit_bytes` 0: the job has no limit."""
    return min(_LIMITED_S, max(_SHORTEST_S, limit_bytes / _GROWTH_BYTES_PER_S)) if limit_bytes else _LIMITED_S


class _ProcessIdentity(NamedTuple):
    """The kernel's data about one process. All fields are empty if the process does not exist."""

    parent: int
    started: bytes
    stack: bytes  # its start address, or _UNREADABLE
    forked: bool  # and has not called exec since


class _Known:
    """A process below a child, as of the last sample."""

    __slots__ = ("forked", "inherited_bytes", "stack", "started")

    def __init__(self, started: bytes, stack: bytes, forked: bool, inherited_bytes: int) -> None:
        self.started = started
        self.stack = stack  # start address of its stack: kept by a fork, changed by an exec
        self.forked = forked  # and has not called exec since
        self.inherited_bytes = inherited_bytes  # upper bound of the pages shared with the parent


class Meter:
    """The private memory of a child and of all processes below it, as grown since the fork."""

    def __init__(self, pid: int, inherited: Usage = NOTHING) -> None:
        """`inherited`: the zygote's own memory (`of(zygote_pid)`), read when the zygote is ready."""
        self._pid = pid
        self.inherited_bytes = inherited.anon_bytes  # upper bound of the pages that do not count
        self._inherited_shared_bytes = inherited.shared_bytes
        self._stack = b""
        self._known: dict[int, _Known] = {}
        self._below: dict[int, list[int]] = {}  # children of processes with many threads, as found last
        self._looks = 0
        self.sampled_bytes = 0  # of the last sample
        self.peak_bytes = 0  # of all samples since the last `start`

    def start(self) -> None:
        """A job starts. The peak counts anew, and samples come soon again. Earlier growth stays counted."""
        self.peak_bytes = 0
        self._looks = 0

    def sample(self) -> int:
        """Read the memory now and return it in bytes. 0: the child has ended.

        Takes 20 µs for a lone child, and 30 µs more for each process below it. If /proc cannot be read now, returns the
        last sample.
        """
        self._looks += 1
        try:
            return self._see()
        except _Unseen:
            return self.sampled_bytes

    def _see(self) -> int:
        usage = _usage(self._pid)
        if usage is None:
            self._known.clear()
            self.sampled_bytes = 0
            return 0
        # Pages once given back are no longer inherited. Pages that replace them are the child's own.
        self.inherited_bytes = min(self.inherited_bytes, usage.anon_bytes)
        below = self._children_of(self._pid, usage.threads)
        if below or self._known:
            grown_bytes, shared_bytes = self._sample_below(usage, below)
        else:
            grown_bytes, shared_bytes = 0, usage.shared_bytes
        grown_bytes += usage.anon_bytes - self.inherited_bytes
        self.sampled_bytes = grown_bytes + max(0, shared_bytes - self._inherited_shared_bytes)
        self.peak_bytes = max(self.peak_bytes, self.sampled_bytes)
        return self.sampled_bytes

    def next_in_s(self, limit_bytes: int = 0, room_bytes: int | None = None) -> float:
        """Return the seconds until the next sample.

        `limit_bytes`: the job's limit; 0: none. `room_bytes`: what the budget has left; None: no budget. The next
        sample comes before a process of 2 GB/s could have filled the room; later if the job has very many processes.
        """
        if not limit_bytes:
            longest_s = min(_FIRST_S * 2.0 ** min(self._looks, 4), _SELDOM_S)
        else:
            longest_s = _LIMITED_S if self.sampled_bytes * 2 < limit_bytes else _CLOSE_S
            own_room_bytes = limit_bytes - self.sampled_bytes
            room_bytes = own_room_bytes if room_bytes is None else min(room_bytes, own_room_bytes)
        if room_bytes is not None:
            longest_s = min(longest_s, room_bytes / _GROWTH_BYTES_PER_S)
        return max(_SHORTEST_S, len(self._known) * _SHORTEST_EACH_S, longest_s)

    def _sample_below(self, top: Usage, below: list[int]) -> tuple[int, int]:
        """Return the growth of the processes below the child, and the most shared memory of one process."""
        found: dict[int, _Known] = {}
        grown_bytes, shared_bytes = 0, top.shared_bytes
        own = _identity(self._pid)
        if not (own.forked and self._stack):
            self._stack = own.stack
        todo = [(self._pid, below, self._stack, top.anon_bytes)]
        while todo:
            parent, pids, stack, held_bytes = todo.pop()
            families: dict[bytes, int] = {}  # largest inheritance of all forks of one parent and program
            for pid in pids:
                # Identity before usage: memory from before an exec must not count as the new program's own.
                identity = _identity(pid)
                usage = _usage(pid) if identity.parent == parent and pid not in found else None
                if usage is None:
                    continue
                known = found[pid] = self._recognise(pid, identity, usage, stack, held_bytes)
                grown_bytes += usage.anon_bytes - known.inherited_bytes
                shared_bytes = max(shared_bytes, usage.shared_bytes)
                families[known.stack] = max(families.get(known.stack, 0), known.inherited_bytes)
                if further := self._children_of(pid, usage.threads):
                    todo.append((pid, further, known.stack, usage.anon_bytes))
            # Pages that the parent has given back, or that outlived it, now belong to its forks, which share them.
            for of_stack, inherited_bytes in families.items():
                grown_bytes += max(0, inherited_bytes - (held_bytes if of_stack == stack else 0))
        self._known = found
        self._below = {pid: pids for pid, pids in self._below.items() if pid in found or pid == self._pid}
        return grown_bytes, shared_bytes

    def _recognise(
        self, pid: int, identity: _ProcessIdentity, usage: Usage, parent_stack: bytes, parent_bytes: int
    ) -> _Known:
        _parent, started, stack, forked = identity
        known = self._known.get(pid)
        if known is not None and known.started == started:
            hidden = _UNREADABLE in (stack, known.stack)  # now or before: then the address says nothing
            if known.forked != forked or not (forked or hidden or known.stack == stack):
                return _Known(started, stack, False, 0)  # the process has called exec
            known.inherited_bytes = min(known.inherited_bytes, usage.anon_bytes)
            return known
        # A fork that has given up privileges hides its stack, but is still a fork of its parent. A readable process
        # below a hidden parent comes from another program, which has ended.
        if forked and stack == _UNREADABLE:
            stack = parent_stack
        shares = forked and stack == parent_stack
        return _Known(started, stack, forked, min(usage.anon_bytes, parent_bytes) if shares else 0)

    def _children_of(self, pid: int, threads: int) -> list[int]:
        if threads == 1:
            return _pids(f"/proc/{pid}/task/{pid}/children")
        if threads > _MANY_THREADS and pid in self._below and self._looks % min(threads // _MANY_THREADS, _MOST_LOOKS):
            return self._below[pid]
        found: list[int] = []
        for task in _list(f"/proc/{pid}/task"):
            found += _pids(f"/proc/{pid}/task/{task}/children")
        if threads > _MANY_THREADS:
            self._below[pid] = found
        return found


def _identity(pid: int) -> _ProcessIdentity:
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(b")") + 2 :].split(None, _STACK + 1)  # the name may hold anything
    if len(fields) <= _STACK:
        return _ProcessIdentity(0, b"", b"", False)
    forked = bool(int(fields[_FLAGS]) & _FORKED)
    return _ProcessIdentity(int(fields[_PARENT]), fields[_STARTED], fields[_STACK], forked)


def _kb(status: bytes, start: int) -> int:
    return int(status[start : status.index(b"k", start)])


def _pids(path: str) -> list[int]:
    return [int(pid) for pid in _read(path).split()]


class _Unseen(Exception):
    """/proc cannot be read now: our open files or the kernel's memory are used up."""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # as in `_read`
        return []
    except OSError as error:
        raise _Unseen from error


def _read(path: str) -> bytes:
    """Return all of a small file of /proc. Empty: the process has ended meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or hidden from us (hidepid)
        return b""
    except OSError as error:
        raise _Unseen from error
    try:
        read = os.read(fd, _READ_BYTES)
        while more := os.read(fd, _READ_BYTES):  # the kernel returns a list of pids in pages
            read += more
        return read
    except ProcessLookupError:  # ended after the open
        return b""
    finally:
        os.close(fd)
