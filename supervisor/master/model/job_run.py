"""One job that a child runs: what its handler was told, and when the child is killed for it. Runs in the master.

A child that runs one job at a time has one `JobRun` for all of them. A shared child has one for each of its jobs.
"""

from supervisor.master.model.end_plan import EndPlan
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.notice_sender import NoticeSender


class JobRun:
    __slots__ = ("end_plan", "has_answered", "held", "notices", "warned_of_timeout", "was_asked")

    def __init__(self, held: HeldLease, notices: NoticeSender, end_plan: EndPlan) -> None:
        self.held = held
        self.notices = notices
        self.end_plan = end_plan
        self.warned_of_timeout = False  # the handler was told that its time limit is near
        self.was_asked = False  # before its shared child is killed for it: does the loop turn?
        self.has_answered = False  # it does, so no other job keeps this one from ending

    def begin(self, held: HeldLease) -> None:
        """Another job runs: what was said to the one before does not hold for it."""
        self.held = held
        self.warned_of_timeout = False
        if self.notices.reason is not None:
            self.notices.forget()
