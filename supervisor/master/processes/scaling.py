"""Sets the process count: as asked for, as the work needs, or as the machine has room. Runs in the master.

Also decides which children end when there are to be fewer. Missing ones are asked for by `ProcessManager`.
"""

from typing import Any, Final

from supervisor.config import RunConfig
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.retirement import Retirement
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.processes.load_follower import LoadFollower
from supervisor.master.processes.machine_room import MachineRoom
from supervisor.ops.events import Events
from supervisor.setting_values import MOST_PROCESSES

_FEWER: Final = "there are to be fewer processes"
#: Why a job is interrupted whose child is surplus.
SCALED: Final = "scaled"


class Scaling:
    def __init__(
        self,
        config: RunConfig,
        slots: Slots,
        load: LoadFollower,
        admission: Admission,
        retirement: Retirement,
        room: MachineRoom,
        events: Events,
    ) -> None:
        self._slots = slots
        self._load = load
        self._admission = admission
        self._retirement = retirement
        self._room = room
        self._events = events
        self._fewest, self._most = config.processes, config.processes_most
        self._is_automatic = config.processes_auto
        self._reason = config.processes_reason
        self._drain_timeout_s = config.drain_timeout_s
        self._measured = 0  # the zygote whose child was measured when the room was counted last
        self._has_surplus = False  # there may be more children than there should be

    @property
    def most(self) -> int:
        """How many processes there may become."""
        return self._most

    def status(self) -> dict[str, Any]:
        return {"now": self._slots.processes, "fewest": self._fewest, "most": self._most, "reason": self._reason}

    # requests of operators

    def more(self, by: By) -> dict[str, Any]:
        """Add one process, and follow the work no more. If that is not possible, say why and change nothing."""
        return self._step_to(self._slots.processes + 1, by)

    def fewer(self, by: By) -> dict[str, Any]:
        """Remove one process, as `more` adds one."""
        return self._step_to(self._slots.processes - 1, by)

    def _step_to(self, processes: int, by: By) -> dict[str, Any]:
        try:
            return self.set(processes, processes, by)
        except ValueError as error:
            self._say(self._slots.processes, str(error), by)
            return self._answer(self._slots.processes)

    def set(self, fewest: int, most: int, by: By) -> dict[str, Any]:
        """Set the process count, or its range. Returns what it was and is. Idempotent.

        Raises ValueError, with a sentence, if that is not possible.
        """
        self._check_open()
        if not 1 <= fewest <= most <= MOST_PROCESSES:
            wanted = f"{fewest}" if fewest == most else f"{fewest}:{most}"
            raise ValueError(f"{wanted} processes cannot be: there are at least 1 and at most {MOST_PROCESSES}")
        before = self._slots.processes
        self._fewest, self._most, self._is_automatic = fewest, most, False
        self._resize(min(max(before, fewest), most), f"as told by {by}", by)
        return self._answer(before)

    def automatic(self, by: By) -> dict[str, Any]:
        """Have as many processes as the machine has room for. Raises ValueError during a drain."""
        self._check_open()
        before = self._slots.processes
        self._is_automatic = True
        self._fit_machine(by)
        return self._answer(before)

    def refresh(self, by: By | None) -> None:
        """If the count is automatic, adapt it to the room of the machine, which may have changed."""
        if self._is_automatic and self._admission.is_open and self._room.processes()[0] != self._slots.processes:
            self._fit_machine(by)

    def _fit_machine(self, by: By | None) -> None:
        processes, reason = self._room.processes()
        self._fewest = self._most = processes
        self._resize(processes, reason, by)

    def _check_open(self) -> None:
        if not self._admission.is_open:
            raise ValueError("it is draining: there will be no more processes, whatever their number is to be")

    def _answer(self, before: int) -> dict[str, Any]:
        status = self.status()
        span = f" now, and {status['fewest']} to {status['most']} as there is work" if self._fewest < self._most else ""
        was = f", as before ({self._reason})" if before == status["now"] else f", after {before} ({self._reason})"
        return {"did": f"has {_processes(status['now'])}{span}{was}", "before": before, **status}

    # in each turn

    def step(self, now_at: float) -> None:
        """Adapt the count to the work and the machine, and end surplus children. Called once jobs are placed."""
        if not self._admission.is_open:
            return
        if self._measured != self._room.measured:
            self._measured = self._room.measured
            self.refresh(None)
        if self._has_surplus:
            self._end_surplus()
        if self._fewest < self._most:
            if wanted := self._load.wanted(now_at, self._fewest, self._most):
                self._resize(*wanted, None)
            self._load.plan(self._most)

    # the count

    def _resize(self, processes: int, reason: str, by: By | None) -> None:
        before, self._reason = self._slots.processes, reason
        self._slots.resize(processes)
        self._load.end_lull()
        self._has_surplus = True  # ended by `step`, when a successor that has just got ready counts
        self._say(before, reason, by)

    def _say(self, before: int, reason: str, by: By | None) -> None:
        self._events.emit(
            "master.scaled", processes=self._slots.processes, before=before, fewest=self._fewest, most=self._most,
            reason=reason, **(by.fields if by is not None else {}),
        )  # fmt: skip

    def _end_surplus(self) -> None:
        """End surplus idle children. While too many jobs run, stop those that have run for the shortest time."""
        surplus, coming = self._slots.surplus()
        for child in surplus:
            self._retirement.dismiss(child, _FEWER, SCALED)
        busy = [child for child in self._slots if child.sent and child.state is not ChildState.DOOMED]
        ending = [child for child in busy if child.end_plan.stop_reason == SCALED]
        excess = max(0, len(busy) - self._slots.processes)
        for child in ending[excess:]:
            child.end_plan.drop_stop(SCALED)  # other children have ended before it, so its job may go on
        for child in self._youngest(busy, excess - len(ending)):
            self._retirement.dismiss(child, _FEWER, SCALED, self._drain_timeout_s)
        self._has_surplus = bool(ending or excess or coming)

    def _youngest(self, busy: list[ChildHandle], count: int) -> list[ChildHandle]:
        """Return the children whose jobs started last. At-most-once jobs come last, because a stop fails them."""
        running = [
            (child.sent[0].lease.at_most_once, -child.sent[0].started_at, child.number, child)
            for child in busy
            if child.state is ChildState.BUSY and child.end_plan.stop_reason != SCALED
        ]
        return [child for *_, child in sorted(running)[: max(0, count)]]


def _processes(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"
