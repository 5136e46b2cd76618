"""A reload, there and back: the *candidate* takes over once it has shown that it is of use; if its next children are
not ready, the zygote before does so again. Runs in master.

Owns the candidate, the zygote that is kept, and the watching of the files. What it is to fork, and to end, is `Forks`'.
A candidate that is of no use has touched nothing that is the current one's.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

from supervisor import clock
from supervisor.config import Config
from supervisor.ops.events import Events
from supervisor.pool.births import Births
from supervisor.pool.messages import BootFailed, HandlerSettings
from supervisor.pool.reload import WATCH, Reloaded, Reloads
from supervisor.pool.slots import Slots
from supervisor.pool.states import ZygoteState
from supervisor.pool.watching import Watching
from supervisor.pool.zygotes import Zygote


class Forking(Protocol):
    """Whoever has the zygotes fork, and end."""

    handlers: dict[str, HandlerSettings]

    @property
    def current(self) -> Zygote | None:
        """The one that forks, or boots for that."""

    @property
    def failure(self) -> BootFailed | None:
        """Why no handler can run, as things are."""

    def start_anew(self) -> Zygote:
        """One that loads the code from where it lies now. Raises OSError."""

    def drop_unproven(self) -> None:
        """Where no zygote could import the handlers yet, the one that tries is wanted no more."""

    def take_over(self, new: Zygote, kept: Zygote | None) -> None:
        """This one forks from now on; all others retire, but for the one that is `kept`."""

    def drop(self, zygote: Zygote) -> None:
        """It is not wanted any more, whatever may become of it."""

    def do_without(self, failure: BootFailed) -> None:
        """No candidate takes over."""


class Handover:
    def __init__(self, config: Config, slots: Slots, events: Events, births: Births, forks: Forking) -> None:
        self._slots = slots
        self._births = births
        self._forks = forks
        self._reloads = Reloads(events)
        self._watching = Watching() if config.watch else None
        self._closing = False
        self.candidate: Zygote | None = None
        self._kept: Zygote | None = None  # the one that forked before, until the new one has filled its place

    @property
    def last(self) -> dict[str, Any] | None:
        """What has come of the last one: at_unix, by, outcome (completed or failed), message, traceback."""
        return self._reloads.last

    @property
    def may_mend(self) -> bool:
        """Whether handlers that cannot run may do so yet."""
        return self.candidate is not None or self._kept is not None

    # there

    def begin(self, by: str, on_done: Callable[[Reloaded], None] | None = None) -> None:
        """`on_done` is told what has come of it, once; maybe before this returns."""
        self._reloads.ask(by, on_done)
        if self._closing:
            self._reloads.fail("this supervisor drains")
            return
        self._drop_candidate()  # it may have read what has changed since
        self._forks.drop_unproven()
        if self._watching is not None:
            self._watching.note()
        try:
            self.candidate = self._forks.start_anew()
        except OSError as error:
            self.fail(BootFailed(f"no zygote can be started ({error})", ""))

    def _drop_candidate(self) -> None:
        candidate, self.candidate = self.candidate, None
        if candidate is not None:
            self._forks.drop(candidate)

    def probe(self, candidate: Zygote) -> None:
        """It has imported the handlers."""
        try:
            self._births.probe(candidate)
        except OSError as error:
            self.fail(BootFailed(f"no child can be asked for ({error})", ""))

    def _see_to_candidate(self, candidate: Zygote) -> None:
        if candidate.fertile:
            self._promote(candidate)
        elif candidate.state is ZygoteState.PROVING and candidate.failure is not None:
            self.fail(candidate.failure)

    def _promote(self, candidate: Zygote) -> None:
        before, old = self._forks.handlers, self._forks.current
        if self._kept is None and old is not None and old.fertile:
            self._kept = old
        self._take_over(candidate)
        boot_s = clock.monotonic() - candidate.started_at
        self._reloads.succeed(candidate.number, boot_s, before, self._forks.handlers)

    def _take_over(self, new: Zygote) -> None:
        self.candidate = None
        self._slots.on_hold = False
        self._forks.take_over(new, self._kept)

    def fail(self, failure: BootFailed) -> None:
        """The candidate is of no use."""
        self._drop_candidate()
        if self._watching is not None:
            self._watching.add(failure.files)
        self._slots.on_hold = False
        self._reloads.fail(failure.message, failure.traceback)
        self._forks.do_without(failure)

    # back

    def _see_to_kept(self, kept: Zygote) -> None:
        """One child was ready, but the others may not be: what they open may be there once only, or used up."""
        current, failure = self._forks.current, self._forks.failure
        if failure is not None and self.candidate is None:
            self._go_back(kept, failure)
        elif current is not None and current.born >= self._slots.processes - 1:
            self._let_go(kept)

    def _go_back(self, kept: Zygote, failure: BootFailed) -> None:
        self._kept = None
        self._take_over(kept)
        if self._watching is not None:
            self._watching.note()  # another edit is to be tried, not this one again
        message = f"one child was ready, the next ones are not, so the code before runs again: {failure.message}"
        self._reloads.fail(message, failure.traceback)

    def _let_go(self, kept: Zygote) -> None:
        self._kept = None
        kept.become(ZygoteState.RETIRED)

    # its files

    def follow(self, files: list[str], since_unix: float) -> None:
        """The code that holds was loaded from these after that time."""
        if self._watching is not None:
            self._watching.follow(files, since_unix)

    def look_at_files(self) -> None:
        """With `--watch`, before a job starts: if a file of the handlers is another by now it waits for a reload."""
        if self._watching is not None and not self._closing and self._watching.is_changed():
            self.begin(WATCH)
            self._slots.on_hold = self.candidate is not None

    # time

    def deadline_at(self) -> float:
        return math.inf if self._watching is None or self._closing else self._watching.look_at

    def keep_time(self, now_at: float) -> None:
        if self.candidate is not None:
            self._see_to_candidate(self.candidate)
        if self._kept is not None:
            self._see_to_kept(self._kept)
        if self._watching is not None and now_at >= self._watching.look_at:
            self.look_at_files()

    # ends

    def lose(self, zygote: Zygote) -> bool:
        """It has ended. Answers whether it was the candidate."""
        was_candidate = zygote is self.candidate
        if was_candidate:
            self.candidate = None
        if zygote is self._kept:
            self._kept = None
        return was_candidate

    def close(self) -> None:
        """None begins any more, and the one under way comes to nothing."""
        self._closing = True
        if self._kept is not None:
            self._let_go(self._kept)
        if self.candidate is not None:
            self.fail(BootFailed("given up, as this supervisor drains", ""))
