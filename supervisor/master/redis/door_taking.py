"""Takes what other programs have put behind doors, as far as this master has room for jobs. Runs in the master. No I/O.

Owns which doors lead to the queues served. A namespace without doors costs one small query with each look at the
configured times.
"""

import math
from collections.abc import Sequence
from functools import partial

from supervisor import clock
from supervisor.engine.commands import doors
from supervisor.engine.commands.check import ScanPage
from supervisor.engine.commands.doors import TakenEntries
from supervisor.engine.model.doors import Door
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.push_listeners import PushListeners
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.speaker import TimedSpeaker


class DoorTaking(TimedSpeaker):
    """Speaks before the lease, which then has the jobs that it takes."""

    def __init__(
        self,
        serving: ServedQueues,
        times: LeaseTimes,
        demand: Demand,
        leasing: Leasing,
        listeners: PushListeners,
    ) -> None:
        self._serving = serving
        self._times = times
        self._demand = demand
        self._leasing = leasing
        self._listeners = listeners
        self._known: Sequence[Door] = ()
        self._read_due = True  # there may be other doors
        self._is_asked = False  # something may lie behind a door
        self._look_at = math.inf
        self._find_at = math.inf  # look for lists of clients
        self._cursors: dict[str, int] = {}  # how far that has come, by door
        self._found: list[Part] = []
        self._takes = 0

    def connected(self, now_at: float) -> None:
        self._read_due = True

    def look_for_doors(self) -> None:
        """Read the doors with the next exchange."""
        self._read_due = True

    @property
    def _served(self) -> list[Door]:
        served = set(self._serving.names) if self._known else ()
        return [door for door in self._known if door.queue in served]

    def listen(self) -> None:
        """Wait for what is pushed: called while the master waits for jobs."""
        if self._known:
            self._listeners.listen(self._lists)

    def hear(self) -> None:
        """Before an exchange: see what was pushed."""
        if self._listeners.take_pushed():
            self._is_asked = True

    def deadline_at(self) -> float:
        return min(self._look_at, self._find_at) if self._demand.can_start else math.inf

    def parts(self, now_at: float) -> Sequence[Part]:
        parts = []
        if self._read_due or self._times.is_due:
            self._read_due = False
            parts.append(Part(doors.read(), self._on_doors))
        if now_at >= self._look_at:
            self._is_asked, self._look_at = True, math.inf
        if now_at >= self._find_at:
            self._is_asked, self._find_at = True, now_at + doors.FIND_S
            parts += [
                Part(doors.find(door, self._cursors.get(door.name, 0)), partial(self._on_page, door))
                for door in self._served
                if door.has_clients
            ]
        parts += self._found
        self._found = []
        wanted = self._leasing.wanted
        if not self._known or not (self._is_asked or wanted):
            return parts
        count = wanted.count if wanted else self._demand.behind_wait().count
        names = [door.name for door in self._served]
        if count and names and self._demand.is_open:
            self._is_asked = False
            self._takes += 1
            first = self._takes % len(names)  # a door that has always more must not keep the room from the others
            parts.append(Part(doors.take(names[first:] + names[:first], count), self._on_taken))
        return parts

    def _on_doors(self, known: Sequence[Door]) -> None:
        had, self._known = self._leads(), known
        if self._leads() != had:
            self._is_asked = bool(known)
            self._look_at = math.inf
            self._find_at = 0.0 if any(door.has_clients for door in self._served) else math.inf
            self._listeners.listen(self._lists)

    @property
    def _lists(self) -> list[str]:
        """Return the first list of each door, and then the others."""
        lists = [door.usual_lists for door in self._served]
        return [each for part in lists for each in part[:1]] + [each for part in lists for each in part[1:]]

    def _leads(self) -> list[tuple[str, str, str, list[str]]]:
        return [(door.name, door.list, door.queue, sorted(door.client_lists)) for door in self._known]

    def _on_page(self, door: Door, page: ScanPage) -> None:
        self._cursors[door.name] = page.cursor
        if page.found:
            self._found.append(Part(doors.remember(door, page.found), self._on_remembered))
            self._leasing.lease_soon()

    def _on_remembered(self, new: int) -> None:
        if new:
            self._read_due = True
            self._leasing.lease_soon()

    def _on_taken(self, taken: TakenEntries) -> None:
        if taken.has_more:
            self._leasing.lease_soon()  # a lease takes the next ones first
        self._look_at = math.inf if taken.again_s is None else clock.monotonic() + taken.again_s
