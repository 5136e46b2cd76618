"""How much private memory the processes of a job have. Runs in master.

Owns what it has seen of a child's tree; must not end anything. Counted is what has grown since the fork, by
`RssAnon + VmSwap + RssShmem` of `/proc/<pid>/status`, which can be read for any process of ours (`smaps` cannot for one
that is not dumpable, and costs forty times as much): pages that a process shares with the one that it was forked from
count once, and those of the zygote never. Bounds of that: a page that a child only overwrites was counted in the zygote
and stays so; shared memory counts by the process that has most of it in use, and not at all while nobody maps it.
"""

import os
from typing import Final, NamedTuple

#: Faster than a process can touch new memory where no huge pages help it; so no limit is passed unseen for long.
_GROWTH_BYTES_PER_S: Final = 2 * 10**9
#: The shortest time between two looks at a child; a process of 1 GB/s gets 5 MB in it.
_SHORTEST_S: Final = 0.005
#: And for each process of a large tree, ten times what a look at it costs: looks take a tenth of the master at most.
_SHORTEST_EACH_S: Final = 0.0003
#: The longest one under a limit, and the same from half the limit on.
_LIMITED_S: Final = 0.1
_CLOSE_S: Final = 0.02
#: Without a limit only the record of the peak wants a look: soon for a short job, seldom for a long one.
_FIRST_S: Final = 0.25
_SELDOM_S: Final = 2.0

_READ_BYTES: Final = 8192  # a status has 1.5 KB, unless the process is in very many groups
#: A process with more threads than these is asked for all threads' children at every n-th look only: each costs 6 µs.
_MANY_THREADS: Final = 8
_MOST_LOOKS: Final = 8

# Where they stand in /proc/<pid>/stat, counted from the state, which follows the name in parentheses.
_PARENT: Final = 1
_FLAGS: Final = 6
_STARTED: Final = 19
_STACK: Final = 25
#: Of the flags: forked, and no other program since (PF_FORKNOEXEC).
_FORKED: Final = 0x40
#: What stands for the stack of a process that we may not look into.
_UNREADABLE: Final = b"0"


class Usage(NamedTuple):
    """The memory of one process that no file backs, inherited pages included."""

    anon_bytes: int  # swapped out or not
    shared_bytes: int  # shared memory that it maps: anonymous, memfd or tmpfs
    threads: int

    @property
    def total_bytes(self) -> int:
        return self.anon_bytes + self.shared_bytes


NOTHING: Final = Usage(0, 0, 0)


def of(pid: int) -> Usage | None:
    """The memory of a process; None: it has ended, or is only a zombie, or no look can be made."""
    try:
        return _usage(pid)
    except _Unseen:
        return None


def _usage(pid: int) -> Usage | None:
    status = _read(f"/proc/{pid}/status")
    anon_at = status.find(b"\nRssAnon:")  # the name stands above them, but cannot hold a newline
    if anon_at < 0:  # a zombie; but its other threads may go on
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


def first_look_s(limit_bytes: int) -> float:
    """How long after a job's start its memory is looked at first. 0: it has no limit."""
    return min(_LIMITED_S, max(_SHORTEST_S, limit_bytes / _GROWTH_BYTES_PER_S)) if limit_bytes else _LIMITED_S


class _Identity(NamedTuple):
    """What the kernel tells of any process; of none: nothing."""

    parent: int
    started: bytes
    stack: bytes  # where it begins, or _UNREADABLE
    forked: bool  # and no other program since


class _Known:
    """A process below a child, as seen last."""

    __slots__ = ("forked", "inherited_bytes", "stack", "started")

    def __init__(self, started: bytes, stack: bytes, forked: bool, inherited_bytes: int) -> None:
        self.started = started
        self.stack = stack  # where its stack begins: the same after a fork, another after an exec
        self.forked = forked  # and no other program since
        self.inherited_bytes = inherited_bytes  # at most this is shared with the process that it was forked from


class Meter:
    """The private memory of a child and of all processes below it, grown since the fork."""

    def __init__(self, pid: int, inherited: Usage = NOTHING) -> None:
        """`inherited` is what the zygote itself has (`of(zygote_pid)`), read once when it is ready."""
        self._pid = pid
        self.inherited_bytes = inherited.anon_bytes  # at most this does not count
        self._inherited_shared_bytes = inherited.shared_bytes
        self._stack = b""
        self._known: dict[int, _Known] = {}
        self._below: dict[int, list[int]] = {}  # of those with many threads, as found last
        self._looks = 0
        self.sampled_bytes = 0  # by the last look
        self.peak_bytes = 0  # of all looks since the last `start`

    def start(self) -> None:
        """A job starts: the peak is to be its own, and looks come soon again. What has grown stays counted."""
        self.peak_bytes = 0
        self._looks = 0

    def sample(self) -> int:
        """Look now (20 µs for a lone child, 30 µs more for each process below it). Bytes; 0 when it has ended; as
        before where no look can be made.
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
        # Pages once given back are not inherited any more: what comes instead is its own.
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
        """Seconds until the next look is due, by the last one.

        `limit_bytes` is the job's limit (0: none), `room_bytes` what the pool's budget has left (None: no budget). The
        room is looked at again before a process of 2 GB/s could have filled it; later where the job has very many
        processes.
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
        """What the processes below the child have grown, and the most shared memory that one of the tree has."""
        found: dict[int, _Known] = {}
        grown_bytes, shared_bytes = 0, top.shared_bytes
        own = _identity(self._pid)
        if not (own.forked and self._stack):
            self._stack = own.stack
        todo = [(self._pid, below, self._stack, top.anon_bytes)]
        while todo:
            parent, pids, stack, held_bytes = todo.pop()
            families: dict[bytes, int] = {}  # of the same program and parent: the most that one of them has inherited
            for pid in pids:
                # Who it is comes first: what it had before an exec or its end is not what it has by itself.
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
            # What their parent has given back, or took along into its end, is theirs now, and they share it.
            for of_stack, inherited_bytes in families.items():
                grown_bytes += max(0, inherited_bytes - (held_bytes if of_stack == stack else 0))
        self._known = found
        self._below = {pid: pids for pid, pids in self._below.items() if pid in found or pid == self._pid}
        return grown_bytes, shared_bytes

    def _recognise(self, pid: int, identity: _Identity, usage: Usage, parent_stack: bytes, parent_bytes: int) -> _Known:
        _parent, started, stack, forked = identity
        known = self._known.get(pid)
        if known is not None and known.started == started:
            hidden = _UNREADABLE in (stack, known.stack)  # by then, or before: no sign of anything
            if known.forked != forked or not (forked or hidden or known.stack == stack):
                return _Known(started, stack, False, 0)  # it has become another program
            known.inherited_bytes = min(known.inherited_bytes, usage.anon_bytes)
            return known
        # Who has given up its privileges, or that right, is a fork of its parent all the same. One that may be looked
        # into where its parent may not comes from another program, which has ended.
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


def _identity(pid: int) -> _Identity:
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(b")") + 2 :].split(None, _STACK + 1)  # the name may hold anything
    if len(fields) <= _STACK:
        return _Identity(0, b"", b"", False)
    forked = bool(int(fields[_FLAGS]) & _FORKED)
    return _Identity(int(fields[_PARENT]), fields[_STARTED], fields[_STACK], forked)


def _kb(status: bytes, start: int) -> int:
    return int(status[start : status.index(b"k", start)])


def _pids(path: str) -> list[int]:
    return [int(pid) for pid in _read(path).split()]


class _Unseen(Exception):
    """A look cannot be made now: our open files, or the kernel's memory, are used up."""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # as below
        return []
    except OSError as error:
        raise _Unseen from error


def _read(path: str) -> bytes:
    """All of a small file of /proc; empty if the process has gone meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or hidden from us (hidepid)
        return b""
    except OSError as error:
        raise _Unseen from error
    try:
        read = os.read(fd, _READ_BYTES)
        while more := os.read(fd, _READ_BYTES):  # a list of pids comes in pages
            read += more
        return read
    except ProcessLookupError:  # gone after we had opened it
        return b""
    finally:
        os.close(fd)
