"""What a running job may take: time, memory, and disk. Runs in master. Owns when each child is looked at next.

Nothing here waits for a child's consent: it may sit in C code, or be hostile. Decides when; `Interrupter` kills.
"""

import math
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.config import Config, megabytes
from supervisor.linux import cgroups
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.disk_usage import DiskUsage
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.jobs.job_cgroups import JobCgroups
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.ledger import HeldLease
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import TIMEOUT

#: Between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.1
#: The same where memory is the reason: meanwhile it grows on. A job that has already grown beyond its limit by more
#: than this share of it is killed at once.
_MEMORY_STACKS_S: Final = 0.01
_SLIGHTLY: Final = 0.25
#: A handler is told that its time limit is near by this share of the limit before it, at most by the term grace.
_NEAR: Final = 0.1
#: A kill by the kernel is put down to the deaths that come to light within this time.
_EXPLAINED_S: Final = 3.0
#: Between two looks at the memory of a child that has run jobs and has none, where there is a budget.
_IDLE_LOOK_S: Final = 2.0
#: Between two looks at its count, while jobs run.
_LOOK_S: Final = 1.0


class JobLimits:
    def __init__(
        self,
        config: Config,
        slots: Slots,
        dispatcher: Dispatcher,
        budget: Budget,
        kills: "KernelKills",
        cells: JobCgroups | None,
        disk: DiskUsage,
        cut_off: CutOff,
        timers: Timers,
    ) -> None:
        self._config = config
        self._slots = slots
        self._dispatcher = dispatcher
        self._interrupter = dispatcher.interrupter
        self._budget = budget
        self._kills = kills
        self._job_cgroups = cells
        self._disk = disk
        self._cut_off = cut_off
        self._timers = timers

    def plan(self, child: ChildHandle) -> None:
        """Something of this child is due sooner than before, or it is closed. What is due later needs no word."""
        running = child.running
        self._timers.set(child, self._due_at(child, running), partial(self._attend, child))
        if running is not None and running.fence is not None:
            self._cut_off.look_now()

    def _due_at(self, child: ChildHandle, running: HeldLease | None) -> float:
        if child.state is ChildState.GONE:
            return math.inf
        if running is None or child.state is not ChildState.BUSY:
            return child.end_plan.kill_at or (child.next_sample_at if self._is_looked_at_idle(child) else math.inf)
        plan = child.end_plan
        end_at = min(plan.stop_at, plan.kill_at or self._limit_at(child, running))
        due_at = min(child.next_sample_at, child.notices.repeat_at, end_at)
        return due_at if child.overran else min(due_at, running.started_at + self._config.dispatch_ahead_s)

    def _limit_at(self, child: ChildHandle, running: HeldLease) -> float:
        """When its time is over, or nearly."""
        if not running.limit_s:
            return math.inf
        if child.warned_of_timeout:
            return running.started_at + running.limit_s
        return running.started_at + running.limit_s - min(_NEAR * running.limit_s, self._config.term_grace_s)

    def _attend(self, child: ChildHandle, now_at: float) -> None:
        if now_at >= self._due_at(child, child.running):
            plan = child.end_plan
            if plan.kill_at is not None and now_at >= plan.kill_at:
                self._interrupter.kill(child, plan.kill_reason, plan.kill_sentence)
            elif child.running is not None:
                self._attend_job(child, child.running, now_at)
            elif plan.kill_at is None:
                self._look_at_idle(child, now_at)
        self.plan(child)

    def _attend_job(self, child: ChildHandle, running: HeldLease, now_at: float) -> None:
        if now_at >= child.notices.repeat_at:
            child.notices.repeat()
        if not child.overran and now_at >= running.started_at + self._config.dispatch_ahead_s:
            self._dispatcher.on_overrun(child, running)
        if now_at >= child.end_plan.stop_at:
            self._interrupter.on_patience_over(child)
        if child.end_plan.kill_at is None and now_at >= self._limit_at(child, running):
            self._on_time_up(child, running)
        if now_at >= child.next_sample_at:
            self._look(child, running, now_at)

    def _on_time_up(self, child: ChildHandle, running: HeldLease) -> None:
        ran_s = clock.monotonic() - running.started_at
        child.stacks.write_heading(
            f"after {ran_s:.3g} s, {'at' if child.warned_of_timeout else 'near'} its time limit:"
        )
        child.write_stacks()
        if child.warned_of_timeout:
            words = f"the job passed its time limit of {running.limit_s:g} s"
            child.end_plan.kill_by(clock.monotonic() + _STACKS_S, "timeout", words)
        else:
            child.warned_of_timeout = True
            child.notices.interrupt(running.lease.token, TIMEOUT, f"the time limit of {running.limit_s:g} s is near")

    # memory

    def _look(self, child: ChildHandle, running: HeldLease, now_at: float) -> None:
        self._disk.watch(child, running)  # a job that lives to see this may live to fill it
        self._kills.look()
        grown_bytes, limit_bytes = child.meter.sample(), running.memory_limit_bytes
        own_bytes = grown_bytes - running.base_bytes
        if self._job_cgroups is not None and child.pid:
            self._job_cgroups.admit(
                child.number, child.pid, limit_bytes, child.meter.inherited_bytes + running.base_bytes
            )
        self._budget.measured(child.number, grown_bytes)
        most_bytes = limit_bytes and limit_bytes + running.base_bytes
        child.next_sample_at = now_at + child.meter.next_in_s(most_bytes, self._budget.room_bytes())
        if limit_bytes and own_bytes > limit_bytes:
            self._on_beyond_limit(child, own_bytes, limit_bytes)
        else:
            self._keep_budget()

    def _on_beyond_limit(self, child: ChildHandle, own_bytes: int, limit_bytes: int) -> None:
        words = (
            f"the job's processes have {megabytes(own_bytes)} of private memory, its limit is {megabytes(limit_bytes)}"
        )
        is_planned = child.end_plan.kill_at is not None and child.end_plan.kill_reason == "memory"
        if is_planned or own_bytes > (1 + _SLIGHTLY) * limit_bytes:
            self._interrupter.kill(child, "memory", words)
            return
        child.stacks.write_heading("at its memory limit:")
        child.write_stacks()
        child.end_plan.kill_by(clock.monotonic() + _MEMORY_STACKS_S, "memory", words)

    def _is_looked_at_idle(self, child: ChildHandle) -> bool:
        """What a job has left running in it may go on growing."""
        return bool(child.state is ChildState.IDLE and child.served and self._budget.limit_bytes)

    def _look_at_idle(self, child: ChildHandle, now_at: float) -> None:
        self._budget.measured(child.number, child.meter.sample())
        child.next_sample_at = now_at + _IDLE_LOOK_S
        self._keep_budget()

    def _keep_budget(self) -> None:
        while (number := self._budget.child_to_kill()) is not None:
            child = self._slots.get(number)
            lease = child.running.lease if child is not None and child.running is not None else None
            if lease is None:
                self._budget.mark_killed(number)
            else:
                self._budget.mark_killed(number, lease.klass, lease.jid)
            if child is not None:
                self._interrupter.kill(child, "memory", self._beyond(child))

    def _beyond(self, child: ChildHandle) -> str:
        beyond = f"all processes together are beyond the memory budget of {megabytes(self._budget.limit_bytes)}"
        if child.running is None:
            return f"{beyond}, and it keeps {megabytes(child.meter.sampled_bytes)} for nobody"
        return (
            f"{beyond}, and this job's have grown most: {megabytes(child.meter.sampled_bytes)}; it runs alone next time"
        )


class KernelKills:
    """Whether a death was the kernel's OOM killer's: it counts whom it kills, and does not say whom."""

    def __init__(self, kills: cgroups.OomKills, cells: JobCgroups | None) -> None:
        self._kills = kills
        self._job_cgroups = cells
        self._unexplained = 0
        self._at = -math.inf
        self._look_at = 0.0

    def look(self) -> None:
        """Now and then: what is not asked for soon was none of our children, but a program of a job, or a neighbour."""
        now_at = clock.monotonic()
        if now_at >= self._look_at:
            self._count(now_at)

    def _count(self, now_at: float) -> None:
        self._look_at = now_at + _LOOK_S
        if now_at > self._at + _EXPLAINED_S:
            self._unexplained = 0
        if new := self._kills.new():
            self._unexplained, self._at = self._unexplained + new, now_at

    def verdict(self, child: int) -> str | None:
        """Of a child that has just died by SIGKILL, not by ours: memory, it met the wall of its cell; oom, all of us
        were short of it; None, it was somebody else.
        """
        self._count(clock.monotonic())
        in_its_cell = self._job_cgroups is not None and self._job_cgroups.oom_kills(child) > 0
        if not self._unexplained:
            return "memory" if in_its_cell else None
        self._unexplained -= 1
        return "memory" if in_its_cell else "oom"
