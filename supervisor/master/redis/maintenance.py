"""What every master does for the namespace as a whole: sweeps, and the next times of cron jobs. Runs in master. No I/O.

Nobody is elected for it: each does it now and then, and the engine takes each step once, whoever comes first.
"""

import math
import random
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands.writes import Grant, Swept
from supervisor.engine.model import recurring
from supervisor.engine.model.recurring import MOST_AT_ONCE, CronMissing, DueCron, Following
from supervisor.engine.worker.exchange import SWEEP_COUNT, Chores, Spawn
from supervisor.ops.events import Events

#: Between two sweeps of one master, on the average.
SWEEP_S: Final = 15.0
MOST_WARNINGS: Final = 100
#: The times of cron recurrences may take so much of one turn of the loop; the rest is computed in the next ones.
_COMPUTING_S: Final = 0.005
#: More recurrences than this are not remembered as beyond us; they are tried again.
_MOST_BEYOND: Final = 10_000


class _Pending(NamedTuple):
    """A due recurrence whose times are still to be computed."""

    due: DueCron
    steps: Generator[None, None, Following]
    is_swept: bool  # a sweep has reported it: it may be of a queue that we do not lease from


class Maintenance:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._sweep_at = math.inf
        self._offset = 0  # where the next sweep goes on
        self._pending: dict[str, _Pending] = {}  # by the jid of the recurring job
        self._beyond: set[DueCron] = set()  # their times cannot be computed here
        self._warned: set[str] = set()

    def begin(self, now_at: float) -> None:
        """The session has begun. Masters that were started together do not sweep together."""
        self._sweep_at = now_at + SWEEP_S * random.uniform(0.5, 1.0)

    @property
    def due_at(self) -> float:
        """When `due` has something (monotonic s)."""
        return -math.inf if self._pending else self._sweep_at

    def due(self, now_at: float) -> Chores | None:
        """What the next exchange is to do; what it does not get done is found again by the next lease or sweep."""
        sweep = now_at >= self._sweep_at
        spawns = self._compute() if self._pending else ()
        if not sweep and not spawns:
            return None
        if sweep:
            self._sweep_at = now_at + SWEEP_S * random.uniform(0.8, 1.2)
        return Chores(sweep, spawns, self._offset)

    def on_swept(self, swept: Swept) -> None:
        if swept.taken >= SWEEP_COUNT or swept.next_offset:
            self._sweep_at = clock.monotonic()  # there is more
        self._offset = swept.next_offset
        self._add(swept.due, swept.now_unix, is_swept=True)

    def on_granted(self, grant: Grant, names_all: bool) -> bool:
        """Take in what a lease reports as due. `names_all`: it has looked at all its queues, so that what it does not
        name any more has been spawned by another master. Return True if there is something to spawn.
        """
        if names_all and self._pending:
            named = {due.jid for due in grant.due}
            self._pending = {jid: one for jid, one in self._pending.items() if one.is_swept or jid in named}
        self._add(grant.due, grant.now_unix, is_swept=False)
        return bool(self._pending)

    def _add(self, crons: Sequence[DueCron], now_unix: float, is_swept: bool) -> None:
        """The times of these have come, by the server's clock."""
        # Other masters compute the same ones: a random order lets them share the work.
        for due in random.sample(crons, len(crons)):
            known = self._pending.get(due.jid)
            if due not in self._beyond and (known is None or known.due != due):
                steps = recurring.following_in_steps(due, now_unix)
                self._pending[due.jid] = _Pending(due, steps, is_swept)

    def _compute(self) -> Sequence[Spawn]:
        """Compute times for a few milliseconds, of at most some 1,000 jobs."""
        spawns: list[Spawn] = []
        jobs, until_at = 0, clock.monotonic() + _COMPUTING_S
        while self._pending and jobs < MOST_AT_ONCE:
            due, steps, _is_swept = next(iter(self._pending.values()))
            try:
                next(steps)
            except StopIteration as end:
                spawns.append(Spawn(due, *end.value))
                jobs += 1 + len(spawns[-1].times_unix)
                del self._pending[due.jid]
            except CronMissing as error:
                del self._pending[due.jid]
                self._leave_to_others(due, error)
            if clock.monotonic() >= until_at:
                break
        return spawns

    def _leave_to_others(self, due: DueCron, error: CronMissing) -> None:
        if len(self._beyond) >= _MOST_BEYOND:
            self._beyond.clear()
        self._beyond.add(due)
        self._warn(f"{error}; a supervisor that can must put the jobs of {due.jid}")

    def _warn(self, message: str) -> None:
        """Once of each, while they are few: it would come with every lease."""
        if message not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(message)
            self._events.warn(message)
