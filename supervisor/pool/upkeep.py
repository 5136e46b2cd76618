"""What every master does for the namespace as a whole: sweeps, and the next times of cron jobs. Runs in master. No I/O.

Nobody is elected for it: each does it now and then, and the engine takes each step once, whoever comes first.
"""

import math
import random
from collections.abc import Sequence
from typing import Final

from supervisor import clock
from supervisor.engine import recurring
from supervisor.engine.commands import Grant, Swept
from supervisor.engine.exchange import SWEEP_COUNT, Chores, Spawn
from supervisor.engine.recurring import DueCron
from supervisor.ops.events import Events

#: Between two sweeps of one master, on the average.
SWEEP_S: Final = 15.0
MOST_WARNINGS: Final = 100


class Upkeep:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._sweep_at = math.inf
        self._offset = 0  # where the next sweep goes on
        self._spawns: dict[str, Spawn] = {}  # by the jid of the recurring job
        self._warned: set[str] = set()

    def begin(self, now_at: float) -> None:
        """The session has begun. Masters that were started together do not sweep together."""
        self._sweep_at = now_at + SWEEP_S * random.uniform(0.5, 1.0)

    @property
    def due_at(self) -> float:
        """When `due` has something (monotonic s)."""
        return -math.inf if self._spawns else self._sweep_at

    def due(self, now_at: float) -> Chores | None:
        """What the next exchange is to do; what it does not get done is found again by the next lease or sweep."""
        sweep = now_at >= self._sweep_at
        if not sweep and not self._spawns:
            return None
        if sweep:
            self._sweep_at = now_at + SWEEP_S * random.uniform(0.8, 1.2)
        spawns, self._spawns = tuple(self._spawns.values()), {}
        return Chores(sweep, spawns, self._offset)

    def on_swept(self, swept: Swept) -> None:
        if swept.taken >= SWEEP_COUNT or swept.next_offset:
            self._sweep_at = clock.monotonic()  # there is more
        self._offset = swept.next_offset
        self._prepare(swept.due, swept.now_unix)

    def on_granted(self, grant: Grant) -> bool:
        """Whether there is something to spawn, of what is due."""
        return self._prepare(grant.due, grant.now_unix)

    def _prepare(self, crons: Sequence[DueCron], now_unix: float) -> bool:
        """The times of these have come, by the server's clock: find their next ones."""
        for due in crons:
            try:
                self._spawns[due.jid] = Spawn(due, *recurring.following(due, now_unix))
            except recurring.CronMissing as error:
                self._warn(f"{error}; a supervisor that can must put the jobs of {due.jid}")
        return bool(self._spawns)

    def _warn(self, message: str) -> None:
        """Once of each, while they are few: it would come with every lease."""
        if message not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(message)
            self._events.warn(message)
