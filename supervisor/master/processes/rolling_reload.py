"""A reload: the candidate takes over once it has a ready child, and the kept zygote comes back if later ones fail.
Runs in the master.

A candidate that fails has touched nothing of the current zygote.
"""

from collections.abc import Callable
from typing import Final

from supervisor import clock
from supervisor.master.jobs.retirement import Retirement
from supervisor.master.model.reload_log import WATCH, Reloaded, Reloads
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_starts import ChildStarts
from supervisor.master.processes.edit_watch import EditWatch
from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import BootFailed

#: After so many candidates in a row were discarded for newer code, the next one may finish. Otherwise code that is
#: edited more often than it can be imported would never run.
_MOST_DISCARDED: Final = 3
#: A candidate that has taken so long may hang for a reason that is gone by now.
_LONG_S: Final = 30.0


class RollingReload:
    def __init__(
        self,
        reload_log: Reloads,
        files: FileWatcher,
        edits: EditWatch,
        zygotes: Zygotes,
        starts: ZygoteStarts,
        children: ChildStarts,
        retirement: Retirement,
    ) -> None:
        self._zygotes = zygotes
        self._starts = starts
        self._children = children
        self._retirement = retirement
        self._log = reload_log
        self._files = files
        self._edits = edits
        self._discarded = 0  # candidates in a row
        self._closing = False

    @property
    def failure(self) -> BootFailed | None:
        """Why no handler can run."""
        return self._starts.failure or self._children.failure

    @property
    def may_mend(self) -> bool:
        """True if handlers that cannot run now may do so after the reload under way."""
        return self._zygotes.candidate is not None or self._zygotes.kept is not None

    # 1: it begins

    def ask(self, by: str, on_done: Callable[[Reloaded], None] | None = None) -> None:
        """Begin a reload: now, or after the one under way. That one is given up if its code is outdated.

        `on_done` is called once with what became of the reload, maybe before this returns.
        """
        self._log.ask(by, on_done)
        candidate = self._zygotes.candidate
        if self._closing:
            self._log.begin()
            self._log.fail("this supervisor drains")
        elif candidate is None:
            self._begin()
        elif self._discarded < _MOST_DISCARDED and self._is_outdated(candidate):
            self._discarded += 1
            self._discard_candidate()
            self._begin()

    def _is_outdated(self, candidate: ZygoteHandle) -> bool:
        """Return True if the code has changed since the candidate started, or if that was long ago."""
        is_slow = clock.monotonic() >= candidate.started_at + _LONG_S
        return is_slow or candidate.directory != self._starts.code_directory() or self._files.outdates_load()

    def _begin(self) -> None:
        self._log.begin()
        current = self._zygotes.current
        if current is not None and not self._starts.proven:
            self._zygotes.discard(current)  # it imports the code that was there before
        self._files.note()
        try:
            self._starts.start_candidate()
        except OSError as error:
            self.fail(BootFailed(f"no zygote can be started ({error})", ""))

    # 2: the candidate has imported the handlers

    def probe(self, candidate: ZygoteHandle) -> None:
        """Ask the candidate for one child, which gets no job."""
        candidate.become(ZygoteState.PROVING)
        self._zygotes.reserve_memory()
        try:
            self._children.probe(candidate)
        except OSError as error:
            self.fail(BootFailed(f"no child can be asked for ({error})", ""))

    # 3: the child is ready, or not

    def run_due(self, now_at: float) -> None:
        self._load_edit()  # first, because an edit outdates the candidate
        candidate = self._zygotes.candidate
        if candidate is not None:
            if candidate.proven:
                self._promote(candidate)
            elif candidate.state is ZygoteState.PROVING and candidate.failure is not None:
                self.fail(candidate.failure)
        kept = self._zygotes.kept
        if kept is not None:
            self._judge_current(kept)
        if now_at >= self.deadline_at():
            self._edits.look()
            self._load_edit()

    def deadline_at(self) -> float:
        """Return when to look at the files next, or -inf if an edit is to be loaded (monotonic s)."""
        return self._edits.deadline_at()

    def _load_edit(self) -> None:
        if self._edits.take_edit():
            self.ask(WATCH)

    def _promote(self, candidate: ZygoteHandle) -> None:
        zygotes, old = self._zygotes, self._zygotes.current
        zygotes.candidate = None
        if zygotes.kept is None and old is not None and old.proven:
            zygotes.kept = old
        boot_s = clock.monotonic() - candidate.started_at
        # First of all, because the takeover starts jobs.
        self._log.succeed(candidate.number, boot_s, zygotes.handlers, candidate.handlers)
        self._take_over(candidate)
        self._begin_next()

    def _take_over(self, new: ZygoteHandle) -> None:
        """Let the zygote `new` fork from now on. The others retire, except the kept one."""
        self._edits.reload_ended()
        zygotes, old = self._zygotes, self._zygotes.current
        outdated = [child for zygote in zygotes if zygote is not new for child in self._children.of(zygote)]
        if old is not None:
            if old.state is ZygoteState.BOOTING:
                zygotes.discard(old)
            else:
                old.become(ZygoteState.KEPT if old is zygotes.kept else ZygoteState.RETIRED)
        self._starts.on_takeover()
        self._children.on_takeover(new)
        self._make_current(new)
        self._retirement.on_reloaded(outdated, zygotes.handlers)

    def use_successor(self, zygote: ZygoteHandle) -> None:
        """Let a zygote fork that is the first one, or the successor of one that was lost."""
        self._make_current(zygote)
        self._retirement.on_reloaded((), self._zygotes.handlers)  # its files may have changed since the last load

    def _make_current(self, zygote: ZygoteHandle) -> None:
        assert zygote.report is not None
        self._zygotes.make_current(zygote)
        self._starts.use_code_of(zygote)
        self._files.follow(zygote.report.files, zygote.started_unix)

    def fail(self, failure: BootFailed) -> None:
        """The candidate has failed: discard it, and say so."""
        self._discard_candidate()
        self._files.add(failure.files)
        self._edits.reload_ended()
        self._log.fail(failure.message, failure.traceback)
        if self._begin_next():
            return
        if not self._starts.proven:
            self._starts.give_up(failure)
        elif self._zygotes.current is None:
            self._starts.plan(0.0)

    def _discard_candidate(self) -> None:
        candidate, self._zygotes.candidate = self._zygotes.candidate, None
        if candidate is not None:
            self._zygotes.discard(candidate)

    def _begin_next(self) -> bool:
        """Begin the next reload if one is wanted. Return True if so."""
        self._discarded = 0
        is_wanted = self._log.wanted
        if is_wanted:
            self._begin()
        return is_wanted

    # 4: the new zygote fills the pool, or fails

    def _judge_current(self, kept: ZygoteHandle) -> None:
        """Go back to the kept zygote if the current one fails, and retire it once the current one has filled the pool.

        The first child was ready, but the next ones may fail: what they open may exist once only, or be used up.
        """
        current, failure = self._zygotes.current, self.failure
        if failure is not None and self._zygotes.candidate is None:
            self._go_back(kept, failure)
        elif current is not None and self._children.is_pool_filled_by(current):
            self._retire_kept()

    def _go_back(self, kept: ZygoteHandle, failure: BootFailed) -> None:
        self._zygotes.kept = None
        self._take_over(kept)
        self._files.note()  # wait for another edit, instead of trying this one again
        message = f"one child was ready, the next ones are not, so the code before runs again: {failure.message}"
        self._log.fail(message, failure.traceback)

    def _retire_kept(self) -> None:
        kept, self._zygotes.kept = self._zygotes.kept, None
        if kept is not None:
            kept.become(ZygoteState.RETIRED)

    def close(self) -> None:
        """Begin no reload any more, and give up the one under way."""
        self._closing = True
        self._edits.close()
        self._retire_kept()
        if self._zygotes.candidate is not None:
            self._log.begin()  # nothing waits for another one
            self.fail(BootFailed("given up, as this supervisor drains", ""))
