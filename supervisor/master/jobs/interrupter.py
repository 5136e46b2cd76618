"""What is done against children: they are let go, told to stop, interrupted, killed. Runs in master.

Owns how far all that runs is to stop. Must not say what becomes of a job.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.config import Config
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.outcome_rules import CUT_OFF, INTERRUPTIONS
from supervisor.master.model.reload_log import WORN
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.ops.events import Events

#: A child that has answered its last job must have exited by then.
_EXIT_S: Final = 10.0
#: How long a handler that makes checkpoints has for the next one before it is interrupted anywhere.
_CHECKPOINT_S: Final = 1.0


class Interrupter:
    def __init__(self, config: Config, slots: Slots, events: Events) -> None:
        self._grace_s = config.term_grace_s
        self._slots = slots
        self._events = events
        self.is_open = True  # jobs may still start, now or once a pause is over
        self._why = ""  # why all running jobs are to stop, those too that begin yet
        self._interrupting = False  # and whether their patience is over

    # one child

    def leave(self, child: ChildHandle) -> None:
        """It has no job, and gets none any more: it exits."""
        if child.retire_reason is not None:
            emit = (
                self._events.emit_quietly if child.retire_reason == WORN else self._events.emit
            )  # `reload.completed` says it
            emit("child.recycled", child=child.number, pid=child.pid, reason=child.retire_reason)
        if child.retire_reason is not None or not self.is_open:
            child.jobs.end()  # else it has counted its jobs, too
        child.become(ChildState.LEAVING)
        self.await_exit(child, "it did not exit after its last job")

    def await_exit(self, child: ChildHandle, why: str) -> None:
        """It is about to exit by itself; if it does not it is killed, for what `why` says."""
        child.end_plan.kill_by(clock.monotonic() + _EXIT_S, why)

    def tell(self, child: ChildHandle, why: str) -> None:
        """Have `should_stop` become True in its handler. One that is being stopped already has been told."""
        if child.running is not None and child.end_plan.kill_at is None:
            child.notices.mention(child.running.lease.token, why)

    def tell_the_next(self, child: ChildHandle) -> None:
        """Its job has begun while it, or all of them, are to stop."""
        if self._interrupting:
            self._interrupt(child, self._why)
        elif self._why:
            self.tell(child, self._why)
        elif child.end_plan.stop_at != math.inf:
            self.tell(child, child.end_plan.stop_reason)

    def on_patience_over(self, child: ChildHandle) -> None:
        """Its job was to end by now."""
        child.end_plan.stop_at = math.inf
        self.stop(child, child.end_plan.stop_reason)

    def stop(self, child: ChildHandle, why: str) -> None:
        """Have `Interrupted` raised in its handler, which then has the grace."""
        if child.running is not None and child.end_plan.kill_at is None:
            self._interrupt(child, why)
            child.end_plan.kill_by(clock.monotonic() + self._grace_s, why)

    def cut_off(self, child: ChildHandle, kill_at: float) -> None:
        """A peer may have its job soon: have `Interrupted` raised in its handler, and its processes killed by then."""
        if child.end_plan.kill_at is None:
            self._interrupt(child, CUT_OFF)
        if child.end_plan.kill_at is None or kill_at < child.end_plan.kill_at:
            child.end_plan.kill_by(kill_at, CUT_OFF)

    def _interrupt(self, child: ChildHandle, why: str) -> None:
        """One that makes checkpoints is interrupted at the next one, if it does not take long. While we are cut off
        none can be stored.
        """
        running = child.running
        if running is None:
            return
        patience_s = 0.0
        if running.checkpoints and why in INTERRUPTIONS and why != CUT_OFF:
            patience_s = min(_CHECKPOINT_S, self._grace_s / 3)
        child.notices.interrupt(running.lease.token, why, patience_s=patience_s)

    def kill(self, child: ChildHandle, why: str, sentence: str | None = None) -> None:
        """Kill its process tree, for a reason, or a sentence's end, of ours."""
        if child.state is not ChildState.DOOMED:
            jid = child.running.lease.jid if child.running else None
            self._events.emit(
                "child.killed", child=child.number, pid=child.pid, reason=why, message=sentence, jid=jid
            )  # fmt: skip
        child.end_plan.kill_at = None
        child.kill(why, sentence)

    # all of them

    def tell_all(self, why: str) -> None:
        """Have `should_stop` become True in every running handler, and in those that begin yet; nothing is raised."""
        self._why = why
        for child in self._slots:
            self.tell(child, why)

    def interrupt_all(self, why: str) -> None:
        """Have `Interrupted` raised in every running handler, and in those that begin yet."""
        self._why, self._interrupting = why, True
        for child in self._slots:
            self._interrupt(child, why)

    def kill_all(self, why: str) -> None:
        """Kill the process tree of every running job."""
        for child in self._slots:
            if child.sent:
                self.kill(child, why)
