"""Jobs, leases, recurrences and refusals of the model. No Redis. Times are whole ms."""

from dataclasses import dataclass, field
from typing import Any

from tests.engine.model_batches import PAUSE

UNSET: Any = object()
NEVER = 2**53  # when a wait without a time-out is over


class Refused(Exception):
    """A dependency forbids the call."""


class Missing(Exception):
    """There is no such job."""


class Lost(Exception):
    """The worker has lost the lease."""


class Endless(Exception):
    """A persistent job cannot complete, and a job that must not start twice cannot wait."""


@dataclass(frozen=True)
class Hold:
    """A lease."""

    jid: str
    token: int
    worker: str


@dataclass
class Job:
    """A job. `state`, `turn`, `parked`, `apart` and `aside` say where it lies; with a turn it waits in front."""

    jid: str
    queue: str
    klass: str
    data: Any
    put_at: int
    priority: int = 0
    retries: int = 5
    max_deaths: int | None = None
    policy: str = "wait"  # for a parent that fails or is cancelled
    results_of: list[str] = field(default_factory=list)  # the parents of its stage, whether or not they have ended
    tags: list[str] = field(default_factory=list)
    lane: str = ""
    limit: str | tuple[str, ...] | None = None
    expires: int | None = None  # ms from the put within which it must have started
    persistent: bool = False
    once: bool | None = None  # None: its handler decides at the lease
    trace: str | None = None
    spawned_from: str | None = None
    state: str = "waiting"
    failures: int = 0
    deaths: int = 0
    interruptions: int = 0
    seq: int = 0  # its place in the line of its priority
    turn: int | None = None  # the token of its first lease since it last went to the back
    parked: bool = False  # a lease met it when a limit was used up
    full: str | None = None  # the limit under which the line stands in which it is parked, or the pause of a batch
    apart: bool = False  # only workers that have its klass, with none of these shapes, lease it
    shapes: frozenset[str] = frozenset()  # that its data do not have, as workers have found
    unknown_at: int | None = None  # since when no worker is known to have its klass
    aside: bool = False  # it has a turn, but lies in its paused lane
    claim: Any = None  # its unique key, which no other job of the queue may hold until it ends
    batch: str | None = None
    watched: bool = False  # a sweep must check its start deadline
    hold: Hold | None = None
    started: bool = False
    begun: bool = False  # it has started under a worker that is forgotten
    popped_at: int = 0
    held_ms: int = 0  # length of its last hold
    expires_at: int = 0
    due_at: int | None = None
    parents: dict[str, int] = field(default_factory=dict)  # the parents that it still waits for, and since when
    group: str | None = None
    entry: bytes | None = None  # the bytes of an invalid entry
    stored: bytes | None = None  # the bytes of its entry, if it came as one
    short: int = 0  # short holds of a persistent job in a row
    left: str | None = None  # the worker that had a persistent job last
    since: int = 0  # when it came back into its queue
    mode: str | None = None  # what further puts of its key do
    collected: int = 0  # how many data of its list were put
    came_back: bool = False  # it has run, or waited for others, in this stage
    progress: tuple[float, str, int] | None = None
    saved: Any = None  # its last checkpoint
    signals: dict[str, Any] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)  # when each is over
    steps: dict[str, Any] = field(default_factory=dict)
    waits_for: str | None = None
    ended_at: int = 0
    tie: int = 0  # the engine's order of completions in the same millisecond

    def forget_starts(self) -> None:
        """Drop what earlier starts of this stage have left for the next one."""
        self.saved, self.signals, self.waits, self.steps = None, {}, {}, {}

    def give(self, data: Any) -> None:
        """Replace the data."""
        self.data, self.shapes, self.collected = data, frozenset(), 0

    @property
    def limits(self) -> tuple[str, ...]:
        return (self.limit,) if isinstance(self.limit, str) else self.limit or ()

    @property
    def parked_line(self) -> str:
        """The line in which it lies if it is parked: that of its lane, or of its lane and its several limits."""
        if len(self.limits) < 2 or (self.full or "").startswith(PAUSE):
            return self.lane
        return self.lane + "\n" + "\t".join(self.limits)

    @property
    def label(self) -> str:
        """The name under which it lies apart."""
        return "\t".join(filter(None, (self.klass, ",".join(sorted(self.shapes)))))

    @property
    def in_front(self) -> bool:
        return self.state == "waiting" and self.turn is not None and not (self.parked or self.apart or self.aside)

    @property
    def in_line(self) -> bool:
        """True if it lies in the line of its lane."""
        return self.state == "waiting" and (self.turn is None or self.aside) and not (self.parked or self.apart)

    @property
    def place(self) -> tuple[int, int, int]:
        """Return the job's sort key in its line. A job with a turn is ahead of all priorities."""
        return (0, 0, self.turn) if self.turn is not None else (1, self.priority, self.seq)

    @property
    def ended(self) -> bool:
        return self.state in ("failed", "complete")


@dataclass
class Recurring:
    """A recurrence, which makes a job at each of its times."""

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
        """Return the due times that get a job: all, the last few, the last, or only one that has just come."""
        due = list(range(self.next_at, now + 1, self.every))
        if self.missed == "skip":
            return [at for at in due[-1:] if now - at <= min(60_000, self.every)]
        if self.missed == "once":
            return due[-1:]
        return due if self.backlog is None else due[-self.backlog - 1 :]

    def following(self, now: int) -> int:
        return self.next_at + ((now - self.next_at) // self.every + 1) * self.every
