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
#: A file that has changed during so many loads in a row is taken to be changed by the load itself.
_MOST_CHANGING_LOADS: Final = 5

#: Time of the last change in ns, size in bytes, inode.
Look = tuple[int, int, int]
_ABSENT: Final = (-1, -1, -1)


class FileWatcher:
    def __init__(self) -> None:
        self.look_at = 0.0  # when the next look is due (monotonic s)
        self._files: set[str] = set()
        self._noted: dict[str, Look | None] = {}  # each file as it was loaded; None: missing, or in doubt
        self._is_loaded = True  # False: a load is under way
        self._is_judged = True  # the last load; each is judged once
        self._changing_loads = 0  # in a row
        self._changed_each_time: set[str] = set()  # by each of these loads
        self._written: set[str] = set()  # by the last load, as by those before it

    def note(self) -> None:
        """Note the files as they are, right before they are loaded."""
        if not self._is_judged:
            self._judge_load(self._changed())
        self._noted, self._written = self._looks(), set()
        self._is_loaded = self._is_judged = False

    def follow(self, files: Iterable[str], since_unix: float) -> None:
        """Watch these files, and the modules beside them, from now on.

        They were loaded after the last `note`, and after `since_unix`.
        """
        self._files, self._is_loaded = set(files), True
        before, self._noted = self._noted, self._looks()
        for file, look in self._noted.items():
            changed = before[file] != look if file in before else _changed_after(file, since_unix - _TICK_S)
            if changed and file not in self._written:
                self._noted[file] = None  # the change may have come after the load

    def add(self, files: Iterable[str]) -> None:
        """Watch these files, too. A load has failed because of them."""
        new, self._is_loaded = set(files) - self._files, True
        self._files |= new
        for file, look in self._looks().items():
            self._noted.setdefault(file, look)

    def outdates_load(self) -> bool:
        """Return True if a file has changed during the load under way, so that the load is to begin anew."""
        return bool(self._changed())

    def is_edited(self) -> bool:
        """Return True if a file has changed, so that the handlers are to be loaded.

        A file that the handlers write at each load is no edit. Otherwise they would be loaded for ever.
        """
        self.look_at = clock.monotonic() + _EVERY_S
        changed = self._changed()
        if not self._is_judged and (changed or self._is_loaded):
            changed = self._judge_load(changed)
        return bool(changed)

    def _judge_load(self, changed: set[str]) -> set[str]:
        """Return what has changed during the last load, without what each load changes."""
        self._is_judged = True
        again = self._changed_each_time & changed
        self._changing_loads = self._changing_loads + 1 if again else int(bool(changed))
        self._changed_each_time = again or changed
        if self._changing_loads < _MOST_CHANGING_LOADS:
            return changed
        self._written = again
        looks = self._looks()
        self._noted = {file: look for file, look in self._noted.items() if file not in again}
        self._noted |= {file: looks[file] for file in again & looks.keys()}
        return changed - again

    def _changed(self) -> set[str]:
        looks = self._looks()
        changed = {
            file for file in looks.keys() | self._noted.keys()
            if looks.get(file, _ABSENT) != self._noted.get(file, _ABSENT)
        }  # fmt: skip
        return changed if self._is_loaded else changed - self._written

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
