"""Empties directories that handlers have used. Runs in master, zygote and child. Must not follow a link.

Owns only the threads of `remove_beside`, which the master uses: its loop cannot wait until any number of files is gone.

The content may be nested deeper than a path can name, be closed to its owner, or change meanwhile. So one directory is
open at a time, and the way up counts only if it leads back to the directory above.
"""

import os
import stat
from threading import Thread
from typing import Final

from supervisor import clock

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Non-empty subdirectories that are remembered per directory at a time.
_MOST_NAMES: Final = 1000
#: Attempts when another process moves directories meanwhile.
_TRIES: Final = 3


def empty(directory: str) -> None:
    """Remove everything in `directory` that we may. Raises OSError if it is no directory or cannot be read."""
    for _ in range(_TRIES):
        if _descend(os.open(directory, _DIRECTORY)):
            return


def remove(directory: str) -> None:
    """Empty `directory` and remove it. Leaves what cannot be removed."""
    try:
        empty(directory)
        os.rmdir(directory)
    except OSError:
        return  # gone already, or owned by another user, who can see what is left


_threads: Final[list[Thread]] = []


def remove_beside(directory: str) -> None:
    """Start a thread that removes `directory`. Never blocks. If no thread can start, the directory stays."""
    if not os.path.isdir(directory):
        return
    thread = Thread(target=remove, args=(directory,), name="removal", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the limit of processes, or memory, is used up
        return
    _threads[:] = [each for each in _threads if each.is_alive()] + [thread]


def finish(timeout_s: float) -> None:
    """Wait for the threads of `remove_beside`, before the directory above is removed.

    Two that remove one tree disturb each other. The wait costs no time: the caller would remove the same files.
    """
    deadline_at = clock.monotonic() + timeout_s
    while _threads:
        _threads.pop().join(max(0.0, deadline_at - clock.monotonic()))


class _Level:
    """A directory on the way down."""

    __slots__ = ("identity", "more", "name", "names", "removed")

    def __init__(self, fd: int, name: str) -> None:
        self.identity = _identity(fd)
        self.name = name
        self.names: list[str] = []  # of non-empty subdirectories
        self.more = True  # there may be other names
        self.removed = True  # a subdirectory, since the names were listed


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _descend(fd: int) -> bool:
    """Empty the directory `fd`, and close it. False: a directory on the way was moved."""
    levels = [_Level(fd, "")]
    try:
        while True:
            level = levels[-1]
            if not level.names and level.more and level.removed:
                level.names, level.more = _sweep(fd)
                level.removed = False
            if level.names:
                name = level.names.pop()
                below = _enter(fd, name, level.identity[0])
                if below >= 0:
                    os.close(fd)
                    fd = below
                    levels.append(_Level(fd, name))
                continue
            levels.pop()
            if not levels:
                return True
            above = os.open("..", _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = above
            if _identity(fd) != levels[-1].identity:
                return False
            levels[-1].removed |= _remove(fd, level.name, is_directory=True)
    finally:
        os.close(fd)


def _sweep(fd: int) -> tuple[list[str], bool]:
    """Remove files and empty directories. Returns names of other directories, and whether there may be more."""
    left: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            if not _remove(fd, entry.name, is_directory) and is_directory:
                left.append(entry.name)
                if len(left) == _MOST_NAMES:
                    return left, True
    return left, False


def _remove(fd: int, name: str, is_directory: bool) -> bool:
    try:
        if is_directory:
            os.rmdir(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
    except OSError:
        return False  # not empty, gone, or not allowed
    return True


def _enter(fd: int, name: str, device: int) -> int:
    """Return the subdirectory, open. -1: it is gone, or not accessible."""
    try:
        place = os.open(name, _PLACE, dir_fd=fd)
    except OSError:
        return -1
    try:
        found = os.fstat(place)
        if found.st_dev != device:
            return -1
        if stat.S_IMODE(found.st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # a handler has closed it to itself
        return os.open(".", _DIRECTORY, dir_fd=place)
    except OSError:
        return -1
    finally:
        os.close(place)
