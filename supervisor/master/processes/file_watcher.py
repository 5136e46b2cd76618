"""Tells whether the handlers' files have changed since they were loaded. Runs in the master.

Compares sizes and times, and reads no file. A new module in a directory of theirs counts as a change.
"""

import os
from collections.abc import Iterable
from typing import Final

from supervisor import clock

#: Between two looks while no job is to start.
_EVERY_S: Final = 0.25
#: Files get their times from a clock that moves in steps of at most this.
_TICK_S: Final = 0.02
#: After this many loads in a row during which a file has changed, the load itself is taken to change it.
_MOST_CHANGING_LOADS: Final = 5

#: Time of the last change in ns, size in bytes, inode.
Look = tuple[int, int, int]


class FileWatcher:
    def __init__(self) -> None:
        self.look_at = 0.0  # when the next look is due (monotonic s)
        self._files: set[str] = set()
        self._noted: dict[str, Look | None] = {}  # each file as it was loaded; None: missing, or in doubt
        self._is_first_look = False  # since the last load
        self._changing_loads = 0  # in a row

    def follow(self, files: Iterable[str], since_unix: float) -> None:
        """Watch these files, and the modules beside them, from now on.

        They were loaded after the last `note`, and after `since_unix`.
        """
        self._files, self._is_first_look = set(files), True
        before, self._noted = self._noted, self._looks()
        for file, look in self._noted.items():
            changed = before[file] != look if file in before else _changed_after(file, since_unix - _TICK_S)
            if changed:
                self._noted[file] = None  # the change may have come after the load

    def add(self, files: Iterable[str]) -> None:
        """Watch these files, too. A load has failed because of them."""
        new, self._is_first_look = set(files) - self._files, True
        self._files |= new
        for file, look in self._looks().items():
            self._noted.setdefault(file, look)

    def note(self) -> None:
        """Note the files as they are, right before they are loaded."""
        self._noted = self._looks()

    def differ(self) -> bool:
        """Return True if a file has changed since it was noted."""
        return self._looks() != self._noted

    def is_edited(self) -> bool:
        """Return True if a file has changed, so that the handlers are to be loaded.

        A file that the handlers write at each load is no edit. Otherwise they would be loaded for ever.
        """
        self.look_at = clock.monotonic() + _EVERY_S
        looks, is_first_look, self._is_first_look = self._looks(), self._is_first_look, False
        is_changed = looks != self._noted
        if is_first_look:
            self._changing_loads = self._changing_loads + 1 if is_changed else 0
        if is_changed and is_first_look and self._changing_loads >= _MOST_CHANGING_LOADS:
            self._noted = looks
            return False
        return is_changed

    def _looks(self) -> dict[str, Look | None]:
        directories = {os.path.dirname(file) for file in self._files}
        modules = {module for directory in directories for module in _modules_in(directory)}
        return {file: _look(file) for file in self._files | modules}


def _modules_in(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.name.endswith(".py") and not entry.name.startswith(".")]
    except OSError:  # the directory is gone, or not readable: each of its files is missed by itself
        return []


def _look(file: str) -> Look | None:
    try:
        found = os.stat(file)
    except OSError:  # ENOENT and others: the file does not exist for us
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _changed_after(file: str, unix: float) -> bool:
    """Compare by ctime, which no program can set. A ctime in the future comes from a clock that was set back."""
    try:
        changed_unix = os.stat(file).st_ctime
    except OSError:
        return False
    return unix <= changed_unix <= clock.unix()
