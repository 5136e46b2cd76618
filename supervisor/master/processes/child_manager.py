"""Children coming and going: asked of a zygote, forked, ready, and buried. Runs in master.

Owns the watching of their sockets. What it means that some do not get ready is decided by `CrashLoopGuard`, what a
child's end means for its jobs by `on_gone`.
"""

import errno
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from signal import SIGKILL
from typing import Final

from supervisor import clock
from supervisor.config import Config
from supervisor.linux import kernel, strays
from supervisor.master.inbox import Inbox
from supervisor.master.model import memory, outcome_rules
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.output import LONGEST_REST_S
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState, ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.crash_loop_guard import PROBATION_S, CrashLoopGuard
from supervisor.messages import BootFailed, Reaped, SpawnFailed
from supervisor.ops.events import Events

#: A zygote that was asked for a child must have said something by then, or it is retired.
_SPAWN_S: Final = 10.0
#: A child is dead: its zygote must have ended its leftovers and said so by then.
_REPORT_S: Final = 2.0
#: Between the signal that writes the Python stacks of a child, or a zygote, and its kill.
STACKS_S: Final = 0.2
#: Between two looks at the memory of a zygote that forks.
_ZYGOTE_LOOK_S: Final = 0.1
#: Descriptors that children leave to the rest of us: pidfds of those under way, looks at memory, payloads, Redis.
_KEPT_FREE: Final = 24
#: Who prints too much rests once, twice, thrice as long beside none, so many, twice as many that do.
_RESTING_APART: Final = 4
#: Why a child is killed that does not get ready.
NOT_READY: Final = "boot"


class ChildManager:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        inbox: Inbox,
        events: Events,
        budget: Budget,
        zygotes: Mapping[int, ZygoteHandle],
        retire: Callable[[ZygoteHandle, str], None],
        on_spoke: Callable[[ChildHandle], None],
        on_gone: Callable[[ChildHandle, Reaped | None, str | None], None],
        on_line: Callable[[ChildHandle, int, bytes], None],
        on_planned: Callable[[ChildHandle], None],
        on_change: Callable[[], None],
    ) -> None:
        """`zygotes`: those that live, by number. `retire(zygote, why)`: it does not answer. `on_spoke(child)` reads
        what it says; `on_gone(child, its end if known, why we killed it)` settles what it held. `on_change()` is
        called when `keep_time` may have something to do, or `deadline_at` may be sooner.
        """
        self._config = config
        self._slots = slots
        self._inbox = inbox
        self._events = events
        self._budget = budget
        self._zygotes = zygotes
        self._retire = retire
        self._on_spoke = on_spoke
        self._on_gone = on_gone
        self._on_line = on_line
        self._on_planned = on_planned
        self._on_change = on_change
        self._stillborn = CrashLoopGuard(events)
        self._closing = False
        self._unready: dict[ChildHandle, ZygoteHandle] = {}  # children that have not been seen ready
        self._probes: dict[ChildHandle, ZygoteHandle] = {}  # those that only show that a zygote is of use: in no slot
        self._kill_at: dict[ChildHandle, float] = {}  # of them those that are overdue, while they write their stacks
        self._report_by_at: dict[
            ChildHandle, float
        ] = {}  # those that have ended, and when their zygote must have said so
        self._resting: dict[ChildHandle, float] = {}  # those that print too much, and until when nobody reads it
        self._untold: dict[ChildHandle, float] = {}  # those of which lines were left out, and when that is to be said
        self._lines_dropped = 0  # of what those have printed that have ended
        self.open_files = kernel.allow_open_files()  # of a child
        self._most_files = kernel.most_open_files()

    def of(self, zygote: ZygoteHandle) -> list[ChildHandle]:
        return [child for child in self._everyone() if child.zygote == zygote.number]

    def _everyone(self) -> list[ChildHandle]:
        return [*self._slots, *self._probes]

    @property
    def failure(self) -> BootFailed | None:
        """Why there is no use in forking more."""
        return self._stillborn.failure

    @property
    def lines_dropped(self) -> int:
        """Of all that children have printed so far, what was more than the log takes."""
        return self._lines_dropped + sum(child.output.dropped for child in self._everyone())

    # asking for them

    def fill(self, zygote: ZygoteHandle, now_at: float) -> bool:
        """Ask for the children that are missing. Return whether there were any."""
        if now_at < self._stillborn.fork_after_at or (wanted := self._wanted()) <= 0:
            return False
        for _ in range(wanted):
            try:
                child = self._ask_for_child(zygote)
            except OSError as error:
                # Our descriptors or the room in its socket are used up. If it is its end, we shall be told.
                self._stillborn.put_off(f"no child can be asked for ({error})")
                break
            self._slots.add(child)
            self._unready[child] = zygote
        return True

    @property
    def fill_at(self) -> float:
        """When `fill` may have something to do (monotonic s)."""
        return self._stillborn.fork_after_at

    def fill_now(self) -> None:
        """There is another zygote."""
        self._stillborn.fork_now()

    def _wanted(self) -> int:
        """How many children to ask for now; after one that did not get ready, one at a time."""
        missing = 0 if self._closing else self._slots.missing()
        return min(missing, 1 - len(self._unready)) if self._stillborn.any or self._kill_at else missing

    def _ask_for_child(self, zygote: ZygoteHandle) -> ChildHandle:
        number = self._slots.free_number({probe.number for probe in self._probes})
        child = ChildHandle(number, zygote.number, self._on_line, self._on_planned)
        try:
            if child.output.fd >= self._most_files - _KEPT_FREE:  # the kernel gives the lowest number that is free
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            zygote.spawn(child.number, child.child_ends)
        except OSError:
            child.close()
            raise
        finally:
            child.close_child_ends()
        return child

    # for a zygote that is to show that it is of use

    def probe(self, zygote: ZygoteHandle) -> None:
        """Ask for one child that gets no job. When it is ready `zygote.proven` is set, when it is not to be had
        `zygote.failure`. Raises OSError where none can be asked for.
        """
        self._probes[self._ask_for_child(zygote)] = zygote

    def begin_anew(self, zygote: ZygoteHandle) -> None:
        """This one forks from now on, and its probe is a child like others."""
        for child in [probe for probe, its in self._probes.items() if its is zygote]:
            del self._probes[child]
            self._slots.add(child)
        self._stillborn.begin_anew()

    # what becomes of them

    def on_spawned(self, zygote: ZygoteHandle, number: int, pid: int, pidfd: int) -> None:
        child = self._find(zygote, number)
        if child is None or child.pidfd is not None:  # foreign code in the zygote may say it twice
            os.close(pidfd)
            return
        if zygote.state is ZygoteState.CURRENT:
            self._look_at_zygote(zygote)
        self._await_reports(zygote)
        child.spawned(pid, pidfd, zygote.inherited)
        # Not read before: a child whose end could be neither seen nor brought about must have no job.
        self._inbox.watch(child.talk.fd, partial(self._on_talk, child))
        self._inbox.watch(child.output.fd, partial(self._on_printed, child))
        self._inbox.watch(pidfd, partial(self._on_ended, child))
        self._events.emit("child.spawned", child=number, pid=pid)

    def _find(self, zygote: ZygoteHandle, number: int) -> ChildHandle | None:
        for child in self._probes:
            if child.number == number:
                return child if child.zygote == zygote.number else None
        child_in_slot = self._slots.get(number)
        return child_in_slot if child_in_slot is not None and child_in_slot.zygote == zygote.number else None

    def _await_reports(self, zygote: ZygoteHandle) -> None:
        """While it forked it could not report an end: whose report was due meanwhile is due a while from now."""
        now_at = clock.monotonic()
        for child, report_by_at in self._report_by_at.items():
            if child.zygote == zygote.number and now_at >= report_by_at:
                self._report_by_at[child] = now_at + _REPORT_S

    def _look_at_zygote(self, zygote: ZygoteHandle) -> None:
        """What its children have from it: hooks and threads may have it grow."""
        now_at = clock.monotonic()
        if now_at >= zygote.look_at:
            zygote.look_at = now_at + _ZYGOTE_LOOK_S
            zygote.inherited = memory.of(zygote.pid) or zygote.inherited
            self._budget.use_zygote(zygote.inherited)

    def on_spawn_failed(self, zygote: ZygoteHandle, failed: SpawnFailed) -> None:
        child = self._find(zygote, failed.child)
        if child is None or child.pidfd is not None:  # or say it of one that lives
            return
        if failed.traceback or child in self._probes:
            self._count_stillborn(child, failed.message, failed.traceback)
        elif clock.monotonic() >= self._stillborn.fork_after_at:  # else it has been said of another one just now
            self._stillborn.put_off(f"no child can be forked ({failed.message})")
        self.forget(child)

    def _on_ended(self, child: ChildHandle) -> None:
        """The kernel says so. Its zygote, which ends what it left running, must say so soon."""
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        child.ended_at = clock.monotonic()
        self._on_change()
        self._report_by_at[child] = child.ended_at + _REPORT_S

    def _on_talk(self, child: ChildHandle) -> None:
        self._read_talk(child)
        if child.talk.at_end:
            self._inbox.forget(child.talk.fd)  # it stays readable for ever

    def _read_talk(self, child: ChildHandle) -> None:
        self._on_spoke(child)
        if child in self._unready or child in self._probes or self._stillborn.any:
            self._on_change()  # it may have got ready, or have proved itself

    def _on_printed(self, child: ChildHandle) -> None:
        """Read it. Who prints too much waits, longer beside others who do; who has closed its output, for ever."""
        self._read_talk(child)  # what was answered before this was printed
        child.output.read()
        if (untold_at := child.output.untold_at) < math.inf:
            self._untold[child] = untold_at
            self._on_change()
        if child.output.at_end:
            self._inbox.forget(child.output.fd)
        elif (rest_s := child.output.rests_until_at - clock.monotonic()) > 0:
            self._inbox.forget(child.output.fd)
            rest_s *= 1 + len(self._resting) // _RESTING_APART
            self._resting[child] = clock.monotonic() + min(rest_s, LONGEST_REST_S)
            self._on_change()

    def on_reaped(self, zygote: ZygoteHandle, reaped: Reaped) -> None:
        self._events.emit(
            "child.reaped", child=reaped.child, pid=reaped.pid, status=outcome_rules.death_reason(reaped.status),
            cpu_ms=round(reaped.cpu_s * 1000), max_rss_bytes=reaped.max_rss_bytes,
        )  # fmt: skip
        child = self._find(zygote, reaped.child)
        if child is not None and child.pid == reaped.pid:
            self.bury(child, reaped, child.why_killed)

    def bury(self, child: ChildHandle, reaped: Reaped | None, why_killed: str | None) -> None:
        """It has ended. `reaped`: what its zygote says of that; `why_killed`: why we did it."""
        spawning = child.state is ChildState.SPAWNING
        idle = child.state in (ChildState.IDLE, ChildState.DOOMED) and not child.served and not child.sent
        self._on_gone(child, reaped, why_killed)
        # Its last words may be that it is ready.
        self._note_ready(child, spawning and child.state is not ChildState.SPAWNING and child.why_killed is None)
        child.output.read_to_end()
        # A kill from outside may be anybody's, and says nothing about the next one.
        by_itself = child.why_killed is not None or (reaped is not None and reaped.status != SIGKILL)
        early = idle and by_itself and not self._closing and clock.monotonic() < child.asked_at + PROBATION_S
        unready = child in self._unready or child in self._probes
        if (unready or early) and child.why_killed not in outcome_rules.INTERRUPTIONS:
            self._on_stillborn(child, reaped)
        self.forget(child)

    def forget(self, child: ChildHandle) -> None:
        self._on_change()
        self._inbox.forget(child.talk.fd)
        self._inbox.forget(child.output.fd)
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        if self._probes.pop(child, None) is None:
            self._slots.remove(child)
        self._unready.pop(child, None)
        self._kill_at.pop(child, None)
        self._report_by_at.pop(child, None)
        self._resting.pop(child, None)
        self._untold.pop(child, None)
        self._stillborn.forget(child)
        child.close()
        self._lines_dropped += child.output.dropped

    def lose(self, zygote: ZygoteHandle, why: str) -> list[ChildHandle]:
        """The zygote has ended, and takes its children along: wait until they have. They are still to be buried."""
        children = self.of(zygote)
        for child in children:
            self._note_ready(child)
            child.kill(why)
        kernel.await_ends([child.pidfd for child in children if child.pidfd is not None], _REPORT_S)
        return children

    # whether they get ready

    def _note_ready(self, child: ChildHandle, surely: bool = False) -> None:
        """What one child could, the next ones can."""
        if child not in self._unready or not (surely or child.is_ready or child.sent or child.served):
            return
        zygote = self._unready.pop(child)
        zygote.proven = True
        zygote.born += 1
        self._kill_at.pop(child, None)
        self._stillborn.note_ready(child)

    def _on_stillborn(self, child: ChildHandle, reaped: Reaped | None) -> None:
        how = outcome_rules.death_reason(reaped.status) if reaped else "its end was not reported"
        if child.why_killed == NOT_READY:
            how = f"killed by us: it was not ready within {self._config.boot_timeout_s:g} s; see --boot-timeout"
        elif child.why_killed is not None:
            how = f"killed by us: {child.why_killed}"
        said = f"{child.output.last_of(0).rstrip()}\n{child.stacks.read().rstrip()}".strip()
        before = "it had answered a job" if child not in self._unready and child not in self._probes else "it was ready"
        self._count_stillborn(child, f"a child ended before {before} ({how})", said)

    def _count_stillborn(self, child: ChildHandle, what: str, said: str) -> None:
        """`said`: its last words."""
        if child in self._probes:
            self._probes[child].failure = BootFailed(what, said)
        else:
            self._stillborn.count(child, what, said)

    # time

    def deadline_at(self) -> float:
        deadlines = map(self._child_deadline_at, self._under_way())
        printers_at = (*self._resting.values(), *self._untold.values())
        return min(self._stillborn.deadline_at(), *deadlines, *printers_at, math.inf)

    def _under_way(self) -> list[ChildHandle]:
        """Those that are still to get ready, or to be reported."""
        spawning = [child for child in (*self._unready, *self._probes) if child.state is ChildState.SPAWNING]
        return list(dict.fromkeys((*self._report_by_at, *spawning)))

    def _child_deadline_at(self, child: ChildHandle) -> float:
        report_by_at = self._report_by_at.get(child)
        if report_by_at is not None:
            zygote = self._zygotes.get(child.zygote)
            if zygote is not None and zygote.runs_hooks:
                return max(report_by_at, self._forks_until_at(zygote))  # they may take their time
            return report_by_at
        if child.pidfd is None:
            return max(child.asked_at, self._zygotes[child.zygote].heard_at) + _SPAWN_S
        return self._kill_at.get(child, child.asked_at + self._config.boot_timeout_s)

    def _forks_until_at(self, zygote: ZygoteHandle) -> float:
        """When this zygote, if it has been asked for a child, must have said something."""
        if any(child.pidfd is None and child.zygote == zygote.number for child in self._everyone()):
            return zygote.heard_at + _SPAWN_S
        return -math.inf

    def keep_time(self, now_at: float) -> None:
        self._stillborn.keep_time(now_at)
        for child in [child for child, until_at in self._resting.items() if now_at >= until_at]:
            del self._resting[child]
            self._inbox.watch(child.output.fd, partial(self._on_printed, child))
        for child in [child for child, untold_at in self._untold.items() if now_at >= untold_at]:
            del self._untold[child]
            child.output.open_window(now_at)
        for child in tuple(self._unready):
            self._note_ready(child)
        for child, zygote in self._probes.items():
            zygote.proven = child.state is ChildState.IDLE and child not in self._report_by_at
        for child in [child for child in self._under_way() if now_at >= self._child_deadline_at(child)]:
            if child in self._under_way():  # else what was done about another one has seen to it
                self._on_overdue(child, now_at)

    def _on_overdue(self, child: ChildHandle, now_at: float) -> None:
        zygote = self._zygotes.get(child.zygote)
        if child in self._report_by_at:
            if zygote is not None:
                self._retire(zygote, "it does not report the end of a child")
                self._end_strangers_below(zygote, child)
            self.bury(child, None, child.why_killed)
        elif child.pidfd is None:
            if zygote is not None:
                self._retire(zygote, "it does not fork")
        elif child not in self._kill_at:
            child.write_stacks()
            self._kill_at[child] = now_at + STACKS_S
        else:
            self._events.emit("child.killed", child=child.number, pid=child.pid, reason=NOT_READY)
            child.kill(NOT_READY)

    def _end_strangers_below(self, zygote: ZygoteHandle, dead: ChildHandle) -> None:
        """What a dead child has left running must not meet the next run of its job: its zygote does not see to it."""
        living = {child.pid for child in self.of(zygote) if child is not dead}
        strays.end_strays_of(zygote.pid, living, clock.monotonic() + strays.TRY_S)

    # the end

    def fork_no_more(self) -> None:
        """Who ends from now on has no successor."""
        self._closing = True

    def abandon(self, why: str) -> None:
        """What has not ended after its kill is not waited for: its jobs are handed back all the same."""
        for child in self._slots:
            if child.sent:
                self.bury(child, None, why)
