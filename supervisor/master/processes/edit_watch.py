"""Has jobs wait once a file of the handlers was edited, until the code is loaded (`--watch`). Runs in the master.

Looks at an interval, and before each start of jobs. It begins no reload: `RollingReload` does, in this turn of the loop
or at once in the next one.
"""

import math
from collections.abc import Callable

from supervisor.master.jobs.admission import Admission
from supervisor.master.model.reload_log import Reloads
from supervisor.master.processes.file_watcher import FileWatcher


class EditWatch:
    def __init__(
        self, is_on: bool, files: FileWatcher, admission: Admission, reload_log: Reloads, on_edit: Callable[[], None]
    ) -> None:
        """`on_edit()` is called when there is an edit to take, which is to happen soon."""
        self._is_on = is_on
        self._files = files
        self._admission = admission
        self._log = reload_log
        self._on_edit = on_edit
        self._is_edited = False  # and no reload was asked for since

    def close(self) -> None:
        """Look no more: the supervisor drains."""
        self._is_on = self._is_edited = False

    @property
    def _looks(self) -> bool:
        """True if an edit that is seen now would not be loaded without a look."""
        return self._is_on and not self._is_edited and not self._log.wanted

    def deadline_at(self) -> float:
        """Return when to look at the files next, or -inf if an edit is to be taken (monotonic s)."""
        if self._is_edited:
            return -math.inf
        return self._files.look_at if self._looks else math.inf

    def look(self) -> None:
        """Let jobs wait for a reload if a file of the handlers has changed. Called before jobs start."""
        if self._looks and self._files.is_edited():
            self._is_edited = True
            self._admission.await_reload()
            self._on_edit()

    def take_edit(self) -> bool:
        """Return True once for each edit, which is to be loaded now."""
        was_edited, self._is_edited = self._is_edited, False
        return was_edited

    def reload_ended(self) -> None:
        """Let jobs start, unless the next reload is to begin for an edit."""
        if self._is_on and (self._is_edited or self._log.wanted):
            self._admission.await_reload()
        else:
            self._admission.reload_ended()
