"""Keeps or gives up the leases of one shard when its session begins, resumes or is void. Runs in the master. No I/O."""

from collections.abc import Sequence

from supervisor.engine.commands.leasing import ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.ledger import Ledger
from supervisor.master.model.slots import Slots
from supervisor.master.redis.renewing import Renewing
from supervisor.ops.events import Events


class Resuming:
    def __init__(
        self,
        ledger: Ledger,
        slots: Slots,
        answers: LeaseAnswers,
        renewing: Renewing,
        events: Events,
        counts: MasterCounts,
    ) -> None:
        self._ledger = ledger
        self._reports = ledger.reports
        self._slots = slots
        self._answers = answers
        self._renewing = renewing
        self._events = events
        self._counts = counts

    @property
    def claims(self) -> Sequence[LeaseRecord]:
        """All leases that the master holds, for Redis to renew."""
        return self._ledger.leases

    def on_resumed(self, claimed: Sequence[LeaseRecord], resumed: ResumeResult) -> None:
        self._renewing.on_resumed(claimed, resumed)
        self._report_starts_again()
        if resumed.handed_back:
            self._counts.handed_back += resumed.handed_back
            self._events.emit("lease.returned", count=resumed.handed_back)

    def _report_starts_again(self) -> None:
        """Report running jobs as started once more: until now reports were lost with the connection, or not made.

        Jobs that do not run, as none could be sent, are reported when they start.
        """
        running = {run.held for child in self._slots for run in child.runs}
        for held in self._ledger.held:
            if held not in running:
                held.start_reported = False
            elif held.start_reported:
                self._reports.add_start(held)

    def give_up_all(self) -> None:
        """All leases are void: stop their jobs. Those that have ended and are not settled will be answered as stale."""
        self._answers.lost([(held, "lease-lost") for held in self._ledger.held])
        for held, number in self._reports.take_unstored():
            self._answers.stored(held, number, kept=False)
