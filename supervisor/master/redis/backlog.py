"""Knows what waits in the served queues of all shards, and for how many supervisors that is work. Runs in the master.

Does no I/O.
Owns when an exchange looks at the queues and what it tells a scaler. A look costs Redis more than any other query, so
there is none without a request; for a scaler there is one with each sweep, and at most one a second while work goes on.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands.queue_counts import Depths, added
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


@dataclass(slots=True)
class _Look:
    """When one shard is looked at, and what was seen there last."""

    due: bool = False  # a look is requested
    moved: bool = True  # jobs have come or gone since the last look
    depths: dict[str, Depths] = field(default_factory=dict)  # by queue
    looked_at: float = -math.inf  # when the last answer came (monotonic s)
    again_at: float = -math.inf  # from then on moves are worth a look


class Backlog:
    def __init__(self, name: str, scaling: Scaling, slots: Slots, demand: Demand) -> None:
        """`name`: under which a scaler is told; empty: none is told."""
        self._name = name
        self._scaling = scaling
        self._slots = slots
        self._demand = demand
        self._looks = [_Look()]  # by shard
        self._then: list[Callable[[float], None]] = []  # of those who have asked
        self._asked_at = -math.inf  # when the last of them did (monotonic s)
        self._said: int | None = None
        self._said_at = -math.inf
        self._to_say: Desired | None = None

    def divide(self, shards: int) -> None:
        """The namespace has so many shards."""
        self._looks += [_Look() for _ in range(shards - len(self._looks))]

    # when to look

    @property
    def _tells(self) -> bool:
        """True if a scaler is to be told. Until the handlers are known, their concurrency is not."""
        return bool(self._name and self._demand.handlers)

    def look(self, then: Callable[[float], None]) -> None:
        """Look with the next exchange of each shard, and call `then(now_at)` once all have answered."""
        self._asked_at = clock.monotonic()
        for each in self._looks:
            each.due = True
        if then not in self._then:
            self._then.append(then)

    def move(self, shard: int = 0) -> None:
        """Jobs of this shard have come or gone."""
        self._looks[shard].moved = True

    def take_look(self, now_at: float, sweeps: bool, shard: int = 0) -> bool:
        """Return True if the exchange that begins now is to look. `sweeps`: it sweeps."""
        look = self._looks[shard]
        due = look.due or (self._tells and (sweeps or (look.moved and now_at >= look.again_at)))
        if due:
            look.due = look.moved = False
            look.again_at = now_at + max(_LOOK_S, _LOOK_AT_A_QUEUE_S * len(look.depths))
        return due

    def deadline_at(self, shard: int = 0) -> float:
        """Return when an exchange with this shard is due for a look (monotonic s)."""
        look = self._looks[shard]
        if look.due or (self._to_say is not None and not shard):
            return -math.inf
        return look.again_at if look.moved and self._tells else math.inf

    # what was seen

    def on_looked(self, depths: dict[str, Depths], worker: str, shard: int = 0) -> None:
        look, now_at = self._looks[shard], clock.monotonic()
        look.depths, look.looked_at = depths, now_at
        if self.looked_at >= self._asked_at:
            then, self._then = self._then, []
            for tell in then:
                tell(now_at)
        desired = self.desired
        if not self._name or desired is None or self.looked_at == -math.inf:
            return
        if desired != self._said or (self._said and now_at >= self._said_at + _SAY_S):
            note = {"worker": worker, "at_unix": round(clock.unix(), 3), **self._numbers()}
            self._to_say = Desired(self._name, desired, note)
            self._said, self._said_at = desired, now_at

    def take_to_say(self) -> Desired | None:
        """Return what the first shard is to be told."""
        to_say, self._to_say = self._to_say, None
        return to_say

    def forget_said(self, shard: int = 0) -> None:
        """Tell the number again: it may have been lost with the connection."""
        self._said, self._looks[shard].due = None, self._tells

    @property
    def looked_at(self) -> float:
        """Since when the figures of all shards are known (monotonic s)."""
        return min(look.looked_at for look in self._looks)

    @property
    def depths(self) -> Mapping[str, Depths]:
        """The depths of each queue, of all shards together."""
        if len(self._looks) == 1:
            return self._looks[0].depths
        return added([look.depths for look in self._looks])

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
