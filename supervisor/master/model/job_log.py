"""Logs and counts what happens to jobs before Redis hears of it. Runs in the master. Decides nothing.

The outcomes that Redis has answered are logged by `outcome_log`.
"""

from supervisor.engine.model.outcomes import Outcome
from supervisor.master.model import outcome_rules
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.outcome_log import account_of, start_of
from supervisor.ops.events import Events


class JobLog:
    def __init__(self, events: Events, counts: MasterCounts) -> None:
        self._events = events
        self._counts = counts

    def started(self, held: HeldLease) -> None:
        lease = held.lease
        self._counts.of(lease.queue, lease.klass).started += 1
        if lease.deaths or lease.interruptions:
            self._counts.note_start(lease.jid, held.started_at)
        self._events.emit_lazily("job.started", start_of, held)

    def not_sent(self, error: OSError) -> None:
        self._events.warn(f"a job cannot be sent to a child ({error})")

    def died(self, held: HeldLease, ended_at: float | None) -> None:
        """Its child has died. `ended_at`: when the kernel reported that (monotonic s), if it did."""
        if ended_at is not None:
            self._counts.note_death(held.lease.jid, ended_at)

    def stale(self, held: HeldLease, outcome: Outcome) -> None:
        """The outcome is of no use, because the lease was lost before."""
        lease = held.lease
        self._counts.of(lease.queue, lease.klass).stale += 1
        self._events.emit(
            "job.stale", **account_of(held), verb=type(outcome).__name__.lower(), reason=held.lost_reason,
            message=outcome_rules.stopped_sentence(lease, held.lost_reason),
        )  # fmt: skip
