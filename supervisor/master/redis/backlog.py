"""What waits in the queues that are served, as it was seen last, and how many supervisors that is work for. Runs in
master. No I/O: it says when an exchange is to look, and what it is to tell a scaler.

Looks cost Redis more than anything else that is asked for, so there is none that nobody has asked for; and for a scaler
they go with exchanges that there are anyway: at most one a second while work goes on, and one with each sweep.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from supervisor import clock
from supervisor.engine.commands.queries import Depths
from supervisor.engine.worker.exchange import Desired
from supervisor.master.model.slots import Slots
from supervisor.master.processes.scaling import Scaling

#: Between two looks for a scaler while work goes on. Each queue takes Redis 30 µs, with lanes several times that.
_LOOK_S: Final = 1.0
_LOOK_AT_A_QUEUE_S: Final = 0.01
#: A number that stays the same is said again this often: it ends by itself after 60 s.
_SAY_S: Final = 14.0
#: Figures that are older than this are not shown as those of now: who drains, or has lost Redis, does not look.
FRESH_S: Final = 30.0
#: More than so many supervisors are not asked for.
MOST_DESIRED: Final = 1000


class Backlog:
    def __init__(self, name: str, scaling: Scaling, slots: Slots) -> None:
        """`name`: under which a scaler is told; empty: it is not."""
        self._name = name
        self._scaling = scaling
        self._slots = slots
        self._due = bool(name)  # somebody has asked for a look
        self._moved = False  # jobs have come or gone since the last look
        self.depths: Mapping[str, Depths] = {}  # by queue
        self.looked_at = -math.inf  # when the last answer came (monotonic s)
        self._again_at = -math.inf  # from when on what has moved is worth a look
        self._said: int | None = None
        self._said_at = -math.inf
        self._to_say: Desired | None = None

    # when to look

    def look(self) -> None:
        """Look with the next exchange."""
        self._due = True

    def move(self) -> None:
        """Jobs have come or gone."""
        self._moved = True

    def take_look(self, now_at: float, sweeps: bool) -> bool:
        """Whether the exchange that begins now, which sweeps or does not, is to look."""
        due = self._due or bool(self._name and (sweeps or (self._moved and now_at >= self._again_at)))
        if due:
            self._due = self._moved = False
            self._again_at = now_at + max(_LOOK_S, _LOOK_AT_A_QUEUE_S * len(self.depths))
        return due

    def deadline_at(self) -> float:
        """When there is to be an exchange for it."""
        if self._due or self._to_say is not None:
            return -math.inf
        return self._again_at if self._name and self._moved else math.inf

    # what was seen

    def on_looked(self, depths: Mapping[str, Depths], worker: str) -> None:
        self.depths, self.looked_at = depths, clock.monotonic()
        if not self._name:
            return
        desired, again = self.desired, self._said and self.looked_at >= self._said_at + _SAY_S
        if desired != self._said or again:
            note = {"worker": worker, "at_unix": round(clock.unix(), 3), **self._numbers()}
            self._to_say = Desired(self._name, desired, note)
            self._said, self._said_at = desired, self.looked_at

    def take_to_say(self) -> Desired | None:
        to_say, self._to_say = self._to_say, None
        return to_say

    def forget_said(self) -> None:
        """The connection was lost: what was to be said may not have got in."""
        self._said, self._due = None, bool(self._name)

    # what it means

    @property
    def is_fresh(self) -> bool:
        """Whether what was seen last still says how it is."""
        return clock.monotonic() < self.looked_at + FRESH_S

    @property
    def desired(self) -> int:
        """For how many supervisors like this one there is work."""
        jobs = sum(each.ready + each.running + each.stalled for each in self.depths.values())
        return min(MOST_DESIRED, math.ceil(jobs / self._scaling.most))

    def _numbers(self) -> dict[str, Any]:
        depths = self.depths.values()
        return {
            "desired": self.desired,
            "ready": sum(each.ready for each in depths),
            "running": sum(each.running + each.stalled for each in depths),
            "processes": self._scaling.most,
            "oldest_s": max((each.oldest_s for each in depths if each.oldest_s is not None), default=None),
        }

    def status(self) -> dict[str, Any] | None:
        """As JSON; None if nobody has looked yet."""
        if self.looked_at == -math.inf:
            return None
        return {
            "name": self._name or None,
            **self._numbers(),
            "busy_ratio": round(self._slots.busy / self._slots.processes, 3),
            "age_s": round(max(0.0, clock.monotonic() - self.looked_at), 3),
        }
