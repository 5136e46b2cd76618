"""The working directory of a child, empty for each of its jobs. Runs in children. Must not follow a link.

Owns the state of the directory when it was last empty, so that a job that did not use it costs one stat.
"""

import contextlib
import errno
import os
from typing import Final

from supervisor import clock
from supervisor.linux import removal

#: Two changes within a tick of the kernel's clock have one timestamp, so a younger one proves nothing yet.
_TICK_S: Final = 0.05
_SECOND_NS: Final = 10**9
_MODE: Final = 0o700

#: Device, inode, link count (0: removed), and ctime: last change of an entry, the mode or the name.
_State = tuple[int, int, int, int]


class Workdir:
    def __init__(self, path: str) -> None:
        self.path = path
        self._empty: _State | None = None  # while we were in it

    def distrust(self) -> None:
        """Have the next `claim` open the directory and look into it."""
        self._empty = None

    def claim(self) -> None:
        """Make it our empty directory, whatever a job has left in its place, and enter it."""
        if self._empty is not None and _state() == self._empty:
            return
        self._empty = None
        _own(self.path)
        os.chdir(self.path)
        if os.listdir(self.path):
            removal.empty(self.path)
        found = _state()
        if found is not None and _is_telling(found[-1]):
            self._empty = found


def _state() -> _State | None:
    """Return the state of the current directory."""
    try:
        found = os.stat(".")
    except OSError:  # not searchable, or its file system is gone
        return None
    return found.st_dev, found.st_ino, found.st_nlink, found.st_ctime_ns


def _is_telling(changed_ns: int) -> bool:
    """True if any later change will have another ctime. Only the kernel can set a ctime."""
    return changed_ns % _SECOND_NS != 0 and clock.unix() > changed_ns / _SECOND_NS + _TICK_S


def _own(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        _make(path)
    except NotADirectoryError:
        os.unlink(path)
        os.mkdir(path, _MODE)
    except PermissionError:
        os.chmod(path, _MODE)  # a directory: links and files are refused above
    else:
        if os.fstat(fd).st_mode & 0o7777 != _MODE:  # a handler may have made it read-only
            os.fchmod(fd, _MODE)
        os.close(fd)


def _make(path: str) -> None:
    """Make the directory and the two above it: a job, or a cleaner of the temporary directory, may remove them all."""
    try:
        os.mkdir(path, _MODE)
    except FileNotFoundError:
        of_zygote = os.path.dirname(path)
        for above in (os.path.dirname(of_zygote), of_zygote):
            with contextlib.suppress(FileExistsError):
                os.mkdir(above, 0o711)  # a child of another user must pass through
            if os.lstat(above).st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, "another user's directory is in its place", above) from None
        os.mkdir(path, _MODE)
