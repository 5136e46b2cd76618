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
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.outcome_rules import INTERRUPTIONS
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import TIMEOUT

#: Time between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.1
#: The start of a job that was expected to be short is reported after this time at the latest.
_REPORT_S: Final = 0.02
#: A packet for which there was no room is sent again after this time.
_FLUSH_S: Final = 0.002
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

    def plan(self, child: ChildHandle, token: int = 0) -> None:
        """Something of this child is due sooner than before, or the child is closed. Later deadlines need no call.

        `token`: of the job of a shared child for which something is due, or which has ended.
        """
        if token:
            self._plan_beside(child, token)
            return
        running = child.running
        self._timers.set(child, self._due_at(child, running), partial(self._attend, child))
        if running is not None and running.fence is not None:
            self._cut_off.look_now()

    def _plan_beside(self, child: ChildHandle, token: int) -> None:
        """Plan for one job of a shared child, whose other jobs have plans of their own."""
        run, key = child.run_of(token), (child, token)
        if run is None:
            self._timers.cancel(key)
            return
        self._timers.set(key, self._run_due_at(run), partial(self._attend_beside, child, token))
        if run.held.fence is not None:
            self._cut_off.look_now()

    def _attend_beside(self, child: ChildHandle, token: int, now_at: float) -> None:
        run = child.run_of(token)
        if run is not None and now_at >= self._run_due_at(run):
            self._report_start(run.held, now_at)
            kill_at = run.end_plan.kill_at
            if kill_at is not None and now_at >= kill_at:
                self._kill_for(child, run, now_at)
            else:
                self._attend_run(child, run, now_at)
        self._plan_beside(child, token)

    def _kill_for(self, child: ChildHandle, run: JobRun, now_at: float) -> None:
        """Kill a shared child for one of its jobs.

        That job is to blame only if the loop turns: another one may block it. So the child is asked before.
        """
        if not run.was_asked and run.end_plan.kill_reason not in INTERRUPTIONS:
            run.was_asked, run.has_answered = True, False
            run.notices.mention(run.held.lease.token, run.end_plan.kill_reason)
            run.end_plan.kill_at = now_at + _STACKS_S
            return
        if child.shared is not None and run.has_answered:
            child.shared.culprit = run.held
        self._interrupter.kill(child, run.end_plan.kill_reason, run.end_plan.kill_sentence)
        run.end_plan.kill_at = None

    def _overrun_at(self, running: HeldLease) -> float:
        """Return when the job has taken longer than jobs that others may wait for."""
        return running.started_at + self._config.dispatch_ahead_s

    def _report_at(self, running: HeldLease) -> float:
        """Return when Redis must be told of the job's start. Infinity: it knows."""
        if running.start_reported:
            return math.inf
        return running.started_at + min(_REPORT_S, self._config.dispatch_ahead_s)

    def _report_start(self, running: HeldLease, now_at: float) -> None:
        if now_at >= self._report_at(running):
            self._placing.report_start(running)

    def _run_due_at(self, run: JobRun) -> float:
        return min(run.notices.repeat_at, run.end_plan.kill_at or self._limit_at(run), self._report_at(run.held))

    def _due_at(self, child: ChildHandle, running: HeldLease | None) -> float:
        if child.state is ChildState.GONE:
            return math.inf
        if running is None or child.state is not ChildState.BUSY:
            return child.end_plan.kill_at or (child.next_sample_at if self._memory.measures_idle(child) else math.inf)
        plan, only = child.end_plan, child.only
        flush_at = clock.monotonic() + _FLUSH_S if child.talk.has_unsent else math.inf
        if only is None:  # the jobs of a shared child have timers of their own
            return min(child.next_sample_at, plan.stop_at, plan.kill_at or math.inf, flush_at)
        due_at = min(child.next_sample_at, plan.stop_at, self._run_due_at(only), flush_at)
        return due_at if child.overran else min(due_at, self._overrun_at(running))

    def _limit_at(self, run: JobRun) -> float:
        """Return when the job's time is over, or nearly over if the handler was not told yet."""
        running = run.held
        if not running.limit_s:
            return math.inf
        if run.warned_of_timeout:
            return running.started_at + running.limit_s
        return running.started_at + running.limit_s - min(_NEAR * running.limit_s, self._config.term_grace_s)

    def _attend(self, child: ChildHandle, now_at: float) -> None:
        child.talk.flush()
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
        only = child.only
        if only is not None:
            self._report_start(running, now_at)
            if not child.overran and now_at >= self._overrun_at(running):
                self._placing.on_overrun(child)
        if now_at >= child.end_plan.stop_at:
            self._interrupter.on_patience_over(child)
        if only is not None:
            self._attend_run(child, only, now_at)
        if now_at >= child.next_sample_at:
            self._disk.watch(child, running)  # a job that runs for this long may run long enough to fill the disk
            self._memory.look(child, running, now_at)

    def _attend_run(self, child: ChildHandle, run: JobRun, now_at: float) -> None:
        if now_at >= run.notices.repeat_at:
            run.notices.repeat()
        if run.end_plan.kill_at is None and now_at >= self._limit_at(run):
            self._on_time_up(child, run)

    def _on_time_up(self, child: ChildHandle, run: JobRun) -> None:
        running = run.held
        ran_s = clock.monotonic() - running.started_at
        child.stacks.write_heading(f"after {ran_s:.3g} s, {'at' if run.warned_of_timeout else 'near'} its time limit:")
        child.write_stacks()
        if run.warned_of_timeout:
            words = f"the job passed its time limit of {running.limit_s:g} s"
            run.end_plan.kill_by(clock.monotonic() + _STACKS_S, "timeout", words)
        else:
            run.warned_of_timeout = True
            run.notices.interrupt(running.lease.token, TIMEOUT, f"the time limit of {running.limit_s:g} s is near")
