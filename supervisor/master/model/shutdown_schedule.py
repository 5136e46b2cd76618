"""Says when each step of a drain is due. Runs in the master. Must not read the clock."""

from dataclasses import dataclass
from typing import Final

from supervisor.config import LAST_EXCHANGE_S, REAP_S
from supervisor.master.model.states import Phase

#: After a request to hurry the last exchange gets at most this long: it does not wait for an outage to end.
HURRIED_EXCHANGE_S: Final = 5.0


@dataclass(slots=True)
class ShutdownSchedule:
    """All times in monotonic s."""

    began_at: float
    interrupt_at: float
    kill_at: float
    hand_back_at: float  # jobs of children that have not ended by then are handed back all the same
    leave_by_at: float  # without an answer of Redis by then the master exits, and its leases expire

    @classmethod
    def of(cls, now_at: float, patience_s: float, grace_s: float) -> "ShutdownSchedule":
        """`patience_s`: for jobs to end by themselves. `grace_s`: between interruption and kill."""
        kill_at = now_at + patience_s + grace_s
        return cls(now_at, now_at + patience_s, kill_at, kill_at + REAP_S, kill_at + REAP_S + LAST_EXCHANGE_S)

    def hurry(self, now_at: float) -> None:
        """Kill now. Delays no step."""
        self.interrupt_at = min(self.interrupt_at, now_at)
        self.kill_at = min(self.kill_at, now_at)
        self.hand_back_at = min(self.hand_back_at, now_at + REAP_S)
        self.leave_by_at = min(self.leave_by_at, now_at + REAP_S + HURRIED_EXCHANGE_S)

    def arrived(self, now_at: float) -> None:
        """Only the last exchange is left: give it the rest of the time, at least LAST_EXCHANGE_S."""
        self.leave_by_at = max(self.leave_by_at, now_at + LAST_EXCHANGE_S)

    def in_vain(self, now_at: float, away_s: float = 0.0) -> None:
        """Redis is away and the master holds nothing: give the last exchange at most LAST_EXCHANGE_S.

        `away_s`: within this time the exchange is tried again.
        """
        self.leave_by_at = min(self.leave_by_at, now_at + away_s + LAST_EXCHANGE_S)

    def left_s(self, now_at: float) -> float:
        """Return how long the drain takes at most (s)."""
        return round(max(0.0, self.leave_by_at - now_at), 1)

    def next_at(self, phase: Phase) -> float:
        """Return when the step after this phase is due."""
        steps = {
            Phase.DRAINING: self.interrupt_at,
            Phase.INTERRUPTING: self.kill_at,
            Phase.KILLING: self.hand_back_at,
        }
        return min(steps.get(phase, self.leave_by_at), self.leave_by_at)
