"""Knows what waits in the served queues, and for how many supervisors that is work. Runs in the master. Does no I/O.

Owns when an exchange looks at the queues and what it tells a scaler. A look costs Redis more than any other query, so
there is none without a request; for a scaler there is one with each sweep, and at most one a second while work goes on.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands.queue_counts import Depths
from supervisor.master.model.slots import Slots
from supervisor.master.processes.scaling import Scaling
from supervisor.master.redis.demand import Demand

#: Time between two looks for a scaler while work goes on. Redis needs 30 µs for each queue, more with lanes.
_LOOK_S: Final = 1.0
_LOOK_AT_A_QUEUE_S: Final = 0.01
#: An unchanged number is told again this often, because Redis forgets it after 60 s.
_SAY_S: Final = 14.0
#: Older figures are not shown as current: a master that drains, or has lost Redis, does not look.
FRESH_S: Final = 30.0
#: At most this many supervisors are asked for.
MOST_DESIRED: Final = 1000


class Desired(NamedTuple):
    """How many supervisors a scaler should run under this name, and from what figures that was computed."""

    name: str
    supervisors: int
    note: dict[str, Any]


class Backlog:
    def __init__(self, name: str, scaling: Scaling, slots: Slots, demand: Demand) -> None:
        """`name`: under which a scaler is told; empty: none is told."""
        self._name = name
        self._scaling = scaling
        self._slots = slots
        self._demand = demand
        self._then: list[Callable[[float], None]] = []  # of those who have asked
        self._due = False  # a look is requested
        self._moved = True  # jobs have come or gone since the last look
        self.depths: Mapping[str, Depths] = {}  # by queue
        self.looked_at = -math.inf  # when the last answer came (monotonic s)
        self._again_at = -math.inf  # from then on moves are worth a look
        self._said: int | None = None
        self._said_at = -math.inf
        self._to_say: Desired | None = None

    # when to look

    @property
    def _tells(self) -> bool:
        """True if a scaler is to be told. Until the handlers are known, their concurrency is not."""
        return bool(self._name and self._demand.handlers)

    def look(self, then: Callable[[float], None]) -> None:
        """Look with the next exchange, and call `then(now_at)`."""
        self._due = True
        if then not in self._then:
            self._then.append(then)

    def move(self) -> None:
        """Jobs have come or gone."""
        self._moved = True

    def take_look(self, now_at: float, sweeps: bool) -> bool:
        """Return True if the exchange that begins now is to look. `sweeps`: it sweeps."""
        due = self._due or (self._tells and (sweeps or (self._moved and now_at >= self._again_at)))
        if due:
            self._due = self._moved = False
            self._again_at = now_at + max(_LOOK_S, _LOOK_AT_A_QUEUE_S * len(self.depths))
        return due

    def deadline_at(self) -> float:
        """Return when an exchange is due for a look (monotonic s)."""
        if self._due or self._to_say is not None:
            return -math.inf
        return self._again_at if self._moved and self._tells else math.inf

    # what was seen

    def on_looked(self, depths: Mapping[str, Depths], worker: str) -> None:
        self.depths, self.looked_at = depths, clock.monotonic()
        then, self._then = self._then, []
        for tell in then:
            tell(self.looked_at)
        desired = self.desired
        if not self._name or desired is None:
            return
        if desired != self._said or (self._said and self.looked_at >= self._said_at + _SAY_S):
            note = {"worker": worker, "at_unix": round(clock.unix(), 3), **self._numbers()}
            self._to_say = Desired(self._name, desired, note)
            self._said, self._said_at = desired, self.looked_at

    def take_to_say(self) -> Desired | None:
        to_say, self._to_say = self._to_say, None
        return to_say

    def forget_said(self) -> None:
        """Tell the number again: it may have been lost with the connection."""
        self._said, self._due = None, self._tells

    # what it means

    @property
    def is_fresh(self) -> bool:
        """True if the last figures still count as current."""
        return clock.monotonic() < self.looked_at + FRESH_S

    @property
    def desired(self) -> int | None:
        """How many supervisors like this one there is work for. None until the handlers are known."""
        if not self._demand.handlers:
            return None
        jobs = sum(each.ready + each.running + each.stalled for each in self.depths.values())
        return min(MOST_DESIRED, math.ceil(jobs / (self._scaling.most * self._demand.concurrency)))

    def _numbers(self) -> dict[str, Any]:
        depths = self.depths.values()
        return {
            "desired": self.desired,
            "ready": sum(each.ready for each in depths),
            "running": sum(each.running + each.stalled for each in depths),
            "processes": self._scaling.most,
            "concurrency": self._demand.concurrency,
            "oldest_s": max((each.oldest_s for each in depths if each.oldest_s is not None), default=None),
        }

    def status(self) -> dict[str, Any] | None:
        """Return plain JSON, or None before the first look."""
        if self.looked_at == -math.inf:
            return None
        return {
            "name": self._name or None,
            **self._numbers(),
            "busy_ratio": round(self._slots.busy / self._slots.processes, 3),
            "age_s": round(max(0.0, clock.monotonic() - self.looked_at), 3),
        }
