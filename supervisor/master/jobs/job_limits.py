"""Decides when each child is looked at next, and keeps time limits. Runs in the master.

A job is stopped without its consent: it may be in C code, or hostile. `Interrupter` interrupts and kills.
"""

import math
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.disk_usage import DiskUsage
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.memory_limits import MemoryLimits
from supervisor.master.jobs.placing import Placing
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import TIMEOUT

#: Time between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.1
#: A handler is told this share of its time limit before the limit, but at most the term grace before.
_NEAR: Final = 0.1


class JobLimits:
    def __init__(
        self,
        config: RunConfig,
        placing: Placing,
        interrupter: Interrupter,
        memory: MemoryLimits,
        disk: DiskUsage,
        cut_off: CutOff,
        timers: Timers,
    ) -> None:
        self._config = config
        self._placing = placing
        self._interrupter = interrupter
        self._memory = memory
        self._disk = disk
        self._cut_off = cut_off
        self._timers = timers

    def plan(self, child: ChildHandle) -> None:
        """Something of this child is due sooner than before, or the child is closed. Later deadlines need no call."""
        running = child.running
        self._timers.set(child, self._due_at(child, running), partial(self._attend, child))
        if running is not None and running.fence is not None:
            self._cut_off.look_now()

    def _due_at(self, child: ChildHandle, running: HeldLease | None) -> float:
        if child.state is ChildState.GONE:
            return math.inf
        if running is None or child.state is not ChildState.BUSY:
            return child.end_plan.kill_at or (child.next_sample_at if self._memory.measures_idle(child) else math.inf)
        plan = child.end_plan
        end_at = min(plan.stop_at, plan.kill_at or self._limit_at(child, running))
        due_at = min(child.next_sample_at, child.notices.repeat_at, end_at)
        return due_at if child.overran else min(due_at, running.started_at + self._config.dispatch_ahead_s)

    def _limit_at(self, child: ChildHandle, running: HeldLease) -> float:
        """Return when the job's time is over, or nearly over if the handler was not told yet."""
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
                self._memory.look_at_idle(child, now_at)
        self.plan(child)

    def _attend_job(self, child: ChildHandle, running: HeldLease, now_at: float) -> None:
        if now_at >= child.notices.repeat_at:
            child.notices.repeat()
        if not child.overran and now_at >= running.started_at + self._config.dispatch_ahead_s:
            self._placing.on_overrun(child, running)
        if now_at >= child.end_plan.stop_at:
            self._interrupter.on_patience_over(child)
        if child.end_plan.kill_at is None and now_at >= self._limit_at(child, running):
            self._on_time_up(child, running)
        if now_at >= child.next_sample_at:
            self._disk.watch(child, running)  # a job that runs for this long may run long enough to fill the disk
            self._memory.look(child, running, now_at)

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
