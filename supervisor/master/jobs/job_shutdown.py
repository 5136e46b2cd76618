"""The jobs' part of a drain: no job starts, then running jobs are told, interrupted, killed. Runs in the master.

`Drain` says when each step is due.
"""

from typing import Final

from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.placing import Placing
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState

#: The reason of an interruption.
_DRAIN: Final = "drain"


class JobShutdown:
    def __init__(self, slots: Slots, admission: Admission, placing: Placing, interrupter: Interrupter) -> None:
        self._slots = slots
        self._admission = admission
        self._placing = placing
        self._interrupter = interrupter

    def begin(self) -> None:
        """Start no job any more, hand back the jobs that have not started, and let idle children leave.

        Running handlers are told, and go on. Persistent jobs are interrupted.
        """
        self._admission.close()
        for child in self._slots:
            self._placing.withdraw(child)
            for run in child.runs:
                if run.held.lease.persistent:
                    self._interrupter.stop(run, _DRAIN)
            if child.state is ChildState.IDLE:
                self._interrupter.leave(child)
        self._placing.place()
        self._interrupter.tell_all(_DRAIN)

    def interrupt(self) -> None:
        """Raise `Interrupted` in all running handlers."""
        self._interrupter.interrupt_all(_DRAIN)

    def kill(self) -> None:
        """Kill the process trees of all running jobs."""
        self._interrupter.kill_all(_DRAIN)
