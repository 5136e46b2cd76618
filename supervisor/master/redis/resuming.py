"""What becomes of the master's leases when a session begins, resumes or is void. Runs in the master. Does no I/O."""

from collections.abc import Callable, Sequence

from supervisor.engine.commands.writes import ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.session import Session
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model.counts import Counts
from supervisor.master.model.ledger import Ledger
from supervisor.master.model.slots import Slots
from supervisor.master.redis.renewing import Renewing
from supervisor.ops.events import Events


class Resuming:
    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        slots: Slots,
        dispatcher: Dispatcher,
        renewing: Renewing,
        events: Events,
        counts: Counts,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._slots = slots
        self._dispatcher = dispatcher
        self._renewing = renewing
        self._events = events
        self._counts = counts

    def resume(self, on_deregistered: Callable[[], None]) -> None:
        """Claim all leases that the master holds. Raises LinkLost."""
        self._session.finish_connecting(self._ledger.claims, self._on_resumed, on_deregistered)
        for child in self._slots:
            if child.running is not None and child.running.start_reported and not child.running.lost:
                self._ledger.has_started(child.running)  # the report may have been lost with the connection

    def _on_resumed(self, known: Sequence[LeaseRecord], resumed: ResumeResult) -> None:
        self._renewing.on_resumed(known, resumed)
        if resumed.handed_back:
            self._counts.handed_back += resumed.handed_back
            self._events.emit("lease.returned", count=resumed.handed_back)

    def begin_anew(self, on_deregistered: Callable[[], None]) -> None:
        """Redis has forgotten the worker: all its leases are void, and it goes on under another name. Raises LinkLost.

        Jobs that have ended and were not settled will be answered as stale.
        """
        old = self._session.worker
        self._dispatcher.on_lost([(held, "lease-lost") for held in self._ledger.held])
        for held, number in self._ledger.not_stored():
            self._dispatcher.on_stored(held, number, kept=False)
        self._session.rename(self._on_resumed, on_deregistered)
        self._events.set_worker(self._session.worker)
        self._events.emit("worker.deregistered", old=old, new=self._session.worker)
