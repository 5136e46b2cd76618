"""Zygotes and children coming and going: as many as are needed, replaced as they end. Runs in master.

Owns the zygotes' lives and the watching of their and the children's sockets. What a child's end means for its jobs is
decided by `on_gone`.
"""

import math
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config
from supervisor.ops.events import Events
from supervisor.pool import endings, kernel, memory
from supervisor.pool.budget import Budget
from supervisor.pool.children import Child
from supervisor.pool.inbox import Inbox
from supervisor.pool.messages import Boot, BootFailed, HandlerSettings, Ready, Reaped, Spawned, SpawnFailed
from supervisor.pool.slots import Slots
from supervisor.pool.states import ChildState
from supervisor.pool.zygotes import Zygote

#: A child that was asked for must be ready by then, or its zygote is retired.
_SPAWN_S: Final = 10.0
#: A child is dead: its zygote must have ended its leftovers and said so by then.
_REPORT_S: Final = 2.0
_LONGEST_BACKOFF_S: Final = 10.0
#: When what the kernel has refused is tried again.
_AGAIN_S: Final = 1.0
#: How long jobs run one at a time after losses in a row, at the most; doubled with each.
_CAUTION_S: Final = 15.0
_LONGEST_CAUTION_S: Final = 600.0
#: From this loss of a zygote on in a row, each while one and the same job ran alone, the job counts a death.
_SUSPICIOUS_LOSSES: Final = 3


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
        self._stillborn = 0  # children in a row that ended before they were ready
        self._losses = 0  # of zygotes in a row, with no job ended between, or with one that ran at each
        self._answered = 0  # how many jobs had ended at the last one
        self._suspects: set[str] = set()  # the jobs that ran at the last one
        self._alone = ("", 0)  # the job that ran alone at the last losses of a zygote, and how many those were
        self._exits: dict[int, int] = {}  # wait statuses of zygotes, by pid
        self.handlers: dict[str, HandlerSettings] = {}
        self.once: tuple[str, ...] = ()  # those of them whose jobs never start twice
        self.boot_failure: BootFailed | None = None
        self._closing = False
        self._open_files = kernel.allow_open_files()

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
        config = self._config
        boot = Boot(
            config.handlers, str(workdir), config.jobs_per_child, config.on_error, config.memory_limit_bytes,
            self._open_files,
        )  # fmt: skip
        return Zygote(self._started, boot, self._environment, clock.monotonic() + config.boot_timeout_s)

    def _try_again(self, why: str) -> float:
        """Warn of what the kernel refuses; answers when it is tried again."""
        self._events.emit("master.warned", message=f"{why}; trying again in {_AGAIN_S:g} s")
        return clock.monotonic() + _AGAIN_S

    def on_zygote_spoke(self, zygote: Zygote) -> None:
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid) if fds:
                    self._on_spawned(zygote, number, pid, fds[0])
                case Spawned():
                    # No room for its pidfd: a child that we cannot kill must not get a job.
                    self._retire(zygote.number, "the descriptor of a child was lost: too many open files")
                    zygote.kill()
                case Reaped():
                    self._on_reaped(zygote, report)
                case Ready(handlers, threads, _descriptors):
                    self._on_ready(zygote, handlers, threads)
                case SpawnFailed(number, message):
                    self._on_spawn_failed(number, message)
                case BootFailed():
                    self.boot_failure = report
                case None:
                    self._on_zygote_lost(zygote)

    def _on_ready(self, zygote: Zygote, handlers: dict[str, dict[str, Any]], threads: list[str]) -> None:
        boot_s, zygote.ready, zygote.deadline_at = clock.monotonic() - zygote.started_at, True, None
        self._spawn_after_at = 0.0
        zygote.inherited = memory.of(zygote.pid) or memory.NOTHING
        self._budget.stand_on(zygote.inherited)
        self.handlers = {name: HandlerSettings(**settings) for name, settings in handlers.items()}
        self.once = tuple(name for name, settings in self.handlers.items() if settings.at_most_once)
        self._events.emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(self.handlers),
            boot_ms=round(boot_s * 1000), threads=threads or None,
        )  # fmt: skip
        if threads:
            self._events.emit(
                "master.warned",
                message=f"the handlers start threads while they are imported ({', '.join(threads)}): the children do"
                " not have them, and a lock that one holds at the fork stays locked there; start them in the handler",
            )

    def _on_zygote_lost(self, zygote: Zygote) -> None:
        """Its end takes its children along. What they ran is interrupted: the cause most likely lies elsewhere."""
        self._inbox.forget(zygote.control)
        zygote.let_go()
        del self._zygotes[zygote.number]
        if zygote is self._current:
            self._current = None
        status = self._status_of(zygote)
        children = [child for child in self._slots if child.zygote == zygote.number]
        alone = 0 if zygote.retired else self._suspect(children)
        for child in children:
            child.kill("zygote-lost")
        kernel.await_ends([child.pidfd for child in children if child.pidfd is not None], _REPORT_S)
        self._end_strangers(zygote)
        shutil.rmtree(zygote.workdir, ignore_errors=True)
        if not zygote.ready:
            self._on_boot_failed(status)
            return
        if not zygote.retired:
            running = sum(1 for child in children if child.sent)
            reason = endings.death_reason(status)
            self._events.emit("zygote.lost", zygote=zygote.number, status=reason, running=running)
        for child in children:
            self._bury(child, None, "lost" if alone >= _SUSPICIOUS_LOSSES else "zygote-lost")
        if self._current is None and self._start_at is None:
            self._start_at = clock.monotonic() + (_backoff_s(self._losses) if self._losses > 1 else 0.0)

    def _on_boot_failed(self, status: int) -> None:
        if self.boot_failure is None:
            self.boot_failure = BootFailed(
                f"the process that imports {self._config.handlers!r} ended meanwhile ({endings.death_reason(status)});"
                " look for the module that exits or crashes when it is imported",
                "",
            )

    def _status_of(self, zygote: Zygote) -> int:
        """Its wait status; it may have closed its socket and live on, which ends now."""
        if zygote.pid not in self._exits:
            zygote.kill()
            self._exits[zygote.pid] = os.waitpid(zygote.pid, 0)[1]
        return self._exits.pop(zygote.pid)

    def _suspect(self, children: list[Child]) -> int:
        """Whether one of the jobs that ran ends zygotes: if losses come in a row, or with the same job again, let jobs
        run one at a time. Answers as `_count_alone`."""
        running = {child.head.lease.jid for child in children if child.head is not None}
        again = self._slots.answered == self._answered or not running.isdisjoint(self._suspects)
        self._losses = self._losses + 1 if again else 1
        self._answered, self._suspects = self._slots.answered, running
        if self._losses > 1:
            self._slots.beware(clock.monotonic() + min(_LONGEST_CAUTION_S, _CAUTION_S * 2.0 ** min(self._losses, 10)))
        return self._count_alone([child for child in children if child.sent])

    def _count_alone(self, running: list[Child]) -> int:
        """How many losses in a row the one running job has seen alone; 0: it was not alone."""
        head = running[0].head if len(running) == 1 else None
        if head is None:
            self._alone = ("", 0)
        else:
            jid, losses = self._alone
            self._alone = (head.lease.jid, losses + 1 if jid == head.lease.jid else 1)
        return self._alone[1]

    def _end_strangers(self, zygote: Zygote) -> None:
        """What the lost zygote's children had started has come to us: it must not meet the next run of their jobs."""
        own = zygote.strangers | {other.pid for other in self._zygotes.values()}
        for pid in kernel.children_of_self() - own:
            os.kill(pid, signal.SIGKILL)

    def _retire(self, number: int, reason: str) -> None:
        """It does not answer. Its children may go on; the next ones come from another."""
        zygote = self._zygotes.get(number)
        if zygote is None or zygote is not self._current:
            return
        self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
        zygote.retired = True
        self._current = None
        self._start_at = clock.monotonic()
        for child in self._slots:
            if child.zygote == number and child.pidfd is None:
                self._forget(child)  # if it is forked after all, it finds its sockets closed and exits
        self._finish_if_done(zygote)

    def _finish_if_done(self, zygote: Zygote) -> None:
        if zygote.retired and not any(child.zygote == zygote.number for child in self._slots):
            zygote.finish()

    def reap_own_children(self) -> None:
        """On SIGCHLD: zygotes, and whatever orphans are left to us as PID 1 or subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if any(zygote.pid == pid for zygote in self._zygotes.values()):
                self._exits[pid] = status

    # children

    def fill(self, now_at: float) -> None:
        """Ask for the children that are missing."""
        zygote = self._current
        if self._closing or zygote is None or not zygote.ready or now_at < self._spawn_after_at:
            return
        for _ in range(self._slots.missing()):
            try:
                self._ask_for_child(zygote)
            except OSError as error:
                # Our descriptors or the room in its socket are used up. If it is its end, we shall be told.
                self._spawn_after_at = self._try_again(f"no child can be asked for ({error})")
                return

    def _ask_for_child(self, zygote: Zygote) -> None:
        child = Child(self._slots.free_number(), zygote.number, self._on_line)
        try:
            zygote.spawn(child.number, child.theirs)
        except OSError:
            child.close()
            raise
        finally:
            child.close_theirs()
        self._slots.add(child)
        self._inbox.watch(child.talk, ChildSpoke(child))
        self._inbox.watch(child.output.fd, ChildPrinted(child))

    def _on_spawned(self, zygote: Zygote, number: int, pid: int, pidfd: int) -> None:
        child = self._slots.get(number)
        if child is None or child.zygote != zygote.number:
            os.close(pidfd)
            return
        child.spawned(pid, pidfd, zygote.inherited)
        self._inbox.watch(pidfd, ChildEnded(child))
        self._events.emit("child.spawned", child=number, pid=pid)

    def _on_spawn_failed(self, number: int, message: str) -> None:
        self._spawn_after_at = self._try_again(f"no child can be forked ({message})")
        child = self._slots.get(number)
        if child is not None:
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
        self._on_gone(child, reaped, why_killed)
        child.output.read_to_end()
        if child.state is ChildState.SPAWNING:
            self._on_stillborn(child, reaped)
        else:
            self._stillborn = 0
        self._forget(child)

    def _on_stillborn(self, child: Child, reaped: Reaped | None) -> None:
        self._stillborn += 1
        wait_s = _backoff_s(self._stillborn)
        self._spawn_after_at = clock.monotonic() + wait_s
        how = endings.death_reason(reaped.status) if reaped else "its end was not reported"
        self._events.emit(
            "master.warned",
            message=f"a child ended before it was ready ({how}), {self._stillborn} in a row; the next one is forked in"
            f" {wait_s:g} s. It said: {child.output.last_of(0) or 'nothing'}",
        )

    def _forget(self, child: Child) -> None:
        self._inbox.forget(child.talk)
        self._inbox.forget(child.output.fd)
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        self._slots.remove(child)
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
        for child in self._slots:
            if child.report_by_at is not None:
                deadlines.append(child.report_by_at)
            elif child.state is ChildState.SPAWNING:
                deadlines.append(child.asked_at + _SPAWN_S)
        if self.ready and not self._closing and self._slots.missing():
            deadlines.append(self._spawn_after_at)
        return min(deadlines)

    def keep_time(self, now_at: float) -> None:
        if self._start_at is not None and now_at >= self._start_at and not self._closing:
            self.start_zygote()
        for zygote in self._zygotes.values():
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                self._on_boot_overdue(zygote)
        for child in self._slots:
            if child.report_by_at is not None and now_at >= child.report_by_at:
                self._retire(child.zygote, "it does not report the end of a child")
                self._bury(child, None, child.why_killed)
            elif child.state is ChildState.SPAWNING and now_at >= child.asked_at + _SPAWN_S:
                self._retire(child.zygote, "it does not fork, or a child of it does not get ready")
                child.kill("it was not ready in time")

    def _on_boot_overdue(self, zygote: Zygote) -> None:
        zygote.deadline_at = None
        self.boot_failure = BootFailed(
            f"{self._config.handlers!r} was not imported within {self._config.boot_timeout_s:g} s;"
            " import less, or raise --boot-timeout",
            "",
        )
        zygote.kill()

    def close(self) -> None:
        """End all zygotes, and with them all children, and wait for that."""
        for zygote in self._zygotes.values():
            self._inbox.forget(zygote.control)
            zygote.let_go()
        for zygote in self._zygotes.values():
            zygote.await_end(_REPORT_S)
        for zygote in self._zygotes.values():
            self._end_strangers(zygote)  # of one that was still importing, or was killed


def _backoff_s(times: int) -> float:
    return min(_LONGEST_BACKOFF_S, 0.05 * 2.0 ** min(times, 10))
