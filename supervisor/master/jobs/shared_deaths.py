"""Settles the jobs of a shared child that has died. Runs in the master.

A death counts for one job only: for the one that is known to be the cause. All others go back to the front of their
queues, uncounted. If the cause is not known, they become suspects.
"""

from supervisor.engine.model.outcomes import Released
from supervisor.master.jobs.job_outcomes import JobOutcomes
from supervisor.master.jobs.suspects import Suspects
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.outcome_rules import CHILD_DIED, INTERRUPTIONS, death_reason
from supervisor.messages import Reaped
from supervisor.ops.events import Events


class SharedDeaths:
    def __init__(self, outcomes: JobOutcomes, suspects: Suspects, events: Events) -> None:
        self._outcomes = outcomes
        self._suspects = suspects
        self._events = events

    def settle(self, child: ChildHandle, reaped: Reaped | None, why_killed: str | None) -> None:
        """The child has died with all jobs that it still has."""
        assert child.shared is not None
        culprit, held = child.shared.culprit, list(child.sent)
        if len(held) == 1:
            self._outcomes.died(child, held[0], reaped, why_killed)
            return
        if why_killed in INTERRUPTIONS:
            for each in held:
                self._outcomes.stopped(child, each, Released(each.lease, started=True, reason=why_killed))
            return
        if culprit in held:
            self._outcomes.died(child, culprit, reaped, why_killed)
        innocent = [each for each in held if each is not culprit]
        for each in innocent:
            self._outcomes.stopped(child, each, _uncounted(each))
        if innocent and culprit is None:
            self._suspect(child, innocent, why_killed or (death_reason(reaped.status) if reaped else "lost"))

    def _suspect(self, child: ChildHandle, held: list[HeldLease], reason: str) -> None:
        at_once = (len(held) + 1) // 2
        self._suspects.add([each.lease.jid for each in held], at_once)
        self._events.emit(
            "child.divided", child=child.number, pid=child.pid, reason=reason, jobs=len(held), at_once=at_once,
            klasses=sorted({each.lease.klass for each in held}),
        )  # fmt: skip


def _uncounted(held: HeldLease) -> Released:
    """An at-most-once job may have started, so it must not start again.

    So it fails even if it still lay in the child's socket, where the kernel lacked the memory to take it back.
    """
    once = held.lease.at_most_once
    return Released(held.lease, started=once, reason=CHILD_DIED if once else None)
