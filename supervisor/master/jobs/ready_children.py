"""Makes a child that got ready take jobs. Runs in the master."""

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.pace import Pace
from supervisor.master.model.states import ChildState
from supervisor.ops.events import Events


class ReadyChildren:
    def __init__(
        self,
        admission: Admission,
        interrupter: Interrupter,
        pace: Pace,
        events: Events,
        counts: MasterCounts,
    ) -> None:
        self._admission = admission
        self._interrupter = interrupter
        self._pace = pace
        self._events = events
        self._counts = counts

    def on_ready(self, child: ChildHandle, cpu_s: float) -> None:
        """The child says that it is ready. `cpu_s`: what it has used until now. Raises ValueError the second time."""
        if child.state is ChildState.SPAWNING:
            self._start(child, cpu_s)
        elif child.state is not ChildState.DOOMED:
            raise ValueError("it is ready once only")

    def _start(self, child: ChildHandle, cpu_s: float) -> None:
        child.become(ChildState.IDLE)
        child.cpu_s = cpu_s
        if self._admission.separates_domains:
            self._admission.try_again()  # the child may take a job of any domain
        took_s = clock.monotonic() - child.asked_at
        self._counts.fork.add(took_s)
        self._pace.learn_fork(took_s)
        self._events.emit("child.ready", child=child.number, pid=child.pid)
        if not self._admission.is_open or child.retire_reason is not None:
            self._interrupter.leave(child)
