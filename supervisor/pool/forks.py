"""Zygotes and children coming and going: as many as are needed, replaced as they end. Runs in master.

Owns the zygotes' lives and the watching of their and the children's sockets. What a child's end means for its jobs is
decided by `on_gone`.
"""

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config
from supervisor.ops.events import Events
from supervisor.pool import endings, kernel, leftovers, memory
from supervisor.pool.breaker import Breaker
from supervisor.pool.budget import Budget
from supervisor.pool.children import Child
from supervisor.pool.inbox import Inbox
from supervisor.pool.messages import BootFailed, HandlerSettings, Ready, Reaped, Spawned, SpawnFailed
from supervisor.pool.slots import Slots
from supervisor.pool.states import ChildState
from supervisor.pool.suspicion import Suspicion
from supervisor.pool.zygotes import Zygote, boot_of, fork_warnings

#: A zygote that was asked for a child must have said something by then, or it is retired.
_SPAWN_S: Final = 10.0
#: Children that do not get ready any more, where others did, are so long taken for an outage of what they need.
_OUTAGE_S: Final = 10.0
#: A child that ends by itself within this, without having answered a job, is as one that was never ready.
_PROBATION_S: Final = 10.0
#: One that has closed its control socket is most likely about to exit.
_GOING_S: Final = 0.2
#: A retired one whose last child has ended must have exited by then.
_EXIT_S: Final = 5.0
#: A child is dead: its zygote must have ended its leftovers and said so by then.
_REPORT_S: Final = 2.0
#: How long a master looks for what the children of a lost zygote, or of one that hangs, have left running.
_LEFTOVERS_S: Final = 1.0
#: Between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.2
#: Between two looks at the memory of a zygote that forks.
_ZYGOTE_LOOK_S: Final = 0.1
#: When what the kernel has refused is tried again.
_AGAIN_S: Final = 1.0
#: Descriptors that children leave to the rest of us: pidfds of those under way, looks at memory, payloads, Redis.
_KEPT_FREE: Final = 24
#: Why a child is killed that does not get ready.
NOT_READY: Final = "boot"
_ZYGOTE_LOST: Final = "zygote-lost"


# What can become readable.


@dataclass(frozen=True, slots=True, eq=False)
class ZygoteSpoke:
    zygote: Zygote


@dataclass(frozen=True, slots=True, eq=False)
class ChildSpoke:
    child: Child


@dataclass(frozen=True, slots=True, eq=False)
class ChildPrinted:
    child: Child


@dataclass(frozen=True, slots=True, eq=False)
class ChildEnded:
    child: Child


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
    ) -> None:
        """`environment`: of the zygotes. `on_gone(child, its end if known, why we killed it)` settles what it held."""
        self._config = config
        self._slots = slots
        self._inbox = inbox
        self._events = events
        self._workdir = workdir
        self._budget = budget
        self._environment = environment
        self._on_gone = on_gone
        self._on_line = on_line
        self._zygotes: dict[int, Zygote] = {}
        self._current: Zygote | None = None  # the one that forks
        self._started = 0
        self._start_at: float | None = None
        self._spawn_after_at = 0.0
        self._proven = False  # there was a zygote that could import the handlers
        self._barren = Breaker()  # zygotes of which no child got ready
        self._stillborn = Breaker()  # children that did not get ready, each forked after the last one's end
        self._stillborn_at = 0.0  # when the last one of them ended
        self._stillborn_since_at = 0.0  # and the first
        self._fertile = False  # a child has been ready, sometime
        self._unready: dict[Child, Zygote] = {}  # children that have not been seen ready
        self._on_trial: Child | None = None  # the first one that is ready after some that failed
        self._kill_at: dict[Child, float] = {}  # of them those that are overdue, while they write their stacks
        self._suspicion = Suspicion(slots)
        self._exits: dict[int, int] = {}  # wait statuses of zygotes, by pid
        self.handlers: dict[str, HandlerSettings] = {}
        self.once: tuple[str, ...] = ()  # those of them whose jobs never start twice
        self.boot_failure: BootFailed | None = None
        self._closing = False
        self._open_files = kernel.allow_open_files()
        self._most_files = kernel.most_open_files()

    # zygotes

    @property
    def ready(self) -> bool:
        """Whether jobs can be run now or as soon as a child is forked."""
        return self._current is not None and self._current.ready

    def start_zygote(self) -> None:
        self._start_at = None
        self._started += 1
        try:
            zygote = self._exec_zygote()
        except OSError as error:
            if self._started == 1:
                raise
            self._start_at = self._try_again(f"no zygote can be started ({error})")
            return
        self._zygotes[zygote.number] = self._current = zygote
        self._inbox.watch(zygote.control, ZygoteSpoke(zygote))
        self._events.emit("zygote.spawned", zygote=zygote.number, pid=zygote.pid)

    def _exec_zygote(self) -> Zygote:
        workdir = self._workdir / f"zygote-{self._started}"
        workdir.mkdir(mode=0o700, parents=True)
        boot = boot_of(self._config, workdir, self._open_files)
        return Zygote(self._started, boot, self._environment, clock.monotonic() + self._config.boot_timeout_s)

    def _try_again(self, why: str) -> float:
        """Warn of what the kernel refuses; answers when it is tried again."""
        self._warn(f"{why}; trying again in {_AGAIN_S:g} s")
        return clock.monotonic() + _AGAIN_S

    def on_zygote_spoke(self, zygote: Zygote) -> None:
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid) if fds:
                    self._on_spawned(zygote, number, pid, fds[0])
                case Spawned():
                    # No room for its pidfd: a child that we cannot kill must not have a job.
                    self._retire(zygote.number, "the descriptor of a child was lost: too many open files")
                    zygote.kill()
                case Reaped():
                    self._on_reaped(zygote, report)
                case Ready():
                    self._on_ready(zygote, report)
                case SpawnFailed():
                    self._on_spawn_failed(zygote, report)
                case BootFailed():
                    zygote.failure = zygote.failure or report  # it may go on once its stacks are written
                case None:
                    self._on_zygote_lost(zygote)

    def _on_ready(self, zygote: Zygote, said: Ready) -> None:
        boot_s, zygote.ready, zygote.deadline_at = clock.monotonic() - zygote.started_at, True, None
        self._proven, zygote.failure, zygote.runs_hooks = True, None, said.before_fork
        self._spawn_after_at = 0.0
        zygote.inherited = memory.of(zygote.pid) or memory.NOTHING
        self.handlers = {name: HandlerSettings(**settings) for name, settings in said.handlers.items()}
        self.once = tuple(name for name, settings in self.handlers.items() if settings.at_most_once)
        self._events.emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(self.handlers),
            boot_ms=round(boot_s * 1000), threads=said.threads or None, descriptors=said.descriptors or None,
        )  # fmt: skip
        for warning in (*fork_warnings(said), self._budget.stand_on(zygote.inherited)):
            if warning is not None:
                self._warn(warning)

    def _warn(self, message: str) -> None:
        self._events.emit("master.warned", message=message)

    def _on_zygote_lost(self, zygote: Zygote) -> None:
        """Its end takes its children along. What they ran is interrupted: the cause most likely lies elsewhere."""
        self._inbox.forget(zygote.control)
        zygote.let_go()
        del self._zygotes[zygote.number]
        if zygote is self._current:
            self._current = None
        status = self._status_of(zygote)
        children = [child for child in self._slots if child.zygote == zygote.number]
        lost = zygote.ready and not zygote.retired
        if lost:
            self._suspicion.on_loss(children)
        for child in children:
            self._note_ready(child)
            child.kill(_ZYGOTE_LOST)
        kernel.await_ends([child.pidfd for child in children if child.pidfd is not None], _REPORT_S)
        self._end_strangers(zygote)
        shutil.rmtree(zygote.workdir, ignore_errors=True)
        if lost:
            running = sum(1 for child in children if child.sent)
            reason = endings.death_reason(status)
            self._events.emit("zygote.lost", zygote=zygote.number, status=reason, running=running)
            if zygote.failure is not None:
                self._warn(zygote.failure.message)
        for child in children:
            self._bury(child, None, "lost" if lost and self._suspicion.convicted else _ZYGOTE_LOST)
        wait_s = self._suspicion.wait_s
        if not zygote.retired and not zygote.fertile:
            failure = zygote.failure or self._no_use(zygote, status)
            failure = replace(failure, traceback=failure.traceback or zygote.stacks.read())
            wait_s = max(wait_s, self._on_barren(zygote, failure))
        if self._current is None and self._start_at is None:
            self._start_at = clock.monotonic() + wait_s
        zygote.stacks.close()

    def _no_use(self, zygote: Zygote, status: int) -> BootFailed:
        reason = endings.death_reason(status)
        if zygote.ready:
            return BootFailed(f"the process that forks the children ended ({reason}) before any of them was ready", "")
        return BootFailed(
            f"the process that imports {self._config.handlers!r} ended meanwhile ({reason});"
            " look for the module that exits or crashes when it is imported",
            "",
        )

    def _on_barren(self, zygote: Zygote, failure: BootFailed) -> float:
        """No child of it got ready. Answers how long to wait before the next one is started."""
        if not self._proven:
            self._give_up(failure)
            return 0.0
        wait_s = self._barren.fail()
        self._events.emit(
            "zygote.failed", zygote=zygote.number, message=failure.message, traceback=failure.traceback or None
        )
        if self._barren.broken:
            self._give_up(failure)
        else:
            times = _times(self._barren.in_a_row)
            self._warn(f"no child of zygote {zygote.number} was ready{times}; the next one is started in {wait_s:g} s")
        return wait_s

    def _give_up(self, failure: BootFailed) -> None:
        """No handler can run: the master is to drain and say why, unless it has another reason by now."""
        self.boot_failure = self.boot_failure or failure

    def _status_of(self, zygote: Zygote) -> int:
        """Its wait status; it may have closed its socket and live on, which ends now."""
        if zygote.pid not in self._exits:
            zygote.await_end(_GOING_S)  # its own cause is to be told, not ours
            self._exits[zygote.pid] = os.waitpid(zygote.pid, 0)[1]
        return self._exits.pop(zygote.pid)

    def _end_strangers(self, zygote: Zygote) -> None:
        """What the lost zygote's children had started has come to us: it must not meet the next run of their jobs."""
        own = zygote.strangers | {other.pid for other in self._zygotes.values()}
        leftovers.end_strangers(own, clock.monotonic() + _LEFTOVERS_S)

    def _retire(self, number: int, reason: str) -> None:
        """It does not answer. Its children may go on; the next ones come from another."""
        zygote = self._zygotes.get(number)
        if zygote is None or zygote is not self._current:
            return
        self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
        zygote.retired = True
        self._current = None
        wait_s = 0.0 if zygote.fertile else self._on_barren(zygote, BootFailed(f"no child was ready: {reason}", ""))
        self._start_at = clock.monotonic() + wait_s
        for child in self._slots:
            if child.zygote == number and child.pidfd is None:
                if not child.sent:
                    self._forget(child)  # if it lives, now or later, it finds its sockets closed and exits
                else:
                    zygote.kill()  # we could neither see nor bring about this child's end, but by its zygote's
        self._finish_if_done(zygote)

    def _finish_if_done(self, zygote: Zygote) -> None:
        if zygote.retired and not any(child.zygote == zygote.number for child in self._slots):
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

    # children

    def fill(self, now_at: float) -> None:
        """Ask for the children that are missing."""
        zygote = self._current
        if self._closing or zygote is None or not zygote.ready or now_at < self._spawn_after_at:
            return
        for _ in range(self._wanted()):
            try:
                self._ask_for_child(zygote)
            except OSError as error:
                # Our descriptors or the room in its socket are used up. If it is its end, we shall be told.
                self._spawn_after_at = self._try_again(f"no child can be asked for ({error})")
                return

    def _wanted(self) -> int:
        """How many children to ask for now; after one that did not get ready, one at a time."""
        missing = self._slots.missing()
        return min(missing, 1 - len(self._unready)) if self._stillborn.in_a_row or self._kill_at else missing

    def _ask_for_child(self, zygote: Zygote) -> None:
        child = Child(self._slots.free_number(), zygote.number, self._on_line)
        try:
            if child.output.fd >= self._most_files - _KEPT_FREE:  # the kernel gives the lowest number that is free
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            zygote.spawn(child.number, child.theirs)
        except OSError:
            child.close()
            raise
        finally:
            child.close_theirs()
        self._slots.add(child)
        self._unready[child] = zygote
        self._inbox.watch(child.talk, ChildSpoke(child))
        self._inbox.watch(child.output.fd, ChildPrinted(child))

    def _on_spawned(self, zygote: Zygote, number: int, pid: int, pidfd: int) -> None:
        child = self._slots.get(number)
        if child is None or child.zygote != zygote.number:
            os.close(pidfd)
            return
        self._look_at_zygote(zygote)
        self._await_reports(zygote)
        child.spawned(pid, pidfd, zygote.inherited)
        self._inbox.watch(pidfd, ChildEnded(child))
        self._events.emit("child.spawned", child=number, pid=pid)

    def _await_reports(self, zygote: Zygote) -> None:
        """While it forked it could not report an end: whose report was due meanwhile is due a while from now."""
        now_at = clock.monotonic()
        for child in self._slots:
            if child.zygote == zygote.number and child.report_by_at is not None and now_at >= child.report_by_at:
                child.report_by_at = now_at + _REPORT_S

    def _look_at_zygote(self, zygote: Zygote) -> None:
        """What its children have from it: hooks and threads may have it grow."""
        now_at = clock.monotonic()
        if now_at >= zygote.look_at:
            zygote.look_at = now_at + _ZYGOTE_LOOK_S
            zygote.inherited = memory.of(zygote.pid) or zygote.inherited
            self._budget.stand_on(zygote.inherited)

    def _on_spawn_failed(self, zygote: Zygote, failed: SpawnFailed) -> None:
        child = self._slots.get(failed.child)
        if child is None or child.zygote != zygote.number:
            return
        if failed.traceback:
            self._count_stillborn(child, failed.message, failed.traceback)
        elif clock.monotonic() >= self._spawn_after_at:  # else it has been said of another one just now
            self._spawn_after_at = self._try_again(f"no child can be forked ({failed.message})")
        self._forget(child)

    def on_ended(self, child: Child) -> None:
        """The kernel says so. Its zygote, which ends what it left running, must say so soon."""
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        child.report_by_at = clock.monotonic() + _REPORT_S

    def on_mute(self, child: Child) -> None:
        """It has closed its output."""
        self._inbox.forget(child.output.fd)

    def on_silent(self, child: Child) -> None:
        """It has closed its end of `talk`, which stays readable for ever."""
        self._inbox.forget(child.talk)

    def _on_reaped(self, zygote: Zygote, reaped: Reaped) -> None:
        self._events.emit(
            "child.reaped", child=reaped.child, pid=reaped.pid, status=endings.death_reason(reaped.status),
            cpu_ms=round(reaped.cpu_s * 1000), max_rss_bytes=reaped.max_rss_bytes,
        )  # fmt: skip
        child = self._slots.get(reaped.child)
        if child is not None and child.pid == reaped.pid and child.zygote == zygote.number:
            self._bury(child, reaped, child.why_killed)

    def _bury(self, child: Child, reaped: Reaped | None, why_killed: str | None) -> None:
        spawning = child.state is ChildState.SPAWNING
        idle = child.state in (ChildState.IDLE, ChildState.DOOMED) and not child.served and not child.sent
        self._on_gone(child, reaped, why_killed)
        # Its last words may be that it is ready.
        self._note_ready(child, spawning and child.state is not ChildState.SPAWNING and child.why_killed is None)
        child.output.read_to_end()
        # A kill from outside may be anybody's, and says nothing about the next one.
        by_itself = child.why_killed is not None or (reaped is not None and reaped.status != SIGKILL)
        early = idle and by_itself and not self._closing and clock.monotonic() < child.asked_at + _PROBATION_S
        if (child in self._unready or early) and child.why_killed not in endings.INTERRUPTIONS:
            self._on_stillborn(child, reaped)
        self._forget(child)

    def _note_ready(self, child: Child, surely: bool = False) -> None:
        """What one child could, the next ones can."""
        if child not in self._unready or not (surely or child.is_ready or child.sent or child.served):
            return
        self._unready.pop(child).fertile = self._fertile = True
        self._barren.succeed()
        self._kill_at.pop(child, None)
        if self._stillborn.in_a_row and child.asked_at >= self._stillborn_at and self._on_trial is None:
            self._on_trial = child

    def _judge(self, child: Child, now_at: float) -> None:
        """The first one that is ready again has proved itself once it has answered a job, or has lived for a while."""
        if child.served or now_at >= child.asked_at + _PROBATION_S:
            self._stillborn.succeed()
            self._on_trial = None

    def _on_stillborn(self, child: Child, reaped: Reaped | None) -> None:
        how = endings.death_reason(reaped.status) if reaped else "its end was not reported"
        if child.why_killed == NOT_READY:
            how = f"killed by us: it was not ready within {self._config.boot_timeout_s:g} s; see --boot-timeout"
        elif child.why_killed is not None:
            how = f"killed by us: {child.why_killed}"
        said = f"{child.output.last_of(0).rstrip()}\n{child.stacks.read().rstrip()}".strip()
        before = "it was ready" if child in self._unready else "it had answered a job"
        self._count_stillborn(child, f"a child ended before {before} ({how})", said)

    def _count_stillborn(self, child: Child, what: str, said: str) -> None:
        """`said`: its last words. Those that were asked for together count once, for they have the same cause."""
        if child.asked_at < self._stillborn_at:
            return
        self._stillborn_at = clock.monotonic()
        if not self._stillborn.in_a_row:
            self._stillborn_since_at = self._stillborn_at
        wait_s = self._stillborn.fail()
        self._spawn_after_at = self._stillborn_at + wait_s
        what += _times(self._stillborn.in_a_row)
        # What children need may be away for a moment: not every restart of a database is to end a supervisor.
        is_outage = self._fertile and self._stillborn_at < self._stillborn_since_at + _OUTAGE_S
        if self._stillborn.broken and not is_outage:
            self._give_up(BootFailed(what, said))
        else:
            self._warn(f"{what}; the next one is forked in {wait_s:g} s. It said: {said or 'nothing'}")

    def _forget(self, child: Child) -> None:
        self._inbox.forget(child.talk)
        self._inbox.forget(child.output.fd)
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        self._slots.remove(child)
        self._unready.pop(child, None)
        self._kill_at.pop(child, None)
        if child is self._on_trial:
            self._on_trial = None
        child.close()
        zygote = self._zygotes.get(child.zygote)
        if zygote is not None:
            self._finish_if_done(zygote)

    def fork_no_more(self) -> None:
        """Who ends from now on has no successor."""
        self._closing = True

    def abandon(self, why: str) -> None:
        """What has not ended after its kill is not waited for: its jobs are handed back all the same."""
        for child in self._slots:
            if child.sent:
                self._bury(child, None, why)

    # time

    def deadline_at(self) -> float:
        deadlines = [math.inf if self._start_at is None or self._closing else self._start_at]
        deadlines += [zygote.deadline_at for zygote in self._zygotes.values() if zygote.deadline_at is not None]
        deadlines += [self._child_deadline_at(child) for child in self._slots]
        if self._on_trial is not None:
            deadlines.append(self._on_trial.asked_at + _PROBATION_S)
        if self.ready and not self._closing and self._wanted() > 0:
            deadlines.append(self._spawn_after_at)
        return min(deadlines)

    def _child_deadline_at(self, child: Child) -> float:
        if child.report_by_at is not None:
            zygote = self._zygotes.get(child.zygote)
            if zygote is not None and zygote.runs_hooks:
                return max(child.report_by_at, self._forks_until_at(zygote))  # they may take their time
            return child.report_by_at
        if child.state is not ChildState.SPAWNING:
            return math.inf
        if child.pidfd is None:
            return max(child.asked_at + _SPAWN_S, self._forks_until_at(self._zygotes[child.zygote]))
        return self._kill_at.get(child, child.asked_at + self._config.boot_timeout_s)

    def _forks_until_at(self, zygote: Zygote) -> float:
        """When this zygote, if it has been asked for a child, must have said something."""
        if not any(other.pidfd is None and other.zygote == zygote.number for other in self._slots):
            return -math.inf
        return zygote.heard_at + _SPAWN_S

    def keep_time(self, now_at: float) -> None:
        if self._start_at is not None and now_at >= self._start_at and not self._closing:
            self.start_zygote()
        for zygote in self._zygotes.values():
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                self._on_zygote_overdue(zygote, now_at)
        if self._on_trial is not None:
            self._judge(self._on_trial, now_at)
        for child in tuple(self._unready):
            self._note_ready(child)
        for child in self._slots:
            if now_at >= self._child_deadline_at(child):
                self._on_child_overdue(child, now_at)

    def _on_zygote_overdue(self, zygote: Zygote, now_at: float) -> None:
        if not zygote.retired and zygote.failure is None:
            zygote.failure = BootFailed(
                f"{self._config.handlers!r} was not imported within {self._config.boot_timeout_s:g} s;"
                " import less, or raise --boot-timeout",
                "",
            )
            zygote.write_stacks()
            zygote.deadline_at = now_at + _STACKS_S
        else:
            zygote.deadline_at = None
            zygote.kill()

    def _on_child_overdue(self, child: Child, now_at: float) -> None:
        if child.report_by_at is not None:
            self._retire(child.zygote, "it does not report the end of a child")
            self._end_strangers_below(child)
            self._bury(child, None, child.why_killed)
        elif child.pidfd is None:
            self._retire(child.zygote, "it does not fork")
        elif child not in self._kill_at:
            child.write_stacks()
            self._kill_at[child] = now_at + _STACKS_S
        else:
            self._events.emit("child.killed", child=child.number, pid=child.pid, reason=NOT_READY)
            child.kill(NOT_READY)

    def _end_strangers_below(self, dead: Child) -> None:
        """What a dead child has left running must not meet the next run of its job: its zygote does not see to it."""
        zygote = self._zygotes.get(dead.zygote)
        if zygote is not None:
            living = {child.pid for child in self._slots if child.zygote == zygote.number and child is not dead}
            leftovers.end_strangers_of(zygote.pid, living, clock.monotonic() + _LEFTOVERS_S)

    def close(self) -> None:
        """End all zygotes, and with them all children, and wait for that."""
        for zygote in self._zygotes.values():
            self._inbox.forget(zygote.control)
            zygote.let_go()
        for zygote in self._zygotes.values():
            zygote.await_end(_REPORT_S)
        for zygote in self._zygotes.values():
            self._end_strangers(zygote)  # of one that was still importing, or was killed


def _times(count: int) -> str:
    return f", {count} times in a row" if count > 1 else ""
