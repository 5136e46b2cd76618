"""Zygotes coming and going: the *current* one forks, is started anew when it is lost, and gives way to the *candidate*
of a reload once that has shown that it is of use. Runs in master.

Owns the zygotes' lives and the watching of their sockets; the children are `Births`. A candidate that is of no use has
touched nothing that is the current one's.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config
from supervisor.ops.events import Events
from supervisor.pool import endings, leftovers, memory, removal
from supervisor.pool.births import AGAIN_S, STACKS_S, Births, times
from supervisor.pool.breaker import Breaker
from supervisor.pool.budget import Budget
from supervisor.pool.children import Child
from supervisor.pool.inbox import Inbox
from supervisor.pool.messages import (
    BootFailed,
    HandlerSettings,
    Ready,
    Reaped,
    Spawned,
    SpawnFailed,
    zygote_directory,
)
from supervisor.pool.place import Place
from supervisor.pool.reload import WATCH, Reloaded, Reloads
from supervisor.pool.slots import Slots
from supervisor.pool.suspicion import Suspicion
from supervisor.pool.watching import Watching
from supervisor.pool.zygotes import Zygote, boot_of, fork_warnings, sandbox_warnings

#: One that has closed its control socket is most likely about to exit.
_GOING_S: Final = 0.2
#: A retired one whose last child has ended must have exited by then.
_EXIT_S: Final = 5.0
#: All of them have been let go: they must have ended their children by then.
_END_S: Final = 2.0
_ZYGOTE_LOST: Final = "zygote-lost"


@dataclass(frozen=True, slots=True, eq=False)
class ZygoteSpoke:
    """What a zygote says can be read."""

    zygote: Zygote


class Forks:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        inbox: Inbox[Any],
        events: Events,
        workdir: Path,
        budget: Budget,
        environment: Mapping[str, str],
        on_gone: Callable[[Child, Reaped | None, str | None], None],
        on_line: Callable[[Child, int, bytes], None],
        on_reloaded: Callable[[Sequence[Child], Mapping[str, HandlerSettings]], None],
    ) -> None:
        """`environment`: of the zygotes. `on_gone`, `on_line`: as `Births` has them. `on_reloaded(children, handlers)`:
        another zygote forks; these children have the code before.
        """
        self._config = config
        self._slots = slots
        self._inbox = inbox
        self._events = events
        self._workdir = workdir.absolute()  # zygotes go elsewhere
        self._budget = budget
        self._environment = environment
        self._on_reloaded = on_reloaded
        self._place = Place.here()
        self._directory = self._place.now()  # where the handlers of the current zygote lie
        self._zygotes: dict[int, Zygote] = {}
        self._current: Zygote | None = None  # the one that forks
        self._candidate: Zygote | None = None  # the one that is to
        self._before: Zygote | None = None  # the one that did before a reload, until the new one has filled its place
        self._reloads = Reloads(events)
        self._watching = Watching() if config.watch else None
        self._started = 0
        self._start_at: float | None = None
        self._proven = False  # there was a zygote that could import the handlers
        self._barren = Breaker()  # zygotes of which no child got ready
        self._suspicion = Suspicion(slots)
        self._exits: dict[int, int] = {}  # wait statuses of zygotes, by pid
        self._failure: BootFailed | None = None
        self._closing = False
        self.births = Births(
            config, slots, inbox, events, budget, self._zygotes, self._retire, on_gone, on_line
        )  # fmt: skip
        self.handlers: dict[str, HandlerSettings] = {}
        self.once: tuple[str, ...] = ()  # those of them whose jobs never start twice
        self.sandbox: dict[str, str] = {}  # of what its children are confined by, each part: on, or why not

    @property
    def ready(self) -> bool:
        """Whether jobs can be run now or as soon as a child is forked."""
        return self._current is not None and self._current.ready

    @property
    def boot_failure(self) -> BootFailed | None:
        """Why no handler can run: the master is to drain and say so, unless it has another reason by now. What a
        reload under way may mend is not said yet.
        """
        mendable = self._candidate is not None or self._before is not None
        return None if mendable else self._failure or self.births.failure

    @property
    def reloading(self) -> bool:
        return self._candidate is not None

    @property
    def last_reload(self) -> dict[str, Any] | None:
        """What has come of the last one: at_unix, by, outcome (completed or failed), message, traceback."""
        return self._reloads.last

    def zygotes_status(self) -> list[dict[str, Any]]:
        return [
            {
                "zygote": zygote.number, "pid": zygote.pid, "state": self._state_of(zygote),
                "handlers": sorted(zygote.handlers),
            }
            for zygote in self._zygotes.values()
        ]  # fmt: skip

    def _state_of(self, zygote: Zygote) -> str:
        if zygote is self._candidate:
            return "candidate"
        if zygote is not self._current:
            return "retired"
        return "current" if zygote.ready else "booting"

    # a zygote's start

    def start_zygote(self) -> None:
        self._start_at = None
        try:
            # The code of the one before, as long as that is there: no other has shown yet that it is of use.
            gone = self._directory and not os.path.isdir(self._directory)
            self._current = self._start(self._place.now() if gone else self._directory)
        except OSError as error:
            if self._started == 1:
                raise
            self._warn(f"no zygote can be started ({error}); trying again in {AGAIN_S:g} s")
            self._start_at = clock.monotonic() + AGAIN_S

    def _start(self, directory: str) -> Zygote:
        self._started += 1
        workdir = Path(zygote_directory(str(self._workdir), self._started))
        workdir.mkdir(mode=0o700, parents=True)
        boot = boot_of(self._config, workdir, self.births.open_files, directory)
        deadline_at = clock.monotonic() + self._config.boot_timeout_s
        zygote = self._zygotes[self._started] = Zygote(self._started, boot, self._environment, deadline_at)
        self._inbox.watch(zygote.control, ZygoteSpoke(zygote))
        self._events.emit("zygote.spawned", zygote=zygote.number, pid=zygote.pid)
        return zygote

    def _warn(self, message: str) -> None:
        self._events.emit("master.warned", message=message)

    def on_zygote_spoke(self, zygote: Zygote) -> None:
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid) if fds:
                    self.births.on_spawned(zygote, number, pid, fds[0])
                case Spawned():
                    # No room for its pidfd: a child that we cannot kill must not have a job.
                    self._retire(zygote, "the descriptor of a child was lost: too many open files")
                    self._kill(zygote)
                case Reaped():
                    self.births.on_reaped(zygote, report)
                case Ready():
                    self._on_ready(zygote, report)
                case SpawnFailed():
                    self.births.on_spawn_failed(zygote, report)
                case BootFailed():
                    zygote.failure = zygote.failure or report  # it may go on once its stacks are written
                case None:
                    self._on_lost(zygote)

    def _on_ready(self, zygote: Zygote, said: Ready) -> None:
        if zygote.retired:
            return  # dropped meanwhile
        boot_s, zygote.ready, zygote.deadline_at = clock.monotonic() - zygote.started_at, True, None
        self._proven, zygote.failure, zygote.runs_hooks, zygote.said = True, None, said.before_fork, said
        zygote.inherited = memory.of(zygote.pid) or memory.NOTHING
        zygote.handlers = {name: HandlerSettings(**settings) for name, settings in said.handlers.items()}
        self._events.emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(zygote.handlers),
            boot_ms=round(boot_s * 1000), threads=said.threads or None, descriptors=said.descriptors or None,
        )  # fmt: skip
        for warning in fork_warnings(said):
            self._warn(warning)
        if said.sandbox != self.sandbox:
            self._say_sandbox(zygote, said)
        if zygote is self._candidate:
            self._probe(zygote)
        else:
            self.births.fill_now()
            self._follow(zygote, said)
            self._on_reloaded((), self.handlers)  # the files may be others than those that the last one loaded

    def _say_sandbox(self, zygote: Zygote, said: Ready) -> None:
        self._events.emit("sandbox.reported", zygote=zygote.number, sandbox=self._config.sandbox, parts=said.sandbox)
        for warning in sandbox_warnings(said):
            self._warn(warning)

    def _follow(self, current: Zygote, said: Ready) -> None:
        """What it has said of its handlers holds."""
        self.handlers = current.handlers
        self.once = tuple(name for name, settings in self.handlers.items() if settings.at_most_once)
        self.sandbox = dict(said.sandbox)
        self._directory = current.directory
        if self._watching is not None:
            self._watching.follow(said.files, current.started_unix)
        if warning := self._budget.stand_on(current.inherited):
            self._warn(warning)

    def fill(self, now_at: float) -> None:
        """Ask for the children that are missing."""
        if self._current is not None and self._current.ready:
            self.births.fill(self._current, now_at)

    # a reload

    def reload(self, by: str, on_done: Callable[[Reloaded], None] | None = None) -> None:
        """Have another zygote import the handlers anew and, once a child of it is ready, take over. Until then, and if
        that fails, nothing changes. `on_done` is told what has come of it, once; maybe before this returns.
        """
        self._reloads.ask(by, on_done)
        if self._closing:
            self._reloads.fail("this supervisor drains")
            return
        if self._candidate is not None:
            self._drop(self._candidate)  # it may have read what has changed since
        if self._current is not None and not self._proven:
            self._drop(self._current)
        if self._watching is not None:
            self._watching.note()
        try:
            self._candidate = self._start(self._place.now())
        except OSError as error:
            self._fail_reload(BootFailed(f"no zygote can be started ({error})", ""))

    def _drop(self, zygote: Zygote) -> None:
        """It is not wanted any more, whatever may become of it."""
        if zygote is self._candidate:
            self._candidate = None
        if zygote is self._current:
            self._current = None
        zygote.retired = zygote.outdated = True
        self._kill(zygote)

    def _kill(self, zygote: Zygote) -> None:
        if zygote.pid not in self._exits:  # else the pid may be anybody's
            zygote.kill()

    def _probe(self, candidate: Zygote) -> None:
        try:
            self.births.probe(candidate)
        except OSError as error:
            self._fail_reload(BootFailed(f"no child can be asked for ({error})", ""))

    def _see_to_candidate(self, candidate: Zygote) -> None:
        if candidate.fertile:
            self._promote(candidate)
        elif candidate.ready and candidate.failure is not None:
            self._fail_reload(candidate.failure)

    def _promote(self, candidate: Zygote) -> None:
        before, old = self.handlers, self._current
        if self._before is None and old is not None and old.fertile:
            self._before = old
        self._take_over(candidate)
        self._reloads.succeed(candidate.number, clock.monotonic() - candidate.started_at, before, self.handlers)

    def _take_over(self, new: Zygote) -> None:
        """It forks from now on, and what its handlers say holds."""
        outdated = []
        for zygote in self._zygotes.values():
            if zygote is not new and not zygote.outdated:
                outdated += self.births.of(zygote)
                self._replace(zygote)
        self._candidate, self._current, self._start_at = None, new, None
        self._failure = None
        self._barren.succeed()
        self.births.begin_anew(new)
        assert new.said is not None
        self._follow(new, new.said)
        self._hold(False)
        self._on_reloaded(outdated, self.handlers)

    def _see_to_place(self, before: Zygote) -> None:
        """One child was ready, but the others may not be: what they open may be there once only, or used up."""
        failure = self._failure or self.births.failure
        if failure is not None and self._candidate is None:
            self._go_back(before, failure)
        elif self._current is not None and self._current.born >= self._slots.processes - 1:
            self._before = None

    def _go_back(self, before: Zygote, failure: BootFailed) -> None:
        self._before = None
        before.retired = before.outdated = False
        self._take_over(before)
        if self._watching is not None:
            self._watching.note()  # another edit is to be tried, not this one again
        message = f"one child was ready, the next ones are not, so the code before runs again: {failure.message}"
        self._reloads.fail(message, failure.traceback)

    def _replace(self, old: Zygote) -> None:
        """It ends with its last child; one that is not ready yet, at once."""
        old.retired = old.outdated = True
        if not old.ready:
            self._kill(old)

    def _fail_reload(self, failure: BootFailed) -> None:
        """The candidate is of no use."""
        if self._candidate is not None:
            self._drop(self._candidate)
        if self._watching is not None:
            self._watching.add(failure.files)
        self._hold(False)
        self._reloads.fail(failure.message, failure.traceback)
        if not self._proven:
            self._failure = self._failure or failure
        elif self._current is None and self._start_at is None:
            self._start_at = clock.monotonic()

    # its files

    def look_at_files(self) -> None:
        """With `--watch`, before a job starts: if a file of the handlers is another by now it waits for a reload."""
        if self._watching is not None and not self._closing and self._watching.is_changed():
            self.reload(WATCH)
            self._hold(self.reloading)

    def _hold(self, on: bool) -> None:
        self._slots.on_hold = on

    # its end

    def _on_lost(self, zygote: Zygote) -> None:
        """Its end takes its children along. What they ran is interrupted: the cause most likely lies elsewhere."""
        self._inbox.forget(zygote.control)
        zygote.let_go()
        del self._zygotes[zygote.number]
        is_candidate = zygote is self._candidate
        if zygote is self._current:
            self._current = None
        if is_candidate:
            self._candidate = None
        if zygote is self._before:
            self._before = None
        status = self._status_of(zygote)
        lost = zygote.ready and not zygote.retired and not is_candidate
        if lost:
            self._suspicion.on_loss(self.births.of(zygote))
        children = self.births.lose(zygote, _ZYGOTE_LOST)
        if not zygote.finished or status:  # else it has seen to them itself
            self._end_strangers(zygote)
        removal.remove(str(zygote.workdir))
        if lost or any(child.sent for child in children):
            self._say_lost(zygote, status, children)
        for child in children:
            self.births.bury(child, None, "lost" if lost and self._suspicion.convicted else _ZYGOTE_LOST)
        wait_s = self._suspicion.wait_s
        if is_candidate:
            self._fail_reload(self._why_no_use(zygote, status))
        elif not zygote.retired:
            wait_s = max(wait_s, self._count(zygote, self._why_no_use(zygote, status)))
        if self._current is None and self._start_at is None and self._proven:
            self._start_at = clock.monotonic() + wait_s
        zygote.stacks.close()

    def _say_lost(self, zygote: Zygote, status: int, children: list[Child]) -> None:
        running = sum(1 for child in children if child.sent)
        reason = endings.death_reason(status)
        self._events.emit("zygote.lost", zygote=zygote.number, status=reason, running=running)
        if zygote.failure is not None:
            self._warn(zygote.failure.message)

    def _status_of(self, zygote: Zygote) -> int:
        """Its wait status; it may have closed its socket and live on, which ends now."""
        if zygote.pid not in self._exits:
            zygote.await_end(_GOING_S)  # its own cause is to be told, not ours
            self._exits[zygote.pid] = os.waitpid(zygote.pid, 0)[1]
        return self._exits.pop(zygote.pid)

    def _end_strangers(self, zygote: Zygote) -> None:
        """What the lost zygote's children had started has come to us: it must not meet the next run of their jobs."""
        own = zygote.strangers | {other.pid for other in self._zygotes.values()}
        leftovers.end_strangers(own, clock.monotonic() + leftovers.TRY_S)

    def _why_no_use(self, zygote: Zygote, status: int) -> BootFailed:
        """Why no child of it got ready, if none did."""
        failure = zygote.failure
        reason = endings.death_reason(status)
        if failure is None and zygote.ready:
            what = f"the process that forks the children ended ({reason}) before any of them was ready"
            failure = BootFailed(what, "")
        elif failure is None:
            failure = BootFailed(
                f"the process that imports {self._config.handlers!r} ended meanwhile ({reason});"
                " look for the module that exits or crashes when it is imported",
                "",
            )
        return replace(failure, traceback=failure.traceback or zygote.stacks.read())

    def _count(self, zygote: Zygote, failure: BootFailed) -> float:
        """It forks no more. `failure`: what is wrong if no child of it got ready. Answers how long to wait before the
        next one is started.
        """
        if zygote.fertile:
            self._barren.succeed()
            return 0.0
        if not self._proven:
            self._failure = self._failure or failure
            return 0.0
        wait_s = self._barren.fail()
        self._events.emit(
            "zygote.failed", zygote=zygote.number, message=failure.message, traceback=failure.traceback or None
        )
        if self._barren.broken:
            self._failure = self._failure or failure
        else:
            in_a_row = times(self._barren.in_a_row)
            self._warn(
                f"no child of zygote {zygote.number} was ready{in_a_row}; the next one is started in {wait_s:g} s"
            )
        return wait_s

    def _retire(self, zygote: Zygote, reason: str) -> None:
        """It does not answer. Its children may go on; the next ones come from another."""
        failure = BootFailed(f"no child was ready: {reason}", "")
        if zygote is self._candidate:
            self._fail_reload(failure)
        elif zygote is self._current:
            self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
            zygote.retired = True
            self._current = None
            self._start_at = clock.monotonic() + self._count(zygote, failure)
        for child in self.births.of(zygote):
            if child.pidfd is None:
                if not child.sent:
                    self.births.forget(child)  # if it lives, now or later, it finds its sockets closed and exits
                else:
                    self._kill(zygote)  # we could neither see nor bring about this child's end, but by its zygote's

    def _finish(self, zygote: Zygote) -> None:
        """It is retired, and its last child has ended."""
        zygote.finish()
        zygote.deadline_at = zygote.deadline_at or clock.monotonic() + _EXIT_S

    def reap_own_children(self) -> None:
        """On SIGCHLD: zygotes, and whatever orphans are left to us as PID 1 or subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for zygote in self._zygotes.values():
                zygote.strangers.discard(pid)  # the pid may come again, as anybody's
                if zygote.pid == pid:
                    self._exits[pid] = status

    # time

    def deadline_at(self) -> float:
        deadlines = [math.inf if self._start_at is None or self._closing else self._start_at]
        deadlines += [zygote.deadline_at for zygote in self._zygotes.values() if zygote.deadline_at is not None]
        if self.ready:
            deadlines.append(self.births.fill_at())
        if self._watching is not None and not self._closing:
            deadlines.append(self._watching.look_at)
        return min(self.births.deadline_at(), *deadlines)

    def keep_time(self, now_at: float) -> None:
        if self._exits:
            self._lose_the_ended()
        if self._start_at is not None and now_at >= self._start_at and not self._closing:
            self.start_zygote()
        for zygote in self._zygotes.values():
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                self._on_overdue(zygote, now_at)
        self.births.keep_time(now_at)
        if self._candidate is not None:
            self._see_to_candidate(self._candidate)
        if self._before is not None:
            self._see_to_place(self._before)
        if self._watching is not None and now_at >= self._watching.look_at:
            self.look_at_files()
        for zygote in self._zygotes.values():
            if zygote.retired and zygote is not self._before and not zygote.finished and not self.births.of(zygote):
                self._finish(zygote)

    def _lose_the_ended(self) -> None:
        """Their sockets may not tell: what they have forked while they imported has them open as well."""
        for zygote in [each for each in self._zygotes.values() if each.pid in self._exits]:
            self.on_zygote_spoke(zygote)
            if zygote.number in self._zygotes:
                self._on_lost(zygote)

    def _on_overdue(self, zygote: Zygote, now_at: float) -> None:
        if not zygote.retired and zygote.failure is None:
            zygote.failure = BootFailed(
                f"{self._config.handlers!r} was not imported within {self._config.boot_timeout_s:g} s;"
                " import less, or raise --boot-timeout",
                "",
            )
            zygote.write_stacks()
            zygote.deadline_at = now_at + STACKS_S
        else:
            zygote.deadline_at = None
            zygote.kill()

    # the end

    def fork_no_more(self) -> None:
        """Who ends from now on has no successor."""
        self._closing = True
        self._before = None
        self.births.fork_no_more()
        if self._candidate is not None:
            self._fail_reload(BootFailed("given up, as this supervisor drains", ""))

    def close(self, patience_s: float) -> None:
        """End all zygotes, and with them all children, and wait for that; those that hang are killed after
        `patience_s`, and at most 2 s. One that still imports does not hear us, and has no children.
        """
        kill_at = clock.monotonic() + min(patience_s, _END_S)
        for zygote in self._zygotes.values():
            self._inbox.forget(zygote.control)
            zygote.let_go()
        for zygote in self._zygotes.values():
            left_s = max(0.0, kill_at - clock.monotonic())
            zygote.await_end(left_s if zygote.ready else min(left_s, _GOING_S))
        for zygote in self._zygotes.values():
            self._end_strangers(zygote)  # of one that was still importing, or was killed
