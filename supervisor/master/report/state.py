"""Says in one word how the master is. Runs in the master."""

from typing import Final

from supervisor.master.drain import Drain
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import Phase
from supervisor.master.processes.zygotes import Zygotes
from supervisor.master.redis.sides import Sides

#: The words for a master that can lease jobs.
_LEASING: Final = ("serving", "reloading")
#: All words: while the master serves, then while it drains.
STATES: Final = (
    "booting", "redis-away", "paused", *_LEASING,
    *(phase.value for phase in Phase if phase not in (Phase.SERVING, Phase.STOPPED)),
)  # fmt: skip


class State:
    def __init__(self, drain: Drain, sides: Sides, zygotes: Zygotes, admission: Admission, slots: Slots) -> None:
        self._drain = drain
        self._sides = sides
        self._zygotes = zygotes
        self._admission = admission
        self._slots = slots

    @property
    def word(self) -> str:
        """One of STATES: the first that holds."""
        phase = self._drain.phase
        if phase is not Phase.SERVING:
            return str(phase.value)
        if not self._zygotes.ready:
            return "booting"
        if not self._sides.connected:
            return "redis-away"
        if self._admission.paused:
            return "paused"
        return "reloading" if self._zygotes.reloading else "serving"

    @property
    def summary(self) -> str:
        """A line for the title: busy children, the word, and the time that a drain has left."""
        word, left_s = self.word, self.left_s
        summary = f"{self._slots.busy}/{self._slots.processes} busy"
        if word != "serving":
            summary += f", {word}"
        return summary if left_s is None else f"{summary}, {left_s:.0f} s left"

    @property
    def can_lease(self) -> bool:
        return self.word in _LEASING

    @property
    def is_paused(self) -> bool:
        return self._admission.paused

    @property
    def is_reloading(self) -> bool:
        return self._zygotes.reloading

    @property
    def left_s(self) -> float | None:
        """How long the drain takes at most (s); None: the master does not drain."""
        return self._drain.left_s
