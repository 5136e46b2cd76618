"""The working directory of a child, empty for each of its jobs. Runs in children.

Owns what is known of it since it was emptied, so that a job that has not touched it costs one look. Follows no link.
"""

import contextlib
import errno
import os
from typing import Final

from supervisor import clock
from supervisor.linux import removal

#: Two changes within a tick of the kernel's clock bear one time, so one that is younger than this says nothing yet.
_TICK_S: Final = 0.05
_SECOND_NS: Final = 10**9
_MODE: Final = 0o700

#: Which directory it is, whether it has a name still, and when an entry of it, its mode or its name were changed last.
_State = tuple[int, int, int, int]


class Workdir:
    def __init__(self, path: str) -> None:
        self.path = path
        self._empty: _State | None = None  # as it was when it was empty, and we in it

    def distrust(self) -> None:
        """Have the next `claim` open the directory and look into it, whatever is known of it."""
        self._empty = None

    def claim(self) -> None:
        """Make it an empty directory of ours, whatever a job has left in its place, and go there."""
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
    """Of the current directory."""
    try:
        found = os.stat(".")
    except OSError:  # it may not be searched, or its file system is gone
        return None
    return found.st_dev, found.st_ino, found.st_nlink, found.st_ctime_ns


def _is_telling(changed_ns: int) -> bool:
    """Whether any later change will have another time. Nobody but the kernel can set it."""
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
        os.chmod(path, _MODE)  # a directory, and no link: those are refused before
    else:
        if os.fstat(fd).st_mode & 0o7777 != _MODE:  # a handler may have made it read-only
            os.fchmod(fd, _MODE)
        os.close(fd)


def _make(path: str) -> None:
    """And the two above it: a job, or whoever cleans the temporary directory, may have removed them all."""
    try:
        os.mkdir(path, _MODE)
    except FileNotFoundError:
        of_zygote = os.path.dirname(path)
        for above in (os.path.dirname(of_zygote), of_zygote):
            with contextlib.suppress(FileExistsError):
                os.mkdir(above, 0o711)  # a child of another user is to get through
            if os.lstat(above).st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, "somebody else's directory is in its place", above) from None
        os.mkdir(path, _MODE)
