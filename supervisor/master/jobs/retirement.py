"""Lets children go that are to take no more jobs: after a reload, or because there are too many. Runs in the master."""

from collections.abc import Mapping, Sequence

from supervisor import clock
from supervisor.master.jobs.intake import Intake
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.placing import Placing
from supervisor.master.jobs.unstarted import Unstarted
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.reload_log import WORN
from supervisor.master.model.states import ChildState
from supervisor.messages import HandlerSettings


class Retirement:
    def __init__(
        self,
        intake: Intake,
        unstarted: Unstarted,
        placing: Placing,
        interrupter: Interrupter,
        reload_timeout_s: float,
    ) -> None:
        """`reload_timeout_s`: how long jobs of the old code may run on after a reload; 0: as long as they take."""
        self._intake = intake
        self._unstarted = unstarted
        self._placing = placing
        self._interrupter = interrupter
        self._reload_timeout_s = reload_timeout_s

    def dismiss(self, child: ChildHandle, retire_reason: str, why: str, patience_s: float | None = None) -> None:
        """Give the child no more jobs. It leaves after its running job.

        If its jobs have not ended in `patience_s` seconds they are interrupted, with `why` as the reason. None: they
        may take their time. A persistent job is interrupted at once.
        """
        child.retire(retire_reason)
        self._placing.withdraw(child)
        if child.state is ChildState.IDLE:
            self._interrupter.leave(child)
            return
        given_s = 0.0 if child.only is not None and child.only.held.lease.persistent else patience_s
        if child.sent and given_s is not None and child.end_plan.stop_by(clock.monotonic() + given_s, why):
            self._interrupter.tell(child, why)
        for run in child.runs if child.shared is not None else ():
            if run.held.lease.persistent:
                self._interrupter.stop(run, why)

    def on_reloaded(self, outdated: Sequence[ChildHandle], handlers: Mapping[str, HandlerSettings]) -> None:
        """New code has taken over. `outdated`: the children with the old code, which get no more jobs.

        The settings of the new `handlers` hold for all jobs that have not begun. A persistent job is interrupted, and
        goes on with the new code.
        """
        for child in outdated:  # all of them first: what is taken back must not be sent to another one
            child.retire(WORN)
        for child in outdated:
            self._unstarted.take_back(child)
        self._intake.judge_again(handlers)
        for child in outdated:
            self.dismiss(child, WORN, "reload", self._reload_timeout_s or None)
        self._placing.place()
