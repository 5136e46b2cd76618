"""Returns jobs that have not started: from a child to the ready ones, from there to their queue. Runs in the master."""

from typing import Final

from supervisor import clock
from supervisor.engine.model.outcomes import Released
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_log import JobLog
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers

#: The key of the timer at which ready jobs go back to their queues.
HAND_BACK: Final = "unstarted.hand-back"


class Unstarted:
    def __init__(
        self,
        slots: Slots,
        ledgers: Ledgers,
        budget: Budget,
        timers: Timers,
        interrupter: Interrupter,
        ahead_s: float,
        log: JobLog,
    ) -> None:
        """`ahead_s`: how long a ready job waits here for a child before it goes back."""
        self._slots = slots
        self._ledgers = ledgers
        self._budget = budget
        self._timers = timers
        self._interrupter = interrupter
        self._ahead_s = ahead_s
        self._log = log
        self.hand_back_planned = False

    def take_back(self, child: ChildHandle) -> None:
        """Make the jobs ready again that the child has not received. Kills a child that cuts them."""
        running = child.running
        taken = child.take_back()
        if child.jobs.is_cutting:
            self._interrupter.kill(child, "it cuts the packets in the socket that its jobs come by")
        if child.shared is None and child.running is not None and child.running is not running:
            # The child has received it while others were taken back.
            self._ledgers.by_shard[child.running.shard].reports.job_started(child.running)
            self._log.started(child.running)
        for held in reversed(taken):
            if child.shared is None:
                self._budget.settle(child.number, held.lease.klass, held.lease.jid)
            elif not child.sent:
                self._budget.settle(child.number, held.lease.klass, child.shared.name)
            if held.lost_reason:
                continue
            if held.has_payload:
                self._ledgers.ready.appendleft(held)
            else:  # no descriptor was left for its payload
                self._ledgers.by_shard[held.shard].end(held, Released(held.lease, started=False))
        if child.state is ChildState.IDLE and child.retire_reason is not None:
            self._interrupter.leave(child)  # it was to leave after these jobs

    def take_back_all(self) -> None:
        for child in self._slots:
            self.take_back(child)

    def take_back_ahead(self) -> None:
        """Take back the jobs that wait at busy children."""
        for child in self._slots:
            if child.shared is None and len(child.sent) > 1:
                self.take_back(child)

    def hand_back(self) -> None:
        """Hand all ready jobs back to their queues, uncounted."""
        self._cancel()
        while self._ledgers.ready:
            held = self._ledgers.ready.popleft()
            self._ledgers.by_shard[held.shard].end(held, Released(held.lease, started=False))

    def plan_hand_back(self, is_moving: bool) -> None:
        """Hand the ready jobs back, unless one of them starts in time. `is_moving`: one has just been sent."""
        if not self._ledgers.ready:
            self._cancel()
        elif is_moving or not self.hand_back_planned:
            self.hand_back_planned = True
            self._timers.set(HAND_BACK, clock.monotonic() + self._ahead_s, lambda _now_at: self.hand_back())

    def _cancel(self) -> None:
        self.hand_back_planned = False
        self._timers.cancel(HAND_BACK)
