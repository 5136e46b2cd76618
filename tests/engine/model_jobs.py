"""What the model is made of: jobs, leases, recurrences, and what a refusal is. No Redis. Times are whole ms."""

from dataclasses import dataclass, field
from typing import Any

UNSET: Any = object()


class Refused(Exception):
    """A dependency is in the way."""


class Missing(Exception):
    """There is no such job."""


class Lost(Exception):
    """The lease is not the worker's any more."""


class Endless(Exception):
    """A persistent job is never complete."""


@dataclass(frozen=True)
class Hold:
    """A lease."""

    jid: str
    token: int
    worker: str


@dataclass
class Job:
    """A job. Where it lies is said by `state`, `turn`, `parked`, `apart`, `aside`; waiting with a turn is in front."""

    jid: str
    queue: str
    klass: str
    data: Any
    put_at: int
    priority: int = 0
    retries: int = 5
    max_deaths: int | None = None
    policy: str = "wait"  # what becomes of it when a parent fails or is cancelled
    tags: list[str] = field(default_factory=list)
    lane: str = ""
    limit: str | None = None
    expires: int | None = None  # ms from the put within which it must have started
    persistent: bool = False
    once: bool | None = None  # None: as its handler says, when it is leased
    trace: str | None = None
    spawned_from: str | None = None
    state: str = "waiting"
    failures: int = 0
    deaths: int = 0
    interruptions: int = 0
    seq: int = 0  # its place in the line of its priority
    turn: int | None = None  # the token of its first lease since it last went to the back
    parked: bool = False  # its limit was used up when it was met
    apart: bool = False  # it lies where only workers look that have its klass
    unknown_at: int | None = None  # since when nobody is known to have its klass
    aside: bool = False  # it has a turn, but lies in its paused lane
    claim: Any = None  # what nobody else in the queue may be while it has not ended
    watched: bool = False  # a sweep is to look whether it has started in time
    hold: Hold | None = None
    started: bool = False
    begun: bool = False  # it has started under a worker that was forgotten since
    popped_at: int = 0
    held_ms: int = 0  # for how long it was held last
    expires_at: int = 0
    due_at: int | None = None
    parents: dict[str, int] = field(default_factory=dict)  # those that it still waits for, and since when
    group: str | None = None
    entry: bytes | None = None  # of another program, and nobody can read it
    stored: bytes | None = None  # the bytes of its entry, if it came as one
    short: int = 0  # how often in a row a persistent job was held for but a moment
    left: str | None = None  # the worker that had a persistent job last
    since: int = 0  # when it came back into its queue
    progress: tuple[float, str, int] | None = None
    saved: Any = None  # its last checkpoint
    ended_at: int = 0
    tie: int = 0  # the order of what was completed in the same millisecond is the engine's

    @property
    def in_front(self) -> bool:
        return self.state == "waiting" and self.turn is not None and not (self.parked or self.apart or self.aside)

    @property
    def in_line(self) -> bool:
        """It lies in the line of its lane."""
        return self.state == "waiting" and (self.turn is None or self.aside) and not (self.parked or self.apart)

    @property
    def place(self) -> tuple[int, int, int]:
        """Before whom in its line: what has had its turn is ahead of all priorities."""
        return (0, 0, self.turn) if self.turn is not None else (1, self.priority, self.seq)

    @property
    def ended(self) -> bool:
        return self.state in ("failed", "complete")


@dataclass
class Recurring:
    """A pattern that makes a job at each of its times."""

    jid: str
    queue: str
    klass: str
    data: Any
    every: int
    next_at: int
    missed: str = "all"
    backlog: int | None = None
    count: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def times(self, now: int) -> list[int]:
        """The due times that are to run: all, the last few, only the last, or only one that has just come."""
        due = list(range(self.next_at, now + 1, self.every))
        if self.missed == "skip":
            return [at for at in due[-1:] if now - at <= min(60_000, self.every)]
        if self.missed == "once":
            return due[-1:]
        return due if self.backlog is None else due[-self.backlog - 1 :]

    def following(self, now: int) -> int:
        return self.next_at + ((now - self.next_at) // self.every + 1) * self.every
