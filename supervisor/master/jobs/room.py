"""Makes room for a job that does not fit: in the memory budget, or among the children. Runs in the master."""

from collections.abc import Sequence
from typing import Final

from supervisor import clock
from supervisor.engine.model.outcomes import Released
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.child_choice import ChildChoice
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.budget import Budget
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.ops.events import Events

#: A job for which the other jobs have waited long enough is offered again after this time.
_PUT_OFF_S: Final = 10.0


class RoomMaker:
    def __init__(
        self,
        slots: Slots,
        ledgers: Ledgers,
        budget: Budget,
        admission: Admission,
        choice: ChildChoice,
        interrupter: Interrupter,
        events: Events,
    ) -> None:
        self._slots = slots
        self._ledgers = ledgers
        self._budget = budget
        self._admission = admission
        self._choice = choice
        self._interrupter = interrupter
        self._events = events

    def make_child(self, ready: Sequence[HeldLease]) -> None:
        """No child may have the first ready job: let idle children of other trust domains leave for new ones."""
        in_the_way = self._choice.in_the_way(ready)
        for child in in_the_way:
            child.retire("the next job may not share a child with those that it has had")
            self._interrupter.leave(child)
        if in_the_way:
            self._admission.wait_for_room()

    def make_memory(self, held: HeldLease) -> bool:
        """The memory budget has no room for the first ready job. Returns whether the job goes on waiting here.

        While it waits nothing is leased, so the job is the next one to start here. It may run at another worker if it
        is handed back meanwhile. After some time the job goes back to its queue, because others must not wait longer.
        """
        lease = held.lease
        why = self._budget.put_off(lease.klass, lease.jid, clock.monotonic())
        if why is not None:
            self._events.warn(f"{why}; it is tried again in {_PUT_OFF_S:g} s")
            self._ledgers.ready.remove(held)
            self._ledgers.by_shard[held.shard].end(held, Released(lease, started=False, delay=_PUT_OFF_S))
            return False
        self._admission.wait_for_room()
        spare = self._slots.get(self._budget.idle_child_to_end() or 0)
        if spare is not None and spare.state is ChildState.IDLE:
            spare.retire("its memory is needed for another job")
            self._interrupter.leave(spare)
        return True
