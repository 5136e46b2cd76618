"""Whether the files that the handlers were loaded from are others by now. Runs in master, for reloads and `--watch`.

Owns what they looked like when a zygote was last told to load them. Reads no file: it looks at their sizes and times.
A module that comes into one of their directories counts as well.
"""

import os
from collections.abc import Iterable
from typing import Final

from supervisor import clock

#: Between two looks while no job is to start.
_EVERY_S: Final = 0.25
#: The clock by which files get their times stands still so long.
_TICK_S: Final = 0.02

#: After so many loads in a row during which a file has changed it is taken to be the loading that changes it.
_MOST_RESTLESS: Final = 5

#: What changes with a file: the time of its last change in ns, its size in bytes, and which file it is.
Look = tuple[int, int, int]


class FileWatcher:
    def __init__(self) -> None:
        self.look_at = 0.0  # when the next look is due
        self._files: set[str] = set()
        self._noted: dict[str, Look | None] = {}
        self._is_first = False  # nobody has looked since the last load
        self._restless = 0  # loads in a row during which a file has changed

    def follow(self, files: Iterable[str], since_unix: float) -> None:
        """From now on look at these, and at the modules beside them. They were loaded after `since_unix`, and after
        they were noted last.
        """
        self._files, self._is_first = set(files), True
        before, self._noted = self._noted, self._looks()
        for file, look in self._noted.items():
            changed = before[file] != look if file in before else _changed_after(file, since_unix - _TICK_S)
            if changed:
                self._noted[file] = None  # maybe after it was loaded

    def add(self, files: Iterable[str]) -> None:
        """Look at these, too: something is wrong with them."""
        new, self._is_first = set(files) - self._files, True
        self._files |= new
        for file, look in self._looks().items():
            self._noted.setdefault(file, look)

    def note(self) -> None:
        """They are about to be loaded as they are now."""
        self._noted = self._looks()

    def differ(self) -> bool:
        """Whether any of them is not as it was noted last."""
        return self._looks() != self._noted

    def is_edited(self) -> bool:
        """The same, for whoever loads them then. What the handlers write themselves while they are loaded is no edit:
        else they would be loaded for ever.
        """
        self.look_at = clock.monotonic() + _EVERY_S
        looks, is_first, self._is_first = self._looks(), self._is_first, False
        is_changed = looks != self._noted
        if is_first:
            self._restless = self._restless + 1 if is_changed else 0
        if is_changed and is_first and self._restless >= _MOST_RESTLESS:
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
    except OSError:  # it is gone, or closed to us: its files are missed one by one
        return []


def _look(file: str) -> Look | None:
    try:
        found = os.stat(file)
    except OSError:  # ENOENT and others: not there for us
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _changed_after(file: str, unix: float) -> bool:
    """By the time that nobody can set; a clock that was set back says nothing."""
    try:
        changed_unix = os.stat(file).st_ctime
    except OSError:
        return False
    return unix <= changed_unix <= clock.unix()
