"""How much lies in the working directories of running jobs. Runs in master. Owns how far each of them has been counted.

The directory is its handler's: anything may lie in it, and change while it is counted. So it is counted a little at a
time; no link is followed, nothing but directories is opened, and other file systems are left alone. What it cannot see:
what lies elsewhere, and files that have no name any more.
"""

import errno
import math
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from supervisor import clock
from supervisor.config import megabytes
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.ledger import HeldLease
from supervisor.master.timers import Timers
from supervisor.messages import child_directory, zygote_directory
from supervisor.ops.events import Events

#: From a job's start to the first look: most jobs have ended by then, and cost nothing.
_FIRST_S: Final = 0.5
#: Faster than files are written to most disks; so no limit is passed unseen for long.
_GROWTH_BYTES_PER_S: Final = 10**9
#: Between the end of a count and the next one.
_SHORTEST_S: Final = 0.1
_LONGEST_S: Final = 5.0
#: One go at counting takes so long at most (about 1,000 files), and the master does other things for ten times that.
_GO_S: Final = 0.003
_PAUSE: Final = 10
#: What an entry takes beside its blocks: an inode and a name, so that empty files count, too.
_ENTRY_BYTES: Final = 512
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own
#: Directories that are known and not yet counted.
_MOST_PENDING: Final = 10_000

#: The key of the timer.
DISK: Final = "disk-usage"

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Place(NamedTuple):
    """A directory to be counted: what it was when it was seen, for something else may stand there by now."""

    above: "_Place | None"
    name: str
    inode: int


class Count:
    """One count of what lies below a directory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.used_bytes = 0
        self.entries = 0
        self.too_deep = False  # there are directories that no path can name
        self.hidden: str | None = None  # the first one that cannot be looked into, and why
        self._device = -1
        self._pending: list[_Place] = []
        self._listing: Iterator[os.DirEntry[str]] | None = None
        self._fd = -1
        self._here: _Place | None = None
        self._begun = False

    def go_on(self, longest_s: float) -> bool:
        """Count for so long. True: it is finished."""
        until_at = clock.monotonic() + longest_s
        if not self._begun:
            self._begun = True
            self._open_root()
        while self._listing is not None or self._pending:
            if self._listing is None:
                self._open(self._pending.pop())
            elif (entry := self._next(self._listing)) is None:
                self.close()
            else:
                self._add(entry)
            if clock.monotonic() >= until_at:
                return False
        return True

    def close(self) -> None:
        if self._listing is not None:
            self._listing.close()  # type: ignore[attr-defined]  # an iterator of scandir
            self._listing = None
            os.close(self._fd)

    def _open_root(self) -> None:
        try:
            found = os.stat(self._root, follow_symlinks=False)
        except OSError as error:
            self._note("", error)
            return
        self._device = found.st_dev
        self._open(_Place(None, "", found.st_ino))

    def _open(self, place: _Place) -> None:
        path = self._path(place)
        try:
            fd = os.open(path, _DIRECTORY)
        except OSError as error:
            self._note(path, error)
            return
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != (self._device, place.inode):
                os.close(fd)  # another one's place by now, or another file system
                return
            self._listing = os.scandir(fd)
        except OSError as error:
            os.close(fd)
            self._note(path, error)
            return
        self._fd, self._here = fd, place

    def _path(self, place: _Place) -> str:
        names: list[str] = []
        each: _Place | None = place
        while each is not None:
            names.append(each.name)
            each = each.above
        names[-1] = self._root
        return "/".join(reversed(names))

    def _next(self, listing: Iterator[os.DirEntry[str]]) -> os.DirEntry[str] | None:
        try:
            return next(listing, None)
        except OSError as error:
            self._note(self._path(self._here) if self._here is not None else "", error)
            return None

    def _add(self, entry: os.DirEntry[str]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError as error:
            self._note(entry.name, error)
            return
        is_directory = stat.S_ISDIR(found.st_mode)
        if is_directory and found.st_dev != self._device:
            return
        self.entries += 1
        # Of a file with several names each has its share: together they make it once.
        self.used_bytes += found.st_blocks * _BLOCK_BYTES // (1 if is_directory else max(1, found.st_nlink))
        self.used_bytes += _ENTRY_BYTES
        if not is_directory:
            return
        place = _Place(self._here, entry.name, found.st_ino)
        if len(self._pending) < _MOST_PENDING:
            self._pending.append(place)
        else:  # another time by chance, so that nothing can be hidden behind many others
            self._pending[random.randrange(_MOST_PENDING)] = place

    def _note(self, path: str, error: OSError) -> None:
        """Of a directory that cannot be counted. That it has gone is nothing to be said."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        if error.errno == errno.ENAMETOOLONG:
            self.too_deep = True
        elif error.errno != errno.ELOOP and self.hidden is None:
            self.hidden = f"{path or self._root} ({error.strerror})"


@dataclass(slots=True, eq=False)
class _Job:
    """A running job, and the count of its directory that is under way."""

    child: ChildHandle
    held: HeldLease
    next_at: float
    count: Count | None = None
    beyond: bool = False  # by the last count
    warned: bool = False

    @property
    def has_ended(self) -> bool:
        return self.child.running is not self.held

    def close(self) -> None:
        if self.count is not None:
            self.count.close()
            self.count = None


class DiskUsage:
    """Keeps `limit_bytes` for each job's directory below `workdir`; 0: anything may lie there."""

    def __init__(
        self,
        limit_bytes: int,
        workdir: Path,
        interrupter: Interrupter,
        events: Events,
        timers: Timers,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._workdir = workdir
        self._interrupter = interrupter
        self._events = events
        self._timers = timers
        self._jobs: dict[int, _Job] = {}  # by the child's number
        self._free_at = 0.0  # when the next go at counting may be made

    def watch(self, child: ChildHandle, held: HeldLease) -> None:
        """It runs this job. May be called again and again; what is short-lived need not be named."""
        if not self._limit_bytes:
            return
        known = self._jobs.get(child.number)
        if known is not None and known.held is held:
            return
        if known is not None:
            known.close()
        self._jobs[child.number] = _Job(child, held, held.started_at + _FIRST_S)
        self._plan()

    def _go_on(self, now_at: float) -> None:
        for number, job in tuple(self._jobs.items()):
            if job.has_ended:
                job.close()
                del self._jobs[number]
        due = min(self._jobs.values(), key=lambda job: job.next_at, default=None)
        if due is not None and now_at >= due.next_at:
            self._look(due)
        self._plan()

    def _plan(self) -> None:
        earliest_at = min((job.next_at for job in self._jobs.values()), default=math.inf)
        self._timers.set(DISK, max(earliest_at, self._free_at), self._go_on)

    def _look(self, job: _Job) -> None:
        began_at = clock.monotonic()
        if job.count is None:
            of_zygote = zygote_directory(str(self._workdir), job.child.zygote)
            job.count = Count(child_directory(of_zygote, job.child.number))
        count, finished = job.count, job.count.go_on(_GO_S)
        now_at = clock.monotonic()
        self._free_at = now_at + _PAUSE * (now_at - began_at)
        job.next_at = now_at  # after the others that wait
        if finished or count.used_bytes > self._limit_bytes:
            job.close()
            self._judge(job, count, now_at)

    def _judge(self, job: _Job, count: Count, now_at: float) -> None:
        beyond = count.used_bytes > self._limit_bytes or count.too_deep
        if beyond and job.beyond:
            del self._jobs[job.child.number]
            self._interrupter.kill(job.child, "disk", self._sentence(count))
            return
        if count.hidden is not None and not job.warned:
            job.warned = True
            lease = job.held.lease
            self._events.warn(
                f"the working directory of {lease.klass} {lease.jid} cannot be counted: {count.hidden};"
                f" its limit of {megabytes(self._limit_bytes)} is not kept for what lies there"
            )
        # What was moved meanwhile may have been counted twice: it is counted again before anybody is killed for it.
        job.beyond = beyond
        room_s = max(0, self._limit_bytes - count.used_bytes) / _GROWTH_BYTES_PER_S
        job.next_at = now_at if beyond else now_at + min(max(_SHORTEST_S, room_s), _LONGEST_S)

    def _sentence(self, count: Count) -> str:
        if count.used_bytes <= self._limit_bytes:
            return (
                "its working directory has directories nested so deep that no path names them, and they cannot be"
                " counted: let it make shorter paths, or --workdir-limit none"
            )
        return (
            f"its working directory has {megabytes(count.used_bytes)} in {count.entries} files and directories, the"
            f" limit is {megabytes(self._limit_bytes)}: let it remove what it needs no more, or raise --workdir-limit"
        )
