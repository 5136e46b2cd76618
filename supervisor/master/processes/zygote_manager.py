"""Zygotes coming and going: the *current* one forks, and is started anew when it is lost. Runs in master.

Owns the zygotes' lives and the watching of their sockets; the children are `ChildManager`, a reload is `RollingReload`.
"""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config
from supervisor.linux import removal
from supervisor.master.inbox import Inbox
from supervisor.master.model import memory, outcome_rules
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.reload_log import Reloaded
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle, fork_warnings, sandbox_warnings
from supervisor.master.processes.child_manager import STACKS_S, ChildManager
from supervisor.master.processes.poison_detector import PoisonDetector
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.zygote_reaper import GOING_S, ZygoteReaper, why_no_use
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.timers import Timers
from supervisor.messages import BootFailed, HandlerSettings, Ready, Reaped, Spawned, SpawnFailed
from supervisor.ops.events import Events

#: A retired one whose last child has ended must have exited by then.
_EXIT_S: Final = 5.0
#: All of them have been let go: they must have ended their children by then.
_END_S: Final = 2.0
#: The keys of timers: what is due of processes, and when children may be asked for again.
_PROCESSES: Final = "processes"
_FILL: Final = "processes.fill"
_ZYGOTE_LOST: Final = "zygote-lost"
_HIDDEN: Final = (
    "/proc hides zygote and children from us, as they are not dumpable: no job can be measured, and no memory limit"
    " holds; mount it without hidepid=, or take ProtectProc= out of the unit"
)


class ZygoteManager:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        inbox: Inbox,
        timers: Timers,
        events: Events,
        workdir: Path,
        budget: Budget,
        environment: Mapping[str, str],
        on_spoke: Callable[[ChildHandle], None],
        on_gone: Callable[[ChildHandle, Reaped | None, str | None], None],
        on_line: Callable[[ChildHandle, int, bytes], None],
        on_planned: Callable[[ChildHandle], None],
        on_reloaded: Callable[[Sequence[ChildHandle], Mapping[str, HandlerSettings]], None],
    ) -> None:
        """`environment`: of the zygotes. `on_spoke`, `on_gone`, `on_line`, `on_planned`: as `ChildManager` has them.
        `on_reloaded(children, handlers)`: another zygote forks; these children have the code before.
        """
        self._config = config
        self._slots = slots
        self._inbox = inbox
        self._timers = timers
        self._events = events
        self._budget = budget
        self._on_reloaded = on_reloaded
        self._zygotes: dict[int, ZygoteHandle] = {}
        self._starts = ZygoteStarts(config, workdir, environment, events)
        self._poison = PoisonDetector(slots)
        self.children = ChildManager(
            config, slots, inbox, events, budget, self._zygotes, self._retire,
            on_spoke, on_gone, on_line, on_planned, self._on_change,
        )  # fmt: skip
        self.reaper = ZygoteReaper(self._zygotes)
        self.rolling_reload = RollingReload(config, slots, events, self._starts, self.children, self)
        self.current: ZygoteHandle | None = None  # the one that forks, or boots for that
        self.handlers: dict[str, HandlerSettings] = {}
        self.once: tuple[str, ...] = ()  # those of them whose jobs never start twice
        self.failed = False  # there is a `boot_failure`, as of the last look
        self.sandbox: dict[str, str] = {}  # of what its children are confined by, each part: on, or why not

    @property
    def ready(self) -> bool:
        """Whether jobs can be run now or as soon as a child is forked."""
        return self.current is not None and self.current.state is ZygoteState.CURRENT

    @property
    def boot_failure(self) -> BootFailed | None:
        """Why no handler can run: the master is to drain and say so, unless it has another reason by now. What a
        reload under way may mend is not said yet.
        """
        return None if self.rolling_reload.may_mend else self.failure

    @property
    def failure(self) -> BootFailed | None:
        """The same, whatever a reload may mend."""
        return self._starts.failure or self.children.failure

    @property
    def reloading(self) -> bool:
        return self.rolling_reload.candidate is not None

    @property
    def last_reload(self) -> dict[str, Any] | None:
        return self.rolling_reload.last

    def zygotes_status(self) -> list[dict[str, Any]]:
        return [
            {
                "zygote": zygote.number, "pid": zygote.pid, "state": self._in_a_word(zygote),
                "handlers": sorted(zygote.handlers),
            }
            for zygote in self._zygotes.values()
        ]  # fmt: skip

    def _in_a_word(self, zygote: ZygoteHandle) -> str:
        """What people know it as."""
        if zygote is self.rolling_reload.candidate:
            return "candidate"
        return zygote.state.value if zygote is self.current else "retired"

    # a zygote's start

    def start_zygote(self) -> None:
        zygote = self._starts.again(self.children.open_files)
        if zygote is not None:
            self.current = self._welcome(zygote)

    def start_anew(self) -> ZygoteHandle:
        """One that loads the code from where it lies now. Raises OSError."""
        return self._welcome(self._starts.anew(self.children.open_files))

    def _welcome(self, zygote: ZygoteHandle) -> ZygoteHandle:
        self._zygotes[zygote.number] = zygote
        self._inbox.watch(zygote.control, partial(self._on_spoke, zygote))
        self._on_change()
        self._events.emit("zygote.spawned", zygote=zygote.number, pid=zygote.pid)
        return zygote

    def reap(self) -> None:
        """On SIGCHLD: the socket of a zygote that has ended may not tell."""
        self.reaper.reap()
        self._on_change()

    def reload(self, by: str, on_done: Callable[[Reloaded], None] | None) -> None:
        """`RollingReload.ask`."""
        self.rolling_reload.ask(by, on_done)
        self._on_change()

    def _on_change(self) -> None:
        """Something has happened to a process: see to all of them in this turn, or in the next one at once."""
        self._timers.set(_PROCESSES, -math.inf, self._see_to)

    def _on_spoke(self, zygote: ZygoteHandle) -> None:
        self._on_change()
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid) if fds:
                    self.children.on_spawned(zygote, number, pid, fds[0])
                case Spawned():
                    # No room for its pidfd: a child that we cannot kill must not have a job.
                    self._retire(zygote, "the descriptor of a child was lost: too many open files")
                    self.reaper.kill(zygote)
                case Reaped():
                    self.children.on_reaped(zygote, report)
                case Ready():
                    self._on_ready(zygote, report)
                case SpawnFailed():
                    self.children.on_spawn_failed(zygote, report)
                case BootFailed():
                    zygote.failure = zygote.failure or report  # it may go on once its stacks are written
                case None:
                    self._on_lost(zygote)

    def _on_ready(self, zygote: ZygoteHandle, said: Ready) -> None:
        if zygote.state is not ZygoteState.BOOTING:
            return  # dropped meanwhile
        boot_s = clock.monotonic() - zygote.started_at
        self._starts.prove()
        zygote.has_booted(said)
        is_edit = self._config.watch and bool(self.handlers)
        emit = self._events.emit_quietly if is_edit else self._events.emit  # `reload.completed` says it
        emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(zygote.handlers),
            boot_ms=round(boot_s * 1000), threads=said.threads or None, descriptors=said.descriptors or None,
        )  # fmt: skip
        for warning in fork_warnings(said):
            self._events.warn(warning)
        if said.sandbox != self.sandbox:
            self._say_sandbox(zygote, said)
        if zygote is self.rolling_reload.candidate:
            zygote.become(ZygoteState.PROVING)
            self._weigh()
            self.rolling_reload.probe(zygote)
        else:
            zygote.become(ZygoteState.CURRENT)
            self.children.fill_now()
            self._follow(zygote, said)
            self._on_reloaded((), self.handlers)  # the files may be others than those that the last one loaded

    def _say_sandbox(self, zygote: ZygoteHandle, said: Ready) -> None:
        self._events.emit("sandbox.reported", zygote=zygote.number, sandbox=self._config.sandbox, parts=said.sandbox)
        for warning in sandbox_warnings(said):
            self._events.warn(warning)
        if memory.of(zygote.pid) is None:  # and so it will be with its children
            self._events.warn(_HIDDEN)

    def _follow(self, current: ZygoteHandle, said: Ready) -> None:
        """What it has said of its handlers holds."""
        self.handlers = current.handlers
        self.once = tuple(name for name, settings in self.handlers.items() if settings.at_most_once)
        self.sandbox = dict(said.sandbox)
        self._starts.follow(current)
        self.rolling_reload.follow(said.files, current.started_unix)
        if warning := self._budget.use_zygote(current.inherited):
            self._events.warn(warning)
        self._weigh()

    def _weigh(self) -> None:
        """What zygotes take beside the one that forks is missing to jobs."""
        others = [zygote.inherited for zygote in self._zygotes.values() if zygote is not self.current]
        if self._budget.use_other_zygotes(others):
            self._slots.find_room()

    def fill(self, now_at: float) -> None:
        """Ask for the children that are missing."""
        current = self.current
        if current is not None and current.state is ZygoteState.CURRENT:
            if self.children.fill(current, now_at):
                self._timers.set(_PROCESSES, min(self._timers.at(_PROCESSES), self._due_at()), self._see_to)
            if now_at < self.children.fill_at:
                self._timers.set(_FILL, self.children.fill_at, lambda _now_at: None)  # the turn comes here

    # what a reload has done

    def drop(self, zygote: ZygoteHandle) -> None:
        """It is not wanted any more, whatever may become of it."""
        if zygote.number not in self._zygotes:
            return  # it has ended by itself
        if zygote is self.current:
            self.current = None
        zygote.become(ZygoteState.RETIRED)
        self.reaper.kill(zygote)

    def take_over(self, new: ZygoteHandle, kept: ZygoteHandle | None) -> None:
        """It forks from now on, and what its handlers say holds; all others retire, but for the one that is `kept`."""
        outdated = [
            child for zygote in self._zygotes.values() if zygote is not new for child in self.children.of(zygote)
        ]
        if self.current is not None:
            self._replace(self.current, kept)
        new.become(ZygoteState.CURRENT)
        self.current = new
        self._starts.succeed()
        self.children.begin_anew(new)
        assert new.said is not None
        self._follow(new, new.said)
        self._on_reloaded(outdated, self.handlers)

    def _replace(self, old: ZygoteHandle, kept: ZygoteHandle | None) -> None:
        """It ends with its last child; one that is not ready yet, at once."""
        if old.state is ZygoteState.BOOTING:
            self.drop(old)
        else:
            old.become(ZygoteState.KEPT if old is kept else ZygoteState.RETIRED)

    # its end

    def _on_lost(self, zygote: ZygoteHandle) -> None:
        """Its end takes its children along. What they ran is interrupted: the cause most likely lies elsewhere."""
        self._inbox.forget(zygote.control)
        zygote.let_go()
        del self._zygotes[zygote.number]
        self.rolling_reload.lose(zygote)
        is_current = zygote is self.current
        if is_current:
            self.current = None
        status = self.reaper.take_status(zygote)
        lost, leaving = zygote.state is ZygoteState.CURRENT, zygote.state is ZygoteState.LEAVING
        if zygote.state not in (ZygoteState.RETIRED, ZygoteState.LEAVING):
            zygote.become(ZygoteState.RETIRED)
        if lost:
            self._poison.on_loss(self.children.of(zygote))
        children = self.children.lose(zygote, _ZYGOTE_LOST)
        if not leaving or status:  # else it has seen to them itself
            self.reaper.end_strangers(zygote)
        removal.remove(str(zygote.workdir))
        if lost or any(child.sent for child in children):
            self._say_lost(zygote, status, children)
        for child in children:
            self.children.bury(child, None, "lost" if lost and self._poison.convicted else _ZYGOTE_LOST)
        wait_s = self._poison.wait_s
        if zygote is self.rolling_reload.candidate:
            self.rolling_reload.fail(why_no_use(zygote, status, self._config.handlers))
        elif is_current:
            is_killed = zygote.failure is None and status == signal.SIGKILL
            why = why_no_use(zygote, status, self._config.handlers)
            wait_s = max(wait_s, self._starts.count(zygote, why, is_killed))
        if self.current is None and (self._starts.proven or (is_current and self._starts.failure is None)):
            self._starts.plan(wait_s)
        zygote.stacks.close()
        self._weigh()
        zygote.become(ZygoteState.GONE)

    def _say_lost(self, zygote: ZygoteHandle, status: int, children: list[ChildHandle]) -> None:
        running = sum(1 for child in children if child.sent)
        reason = outcome_rules.death_reason(status)
        self._events.emit("zygote.lost", zygote=zygote.number, status=reason, running=running)
        if zygote.failure is not None:
            self._events.warn(zygote.failure.message)

    def _retire(self, zygote: ZygoteHandle, reason: str) -> None:
        """It does not answer. Its children may go on; the next ones come from another."""
        failure = BootFailed(f"no child was ready: {reason}", "")
        if zygote is self.rolling_reload.candidate:
            self.rolling_reload.fail(failure)
        elif zygote is self.current:
            self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
            zygote.become(ZygoteState.RETIRED)
            self.current = None
            self._starts.plan(self._starts.count(zygote, failure))
        for child in self.children.of(zygote):
            if child.pidfd is None:
                self.children.forget(child)  # if it lives, now or later, it finds its sockets closed and exits

    def _finish(self, zygote: ZygoteHandle) -> None:
        """It is retired, and its last child has ended."""
        zygote.finish()
        zygote.deadline_at = zygote.deadline_at or clock.monotonic() + _EXIT_S

    # time

    def _due_at(self) -> float:
        deadlines = [zygote.deadline_at for zygote in self._zygotes.values() if zygote.deadline_at is not None]
        return min(self._starts.due_at, self.children.deadline_at(), self.rolling_reload.deadline_at(), *deadlines)

    def _see_to(self, now_at: float) -> None:
        self._lose_the_ended()
        if now_at >= self._starts.due_at:
            self.start_zygote()
        for zygote in self._zygotes.values():
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                self._on_overdue(zygote, now_at)
        self.children.keep_time(now_at)
        self.rolling_reload.keep_time(now_at)
        for zygote in self._zygotes.values():
            if zygote.state is ZygoteState.RETIRED and not self.children.of(zygote):
                self._finish(zygote)
        self.failed = self.boot_failure is not None
        self._timers.set(_PROCESSES, self._due_at(), self._see_to)

    def _lose_the_ended(self) -> None:
        """Their sockets may not tell: what they have forked while they imported has them open as well."""
        for zygote in self.reaper.unseen:
            self._on_spoke(zygote)
            if zygote.number in self._zygotes:
                self._on_lost(zygote)

    def _on_overdue(self, zygote: ZygoteHandle, now_at: float) -> None:
        if zygote.state is ZygoteState.BOOTING and zygote.failure is None:
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
        self._starts.close()
        self.children.fork_no_more()
        self.rolling_reload.close()
        self._on_change()

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
            zygote.await_end(min(left_s, GOING_S) if zygote.state is ZygoteState.BOOTING else left_s)
        for zygote in self._zygotes.values():
            self.reaper.end_strangers(zygote)  # of one that was still importing, or was killed
