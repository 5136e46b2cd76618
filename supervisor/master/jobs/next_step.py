"""Says what a child does after its job: its next job, another job later, or its exit. Runs in the master."""

from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.recycling import Recycling
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState


class NextStep:
    def __init__(self, slots: Slots, admission: Admission, recycling: Recycling, interrupter: Interrupter) -> None:
        self._slots = slots
        self._admission = admission
        self._recycling = recycling
        self._interrupter = interrupter

    def take(self, child: ChildHandle) -> None:
        """The child, which is busy, has answered jobs."""
        recycling = self._recycling
        if child.retire_reason is None and recycling.is_on_for(child) and (why := recycling.retire_reason_of(child)):
            child.retire(why)
        if child.shared is not None and child.sent:
            return  # its other jobs go on
        child.end_plan.kill_at = None
        child.follow_up()
        if child.sent:
            self._interrupter.tell_the_next(child)
        elif self._slots.is_done(child) or not self._admission.is_open:
            self._interrupter.leave(child)
        else:
            child.become(ChildState.IDLE)
