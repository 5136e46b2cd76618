"""Kills jobs that break their memory limit, and children by which all break the budget. Runs in the master."""

from typing import Final

from supervisor import clock
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.job_cgroups import JobCgroups
from supervisor.master.jobs.kernel_kills import KernelKills
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.units import megabytes

#: Time between the signal that writes a child's Python stacks and its kill. It is short: the memory still grows.
_STACKS_S: Final = 0.01
#: A job that has more than this share above its limit is killed at once, without its stacks.
_SLIGHTLY: Final = 0.25
#: Time between two measurements of an idle child that has run jobs, if there is a budget.
_IDLE_LOOK_S: Final = 2.0


class MemoryLimits:
    def __init__(
        self,
        slots: Slots,
        budget: Budget,
        interrupter: Interrupter,
        kernel_kills: KernelKills,
        job_cgroups: JobCgroups | None,
    ) -> None:
        self._slots = slots
        self._budget = budget
        self._interrupter = interrupter
        self._kernel_kills = kernel_kills
        self._job_cgroups = job_cgroups

    def look(self, child: ChildHandle, running: HeldLease, now_at: float) -> None:
        """Measure the child with its running job, plan the next look, and keep the limits."""
        self._kernel_kills.look()
        grown_bytes, limit_bytes = child.meter.sample(), running.memory_limit_bytes
        own_bytes = grown_bytes - running.earlier_jobs_bytes
        if self._job_cgroups is not None and child.pid:
            self._job_cgroups.admit(
                child.number, child.pid, limit_bytes, child.meter.inherited_bytes + running.earlier_jobs_bytes
            )
        self._budget.measured(child.number, grown_bytes)
        most_bytes = limit_bytes and limit_bytes + running.earlier_jobs_bytes
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
        child.end_plan.kill_by(clock.monotonic() + _STACKS_S, "memory", words)

    # without a job

    def measures_idle(self, child: ChildHandle) -> bool:
        """Return whether the child is measured without a job: what a job has left running in it may go on growing."""
        return bool(child.state is ChildState.IDLE and child.served and self._budget.limit_bytes)

    def look_at_idle(self, child: ChildHandle, now_at: float) -> None:
        self._budget.measured(child.number, child.meter.sample())
        child.next_sample_at = now_at + _IDLE_LOOK_S
        self._keep_budget()

    # all children together

    def _keep_budget(self) -> None:
        while (number := self._budget.child_to_kill()) is not None:
            child = self._slots.get(number)
            lease = child.running.lease if child is not None and child.running is not None else None
            if lease is None or (child is not None and child.shared is not None):
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
