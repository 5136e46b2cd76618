"""Limits: whether a job of a key may start now. Part of the model; no Redis. Times are whole ms."""

from dataclasses import dataclass, field

from tests.engine.model_lanes import Turns

WHEN_FREE = 2**53  # no time is known: a slot must become free first


@dataclass
class Limit:
    """A key's limit, the times of its last starts, and by queue the lines of jobs parked under it."""

    running: int | None = None
    starts: int | None = None
    per: int | None = None
    set_at: int | None = None
    begun: list[int] = field(default_factory=list)
    lines: dict[str, Turns] = field(default_factory=dict)

    @property
    def is_set(self) -> bool:
        return self.set_at is not None

    def full_until(self, in_use: int, starting: int, now: int) -> int:
        """Return 0 if one more job may start; else when to check again.

        `starting` of the slots in use are so new that their starts are not in `begun` yet.
        """
        if self.running is not None and in_use >= self.running:
            return WHEN_FREE
        if self.starts is None or self.per is None:
            return 0
        back = self.starts - starting
        if back <= 0:
            return now + self.per
        before = self.begun[-back] if len(self.begun) >= back else None
        return before + self.per if before is not None and now - self.per < before < now + self.per else 0

    def start(self, now: int) -> None:
        if self.starts is not None:
            self.begun = [*self.begun, now][-self.starts :]

    def take_back(self, at: int, now: int) -> None:
        """Remove the start of a job that was leased at this time and has not started, unless it counts no longer."""
        if self.per is not None and at > now - self.per and at in self.begun:
            self.begun.reverse()
            self.begun.remove(at)
            self.begun.reverse()

    def line(self, queue: str) -> Turns:
        return self.lines.setdefault(queue, Turns())
