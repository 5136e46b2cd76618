"""The ladder down: patience, interruption, kill, last exchange. Runs in master. Holds deadlines only."""

from dataclasses import dataclass
from typing import Final

from supervisor.config import LAST_EXCHANGE_S, REAP_S
from supervisor.pool.states import Phase

#: What an exchange may take where somebody is in a hurry: an outage is not waited for then.
HURRIED_EXCHANGE_S: Final = 5.0


@dataclass(slots=True)
class Ladder:
    """When each step of a drain is due (monotonic s)."""

    began_at: float
    interrupt_at: float
    kill_at: float
    hand_back_at: float  # jobs of what has not ended by then are handed back all the same
    leave_by_at: float  # without an answer by then we go, and the leases expire

    @classmethod
    def of(cls, now_at: float, patience_s: float, grace_s: float) -> "Ladder":
        kill_at = now_at + patience_s + grace_s
        return cls(now_at, now_at + patience_s, kill_at, kill_at + REAP_S, kill_at + REAP_S + LAST_EXCHANGE_S)

    def hurry(self, now_at: float) -> None:
        """Patience is over: kill now."""
        self.interrupt_at = min(self.interrupt_at, now_at)
        self.kill_at = min(self.kill_at, now_at)
        self.hand_back_at = min(self.hand_back_at, now_at + REAP_S)
        self.leave_by_at = min(self.leave_by_at, now_at + REAP_S + HURRIED_EXCHANGE_S)

    def arrived(self, now_at: float) -> None:
        """Only the last exchange is left: it gets the rest of the time, at least LAST_EXCHANGE_S."""
        self.leave_by_at = max(self.leave_by_at, now_at + LAST_EXCHANGE_S)

    def in_vain(self, now_at: float) -> None:
        """The last exchange would hand nothing back, and Redis is away: it gets no more than LAST_EXCHANGE_S."""
        self.leave_by_at = min(self.leave_by_at, now_at + LAST_EXCHANGE_S)

    def left_s(self, now_at: float) -> float:
        """How long it takes at the most."""
        return round(max(0.0, self.leave_by_at - now_at), 1)

    def next_at(self, phase: Phase) -> float:
        """When the next step is due."""
        steps = {
            Phase.DRAINING: self.interrupt_at,
            Phase.INTERRUPTING: self.kill_at,
            Phase.KILLING: self.hand_back_at,
        }
        return min(steps.get(phase, self.leave_by_at), self.leave_by_at)
