"""Acts on what Redis says of running jobs: what is stored, results of parents, or a lost lease. Runs in the master."""

from collections.abc import Sequence

from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.placing import Placing
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.messages import ResultsPage, pack_page
from supervisor.ops.events import Events


class LeaseAnswers:
    def __init__(
        self,
        slots: Slots,
        ledgers: Ledgers,
        placing: Placing,
        interrupter: Interrupter,
        events: Events,
        counts: MasterCounts,
    ) -> None:
        self._slots = slots
        self._ledgers = ledgers
        self._placing = placing
        self._interrupter = interrupter
        self._events = events
        self._counts = counts

    def stored(self, held: HeldLease, number: int, kept: bool) -> None:
        """Tell the child whether Redis has the checkpoint. `kept` False: the lease is lost."""
        child = self._child_of(held)
        if child is not None:
            child.talk.answer_checkpoint(number, kept)

    def taken(self, held: HeldLease, count: int) -> None:
        """Tell the child how many chunks of the job Redis has."""
        child = self._child_of(held)
        if child is not None:
            child.talk.answer_chunks(held.lease.token, count)

    def results(self, held: HeldLease, page: ResultsPage) -> None:
        """Give the child the results of parents that the job has asked for."""
        child = self._child_of(held)
        if child is not None:
            child.talk.send(pack_page(page))

    def _child_of(self, held: HeldLease) -> ChildHandle | None:
        """Return the child that has the job, or has answered it: a thread that the job has left may wait."""
        child = self._slots.get(held.child_number)
        # Another child may have the number by now.
        return child if child is not None and child.asked_at == held.child_asked_at else None

    def lost(self, lost: Sequence[tuple[HeldLease, str]]) -> None:
        """Stop the jobs of these leases, each for a reason of `Interrupted.reason`: cancelled, lease-lost.

        A job that its child has not received never begins. A running job is interrupted, and killed after the grace.
        """
        self._counts.lost += len(lost)
        for held, why in lost:  # all of them first: a lost job that is taken back must not go to another child
            self._ledgers.lose(held, why)
            self._say_cancelled(held)
        for held, why in lost:
            self._stop(held, why)

    def _say_cancelled(self, held: HeldLease) -> None:
        lease, by = held.lease, held.cancelled_by
        if by is not None:
            self._events.emit("job.cancelled", jid=lease.jid, klass=lease.klass, queue=lease.queue, by=by or None)

    def _stop(self, held: HeldLease, why: str) -> None:
        child = self._slots.get(held.child_number)
        if child is None or not child.has(held):
            return
        if unstored := held.reports.unstored:
            child.talk.answer_checkpoint(unstored[-1].number, kept=False)
        self._events.emit(
            "lease.lost", jid=held.lease.jid, klass=held.lease.klass, child=child.number, reason=why,
            by=held.cancelled_by or None,
        )  # fmt: skip
        self._placing.withdraw(child)  # the kernel knows whether the child has received the job
        run = child.run_of(held.lease.token)
        if run is not None:
            self._interrupter.stop(run, why)
