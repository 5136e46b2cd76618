"""Reports starts of jobs that their lease did not report. Runs in the master. Does no I/O beside the report.

Owns the order of a start and its report. The report comes soon after the start, so that neither its making nor the
server that it wakes takes the child's processor. If the master dies between the two, the job counts as not started, and
its death is not counted. So the report comes first for a job that must not start twice, and for one that may have
killed a child or a master before.
"""

from collections.abc import Callable, Sequence
from typing import Final

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.master.model.held_lease import HeldLease

#: One report has at most so many starts: to send that many jobs takes less than half a millisecond.
_MOST_TOGETHER: Final = 8


class StartReports:
    def __init__(self, report: Callable[[Sequence[LeaseRecord]], bool]) -> None:
        """`report` tells Redis that the jobs of these leases have started, or are about to.

        It returns False if a connection proves to be lost, which the loop meets as well.
        """
        self._report = report
        self._unreported: list[HeldLease] = []
        self.are_first = False  # all jobs of the lease may have started before

    def before(self, held: HeldLease) -> bool:
        """The job is about to be sent to an idle child. Return False if it must not be: its report finds Redis lost.

        While Redis is away nothing is reported, and the job may start.
        """
        lease = held.lease
        may_have_started = lease.was_lost or lease.deaths or lease.interruptions
        if held.start_reported or not (self.are_first or lease.at_most_once or may_have_started):
            return True
        self._unreported.append(held)
        held.start_reported = self.finish()
        return held.start_reported

    def after(self, held: HeldLease) -> bool:
        """The job was sent to an idle child. `finish` is to follow within a millisecond: at once if this is True."""
        if held.start_reported:
            return False
        held.start_reported = True  # if the connection is lost then, the next one reports all running jobs
        self._unreported.append(held)
        return len(self._unreported) == _MOST_TOGETHER

    def finish(self) -> bool:
        """Report the starts of all jobs that were sent. Return False if a connection proves to be lost."""
        unreported, self._unreported = self._unreported, []
        return not unreported or self._report([held.lease for held in unreported])
