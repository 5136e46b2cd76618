"""Lets children leave, and interrupts and kills their jobs. Runs in the master.

Must not decide what becomes of a job: `JobOutcomes` does, when the job or its child has ended.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.outcome_rules import CUT_OFF, INTERRUPTIONS
from supervisor.master.model.reload_log import WORN
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.ops.events import Events

#: A child that has answered its last job must have exited by then.
_EXIT_S: Final = 10.0
#: A handler that makes checkpoints is interrupted at the next one, or anywhere after this time.
_CHECKPOINT_S: Final = 1.0


class Interrupter:
    def __init__(self, config: RunConfig, slots: Slots, admission: Admission, events: Events) -> None:
        self._grace_s = config.term_grace_s
        self._slots = slots
        self._admission = admission
        self._events = events
        self._why = ""  # why all jobs are to stop, also those that begin later
        self._interrupting = False  # True: they are interrupted, and not only told

    # one child

    def leave(self, child: ChildHandle) -> None:
        """Let a child exit that has no job. It gets no more."""
        if child.retire_reason is not None:
            # The event `reload.completed` speaks for all children with old code.
            emit = self._events.emit_quietly if child.retire_reason == WORN else self._events.emit
            emit("child.recycled", child=child.number, pid=child.pid, reason=child.retire_reason)
        if child.retire_reason is not None or not self._admission.is_open:
            child.jobs.end()  # otherwise the child has counted its jobs itself
        child.become(ChildState.LEAVING)
        self.await_exit(child, "it did not exit after its last job")

    def await_exit(self, child: ChildHandle, why: str) -> None:
        """The child is about to exit by itself. If it does not, it is killed, with `why` as the reason."""
        child.end_plan.kill_by(clock.monotonic() + _EXIT_S, why)

    def tell(self, child: ChildHandle, why: str) -> None:
        """Make `should_stop` True in the child's handlers. A handler with a planned kill was interrupted before."""
        for run in child.runs:
            if run.end_plan.kill_at is None:
                run.notices.mention(run.held.lease.token, why)

    def tell_the_next(self, child: ChildHandle) -> None:
        """The child's next job has begun: tell or interrupt it too, if this child or all children are to stop."""
        if self._interrupting:
            self._interrupt_all_of(child, self._why)
        elif self._why:
            self.tell(child, self._why)
        elif child.end_plan.stop_at != math.inf:
            self.tell(child, child.end_plan.stop_reason)

    def on_patience_over(self, child: ChildHandle) -> None:
        """The child's jobs should have ended by now."""
        child.end_plan.stop_at = math.inf
        for run in child.runs:
            self.stop(run, child.end_plan.stop_reason)

    def stop(self, run: JobRun, why: str) -> None:
        """Raise `Interrupted` in the handler, and kill its child if the job goes on after the grace."""
        if run.end_plan.kill_at is None:
            self._interrupt(run, why)
            run.end_plan.kill_by(clock.monotonic() + self._grace_s, why)

    def cut_off(self, run: JobRun, kill_at: float) -> None:
        """A peer may have the job soon: raise `Interrupted`, and kill its child at `kill_at` (monotonic s)."""
        if run.end_plan.kill_at is None:
            self._interrupt(run, CUT_OFF)
        if run.end_plan.kill_at is None or kill_at < run.end_plan.kill_at:
            run.end_plan.kill_by(kill_at, CUT_OFF)

    def _interrupt_all_of(self, child: ChildHandle, why: str) -> None:
        for run in child.runs:
            self._interrupt(run, why)

    def _interrupt(self, run: JobRun, why: str) -> None:
        """Raise `Interrupted` in the handler: at its next checkpoint if it makes some, else at once.

        A supervisor that is cut off cannot store a checkpoint, so it does not wait for one.
        """
        running, patience_s = run.held, 0.0
        if running.has_checkpoint and why in INTERRUPTIONS and why != CUT_OFF:
            patience_s = min(_CHECKPOINT_S, self._grace_s / 3)
        run.notices.interrupt(running.lease.token, why, patience_s=patience_s)

    def kill(self, child: ChildHandle, why: str, sentence: str | None = None) -> None:
        """Kill the child's process tree. `why`: the reason of its death. `sentence`: the same for people."""
        if child.state is not ChildState.DOOMED:
            jid = child.running.lease.jid if child.running else None
            self._events.emit(
                "child.killed", child=child.number, pid=child.pid, reason=why, message=sentence, jid=jid
            )  # fmt: skip
        child.end_plan.kill_at = None
        child.kill(why, sentence)

    # all children

    def tell_all(self, why: str) -> None:
        """Make `should_stop` True in every running handler, and in those that begin later. Nothing is raised."""
        self._why = why
        for child in self._slots:
            self.tell(child, why)

    def interrupt_all(self, why: str) -> None:
        """Raise `Interrupted` in every running handler, and in those that begin later."""
        self._why, self._interrupting = why, True
        for child in self._slots:
            self._interrupt_all_of(child, why)

    def kill_all(self, why: str) -> None:
        """Kill the process tree of every running job."""
        for child in self._slots:
            if child.sent:
                self.kill(child, why)
