"""Finds the job that kills zygotes. Runs in the master.

A zygote that dies takes all its children along, so the culprit hides among innocent jobs. After two losses in a row the
detector makes jobs run one at a time. A job that was alone at three losses in a row is poison.
"""

from collections.abc import Iterable
from typing import Final

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.breaker import backoff_s
from supervisor.master.model.child_handle import ChildHandle

#: Jobs run one at a time for this long, doubled with each loss in a row: 60 s after the second one.
_SERIAL_S: Final = 15.0
_LONGEST_SERIAL_S: Final = 600.0
_LOSSES_TO_CONVICT: Final = 3


class PoisonDetector:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._losses_in_a_row = 0
        self._jobs_ended_at_last_loss = 0
        self._running_at_last_loss: set[str] = set()
        self._lone_jid = ""
        self._lone_losses = 0

    def zygote_lost(self, children: Iterable[ChildHandle]) -> None:
        """Count the loss of a zygote and of its `children`. Two in a row start serial execution.

        Losses are "in a row" if no job ended between them, or if a job was running at both.
        """
        running = [run.held.lease.jid for child in children for run in child.runs]
        in_a_row = self._admission.jobs_ended == self._jobs_ended_at_last_loss
        in_a_row = in_a_row or not self._running_at_last_loss.isdisjoint(running)
        self._losses_in_a_row = self._losses_in_a_row + 1 if in_a_row else 1
        self._jobs_ended_at_last_loss, self._running_at_last_loss = self._admission.jobs_ended, set(running)
        if self._losses_in_a_row > 1:
            serial_s = min(_LONGEST_SERIAL_S, _SERIAL_S * 2.0 ** min(self._losses_in_a_row, 10))
            self._admission.run_serially(clock.monotonic() + serial_s)
        lone_jid = running[0] if len(running) == 1 else ""
        self._lone_losses = self._lone_losses + 1 if lone_jid == self._lone_jid else 1
        self._lone_jid = lone_jid

    @property
    def is_poison(self) -> bool:
        """True if the job that ran at the last loss was alone at the last three."""
        return bool(self._lone_jid) and self._lone_losses >= _LOSSES_TO_CONVICT

    @property
    def wait_s(self) -> float:
        """How long to wait before the next zygote starts."""
        return backoff_s(self._losses_in_a_row) if self._losses_in_a_row > 1 else 0.0
