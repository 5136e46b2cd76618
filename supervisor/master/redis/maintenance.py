"""Decides when to sweep the namespace, and computes the next times of cron jobs. Runs in the master. Does no I/O.

No master is elected for it. Each does its share now and then, and the engine accepts each step from the first only.
"""

import math
import random
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.maintenance import SWEEP_S, Swept, next_sweep_s
from supervisor.engine.model import cron_times
from supervisor.engine.model.cron_times import MOST_AT_ONCE, CronMissing, DueCron, Following
from supervisor.ops.events import Events

MOST_WARNINGS: Final = 100
#: One turn of the loop computes times for at most this long. The next turns compute the rest.
_COMPUTING_S: Final = 0.005
#: At most this many recurrences are remembered as failed.
_MOST_FAILED: Final = 10_000


class CronSpawn(NamedTuple):
    """A due cron recurrence, the times for which jobs are to be put, and its next time; None: it has ended."""

    due: DueCron
    times_unix: Sequence[float]
    next_unix: float | None


class Duties(NamedTuple):
    """The duties of the next exchange for the namespace. A sweep goes on at `offset`."""

    sweep: bool = False
    spawns: Sequence[CronSpawn] = ()
    offset: int = 0


class _Pending(NamedTuple):
    """A due recurrence whose times are still to be computed."""

    due: DueCron
    steps: Generator[None, None, Following]
    is_swept: bool  # a sweep has reported it, so it may be of a queue that this master does not lease from


class Maintenance:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._sweep_at = math.inf
        self._offset = 0  # where the next sweep goes on
        self._pending: dict[str, _Pending] = {}  # by the jid of the recurring job
        self._failed: set[DueCron] = set()  # recurrences whose times cannot be computed here
        self._warned: set[str] = set()

    def begin(self, now_at: float) -> None:
        """The session has begun. A random delay keeps masters that start together from sweeping together."""
        self._sweep_at = now_at + SWEEP_S * random.uniform(0.5, 1.0)

    @property
    def due_at(self) -> float:
        """When `due` returns something (monotonic s)."""
        return -math.inf if self._pending else self._sweep_at

    def due(self, now_at: float) -> Duties | None:
        """Return the duties of the next exchange. The next lease or sweep finds again what it does not get done."""
        sweep = now_at >= self._sweep_at
        spawns = self._compute() if self._pending else ()
        if not sweep and not spawns:
            return None
        if sweep:
            self._sweep_at = now_at + next_sweep_s()
        return Duties(sweep, spawns, self._offset)

    def on_swept(self, swept: Swept) -> None:
        if swept.has_more:
            self._sweep_at = clock.monotonic()
        self._offset = swept.next_offset
        self._add(swept.due, swept.now_unix, is_swept=True)

    def on_granted(self, grant: Grant, names_all: bool) -> bool:
        """Take in what a lease reports as due. Return True if there is something to spawn.

        `names_all`: the lease has looked at all its queues. A peer has then spawned what it does not name any more.
        """
        if not (grant.due or self._pending):
            return False  # as after most leases
        if names_all and self._pending:
            named = {due.jid for due in grant.due}
            self._pending = {jid: one for jid, one in self._pending.items() if one.is_swept or jid in named}
        self._add(grant.due, grant.now_unix, is_swept=False)
        return bool(self._pending)

    def _add(self, crons: Sequence[DueCron], now_unix: float, is_swept: bool) -> None:
        # Other masters compute the same recurrences: a random order lets them share the work.
        for due in random.sample(crons, len(crons)):
            known = self._pending.get(due.jid)
            if due not in self._failed and (known is None or known.due != due):
                steps = cron_times.following_in_steps(due, now_unix)
                self._pending[due.jid] = _Pending(due, steps, is_swept)

    def _compute(self) -> Sequence[CronSpawn]:
        """Compute times for a few milliseconds, and for about 1,000 jobs at most."""
        spawns: list[CronSpawn] = []
        jobs, until_at = 0, clock.monotonic() + _COMPUTING_S
        while self._pending and jobs < MOST_AT_ONCE:
            due, steps, _is_swept = next(iter(self._pending.values()))
            try:
                next(steps)
            except StopIteration as end:
                spawns.append(CronSpawn(due, *end.value))
                jobs += 1 + len(spawns[-1].times_unix)
                del self._pending[due.jid]
            except CronMissing as error:
                del self._pending[due.jid]
                self._leave_to_others(due, error)
            if clock.monotonic() >= until_at:
                break
        return spawns

    def _leave_to_others(self, due: DueCron, error: CronMissing) -> None:
        if len(self._failed) >= _MOST_FAILED:
            self._failed.clear()
        self._failed.add(due)
        self._warn(f"{error}; a supervisor that can must put the jobs of {due.jid}")

    def _warn(self, message: str) -> None:
        """Warn once of each: every lease reports the recurrence again."""
        if message not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(message)
            self._events.warn(message)
