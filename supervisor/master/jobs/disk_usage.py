"""Counts what lies in the working directories of running jobs, and kills jobs beyond the limit. Runs in the master.

A job's handler may put anything into its directory, and change it during the count. So the count takes many short
steps, follows no link, opens nothing but directories, and leaves other file systems alone. It does not see files
elsewhere, nor files without a name.
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
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.timers import Timers
from supervisor.messages import child_directory, zygote_directory
from supervisor.ops.events import Events
from supervisor.units import megabytes

#: Time from a job's start to its first count. Most jobs have ended by then, and cost nothing.
_FIRST_S: Final = 0.5
#: Files grow at most this fast on most disks. The time until the next count follows from it.
_GROWTH_BYTES_PER_S: Final = 10**9
#: Bounds of the time between the end of a count and the next one.
_SHORTEST_S: Final = 0.1
_LONGEST_S: Final = 5.0
#: One step of a count takes at most this time, which is enough for about 1,000 files.
_STEP_S: Final = 0.003
#: After a step the master does other things for this many times its duration.
_PAUSE: Final = 10
#: An entry takes this much beside its blocks, for an inode and a name. So empty files count too.
_ENTRY_BYTES: Final = 512
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own
#: At most this many directories are remembered for the count.
_MOST_PENDING: Final = 10_000

#: The key of the timer.
DISK: Final = "disk-usage"

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Place(NamedTuple):
    """A directory to be counted, as it was when it was found. Another file may have its name by now."""

    above: "_Place | None"
    name: str
    inode: int


class Count:
    """One count of the files below a directory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.used_bytes = 0
        self.entries = 0
        self.too_deep = False  # a directory has a path longer than the kernel takes
        self.hidden: str | None = None  # the first directory that cannot be opened, and why
        self._device = -1
        self._pending: list[_Place] = []
        self._listing: Iterator[os.DirEntry[str]] | None = None
        self._fd = -1
        self._here: _Place | None = None
        self._begun = False

    def go_on(self, longest_s: float) -> bool:
        """Count for at most `longest_s` seconds. Returns whether the count is finished."""
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
                os.close(fd)  # another directory has the name by now, or it lies in another file system
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
        # Each name of a file counts its share, so that all names together count the file once.
        self.used_bytes += found.st_blocks * _BLOCK_BYTES // (1 if is_directory else max(1, found.st_nlink))
        self.used_bytes += _ENTRY_BYTES
        if not is_directory:
            return
        place = _Place(self._here, entry.name, found.st_ino)
        if len(self._pending) < _MOST_PENDING:
            self._pending.append(place)
        else:  # replace any other one, so that no directory can be hidden behind many others
            self._pending[random.randrange(_MOST_PENDING)] = place

    def _note(self, path: str, error: OSError) -> None:
        """Note that a file or directory cannot be counted, unless it has only gone."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        if error.errno == errno.ENAMETOOLONG:
            self.too_deep = True
        elif error.errno != errno.ELOOP and self.hidden is None:
            self.hidden = f"{path or self._root} ({error.strerror})"


@dataclass(slots=True, eq=False)
class _WatchedJob:
    """A running job, and the present count of its directory."""

    child: ChildHandle
    held: HeldLease
    next_at: float
    count: Count | None = None
    beyond: bool = False  # True: the last count was above the limit
    warned: bool = False

    @property
    def has_ended(self) -> bool:
        return all(run.held is not self.held for run in self.child.runs)

    def close(self) -> None:
        if self.count is not None:
            self.count.close()
            self.count = None


class DiskUsage:
    """Limits each job's directory below `workdir` to `limit_bytes`. 0: no limit."""

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
        self._jobs: dict[int, _WatchedJob] = {}  # by the child's number
        self._free_at = 0.0  # when the next step may be made (monotonic s)

    def watch(self, child: ChildHandle, held: HeldLease) -> None:
        """Count the directory of this running job at times. Idempotent. Very short jobs need no call."""
        if not self._limit_bytes:
            return
        known = self._jobs.get(child.number)
        if known is not None and known.held is held:
            return
        if known is not None:
            known.close()
        self._jobs[child.number] = _WatchedJob(child, held, held.started_at + _FIRST_S)
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

    def _look(self, job: _WatchedJob) -> None:
        began_at = clock.monotonic()
        if job.count is None:
            of_zygote = zygote_directory(str(self._workdir), job.child.zygote)
            job.count = Count(child_directory(of_zygote, job.child.number))
        count, finished = job.count, job.count.go_on(_STEP_S)
        now_at = clock.monotonic()
        self._free_at = now_at + _PAUSE * (now_at - began_at)
        job.next_at = now_at  # after the other jobs that are due
        if finished or count.used_bytes > self._limit_bytes:
            job.close()
            self._judge(job, count, now_at)

    def _judge(self, job: _WatchedJob, count: Count, now_at: float) -> None:
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
        # A file that was moved during the count may have counted twice. So a second count must agree before a kill.
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
