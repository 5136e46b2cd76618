"""A reload, there and back: the *candidate* takes over once it has shown that it is of use; if its next children are
not ready, the zygote before does so again. Runs in master.

Owns the candidate, the zygote that is kept, and the watching of the files. Forking and ending are `ZygoteManager`'s.
A candidate that is of no use has touched nothing that is the current one's.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from supervisor import clock
from supervisor.config import Config
from supervisor.master.model.reload_log import WATCH, Reloaded, Reloads
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_manager import ChildManager
from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.messages import BootFailed, HandlerSettings
from supervisor.ops.events import Events

#: After so many candidates in a row that were dropped for newer code one may finish: who edits it quicker than it is
#: imported would never see any of it.
_MOST_DROPPED: Final = 3
#: A candidate that has taken so long may hang for a reason that is gone by now.
_LONG_S: Final = 30.0


class Forking(Protocol):
    """Whoever has the zygotes fork, and end."""

    handlers: dict[str, HandlerSettings]

    @property
    def current(self) -> ZygoteHandle | None:
        """The one that forks, or boots for that."""

    @property
    def failure(self) -> BootFailed | None:
        """Why no handler can run, as things are."""

    def start_anew(self) -> ZygoteHandle:
        """One that loads the code from where it lies now. Raises OSError."""

    def take_over(self, new: ZygoteHandle, kept: ZygoteHandle | None) -> None:
        """This one forks from now on; all others retire, but for the one that is `kept`."""

    def drop(self, zygote: ZygoteHandle) -> None:
        """It is not wanted any more, whatever may become of it."""


class RollingReload:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        events: Events,
        starts: ZygoteStarts,
        children: ChildManager,
        zygotes: Forking,
    ) -> None:
        self._slots = slots
        self._starts = starts
        self._children = children
        self._zygotes = zygotes
        self._reloads = Reloads(events)
        self._files = FileWatcher()
        self._watches = config.watch
        self._dropped = 0  # candidates in a row
        self._closing = False
        self.candidate: ZygoteHandle | None = None
        self._kept: ZygoteHandle | None = None  # the one that forked before, until the new one has filled its place

    @property
    def last(self) -> dict[str, Any] | None:
        """What has come of the last one: at_unix, by, outcome (completed or failed), message, traceback."""
        return self._reloads.last

    @property
    def may_mend(self) -> bool:
        """Whether handlers that cannot run may do so yet."""
        return self.candidate is not None or self._kept is not None

    # there

    def ask(self, by: str, on_done: Callable[[Reloaded], None] | None = None) -> None:
        """Begin a reload: now, or when the one under way has ended. That one is given up if it is of no use to whoever
        asks. `on_done` is told what has come of his, once; maybe before this returns.
        """
        self._reloads.ask(by, on_done)
        if self._closing:
            self._reloads.begin()
            self._reloads.fail("this supervisor drains")
        elif self.candidate is None:
            self._begin()
        elif self._dropped < _MOST_DROPPED and self._is_outdated(self.candidate):
            self._dropped += 1
            self._drop_candidate()
            self._begin()

    def _is_outdated(self, candidate: ZygoteHandle) -> bool:
        """Whether the code is another one since it has begun, as far as can be seen."""
        is_slow = clock.monotonic() >= candidate.started_at + _LONG_S
        return is_slow or candidate.directory != self._starts.place() or self._files.differ()

    def _begin(self) -> None:
        self._reloads.begin()
        current = self._zygotes.current
        if current is not None and not self._starts.proven:
            self._zygotes.drop(current)  # it tries to import what was there before
        self._files.note()
        try:
            self.candidate = self._zygotes.start_anew()
        except OSError as error:
            self.fail(BootFailed(f"no zygote can be started ({error})", ""))

    def _begin_next(self) -> bool:
        """The one under way has ended. Answers whether another one has begun."""
        self._dropped = 0
        is_wanted = self._reloads.wanted
        if is_wanted:
            self._begin()
        return is_wanted

    def _drop_candidate(self) -> None:
        candidate, self.candidate = self.candidate, None
        if candidate is not None:
            self._zygotes.drop(candidate)

    def probe(self, candidate: ZygoteHandle) -> None:
        """It has imported the handlers."""
        try:
            self._children.probe(candidate)
        except OSError as error:
            self.fail(BootFailed(f"no child can be asked for ({error})", ""))

    def _see_to_candidate(self, candidate: ZygoteHandle) -> None:
        if candidate.proven:
            self._promote(candidate)
        elif candidate.state is ZygoteState.PROVING and candidate.failure is not None:
            self.fail(candidate.failure)

    def _promote(self, candidate: ZygoteHandle) -> None:
        self.candidate, old = None, self._zygotes.current
        if self._kept is None and old is not None and old.proven:
            self._kept = old
        boot_s = clock.monotonic() - candidate.started_at
        # First of all: the taking over starts jobs.
        self._reloads.succeed(candidate.number, boot_s, self._zygotes.handlers, candidate.handlers)
        self._take_over(candidate)
        self._begin_next()

    def _take_over(self, new: ZygoteHandle) -> None:
        self._hold()
        self._zygotes.take_over(new, self._kept)

    def fail(self, failure: BootFailed) -> None:
        """The candidate is of no use."""
        self._drop_candidate()
        self._files.add(failure.files)
        self._hold()
        self._reloads.fail(failure.message, failure.traceback)
        if not self._begin_next():
            self._do_without(failure)

    def _do_without(self, failure: BootFailed) -> None:
        if not self._starts.proven:
            self._starts.give_up(failure)
        elif self._zygotes.current is None:
            self._starts.plan(0.0)

    # back

    def _see_to_kept(self, kept: ZygoteHandle) -> None:
        """One child was ready, but the others may not be: what they open may be there once only, or used up."""
        current, failure = self._zygotes.current, self._zygotes.failure
        if failure is not None and self.candidate is None:
            self._go_back(kept, failure)
        elif current is not None and current.born >= self._slots.processes - 1:
            self._let_go(kept)

    def _go_back(self, kept: ZygoteHandle, failure: BootFailed) -> None:
        self._kept = None
        self._take_over(kept)
        self._files.note()  # another edit is to be tried, not this one again
        message = f"one child was ready, the next ones are not, so the code before runs again: {failure.message}"
        self._reloads.fail(message, failure.traceback)

    def _let_go(self, kept: ZygoteHandle) -> None:
        self._kept = None
        kept.become(ZygoteState.RETIRED)

    # its files

    def follow(self, files: list[str], since_unix: float) -> None:
        """The code that holds was loaded from these after that time."""
        self._files.follow(files, since_unix)

    @property
    def _looks(self) -> bool:
        return self._watches and not self._closing and not self._reloads.wanted

    def look_at_files(self) -> None:
        """With `--watch`, before a job starts: if a file of the handlers is another by now it waits for a reload."""
        if self._looks and self._files.is_edited():
            self.ask(WATCH)
            self._slots.on_hold = self.candidate is not None

    def _hold(self) -> None:
        """A reload has ended: what waits for it starts, but for what waits for the next one."""
        self._slots.on_hold = self._watches and self._reloads.wanted

    # time

    def deadline_at(self) -> float:
        return self._files.look_at if self._looks else math.inf

    def keep_time(self, now_at: float) -> None:
        if self.candidate is not None:
            self._see_to_candidate(self.candidate)
        if self._kept is not None:
            self._see_to_kept(self._kept)
        if now_at >= self._files.look_at:
            self.look_at_files()

    # ends

    def lose(self, zygote: ZygoteHandle) -> None:
        """It has ended. Of the candidate `fail` is to be told, too."""
        if zygote is self._kept:
            self._kept = None

    def close(self) -> None:
        """None begins any more, and the one under way comes to nothing."""
        self._closing = True
        if self._kept is not None:
            self._let_go(self._kept)
        if self.candidate is not None:
            self._reloads.begin()  # nobody waits for another one
            self.fail(BootFailed("given up, as this supervisor drains", ""))
