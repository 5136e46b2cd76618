"""The order in which lanes, and lines of parked jobs, are served. Part of the model; no Redis."""

from dataclasses import dataclass, field


@dataclass
class Turns:
    """Lines that take turns. The line of the least time is next, and a turn adds 1/weight to it.

    A line that joins begins at the least time, so that none can save up turns.
    """

    times: dict[str, float] = field(default_factory=dict)

    def join(self, line: str) -> None:
        self.times.setdefault(line, min(self.times.values(), default=0.0))

    def leave(self, line: str) -> None:
        self.times.pop(line, None)

    def next(self) -> str | None:
        return min(self.in_order(), key=self.times.__getitem__, default=None)

    def in_order(self) -> list[str]:
        return sorted(self.times, key=lambda line: (self.times[line], line.encode()))

    def took(self, line: str, weight: int = 1) -> None:
        self.times[line] += 1 / weight


@dataclass
class Lanes:
    """The lanes of one queue. A paused one has no turns."""

    turns: Turns = field(default_factory=Turns)
    weights: dict[str, int] = field(default_factory=dict)  # only weights other than 1
    paused: set[str] = field(default_factory=set)

    def weight(self, lane: str) -> int:
        return self.weights.get(lane, 1)

    def join(self, lane: str) -> None:
        if lane not in self.paused:
            self.turns.join(lane)
