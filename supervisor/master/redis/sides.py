"""The master's talk with all shards of its namespace. Runs in the master. Does no I/O of its own.

Each shard has a side of its own: a session, and the parts that speak in it. A namespace of one shard has one side. What
a side asks for counts as coming for the others, which share the room, so each turn begins with another one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.shards import shard_of_token
from supervisor.engine.worker.session import Session
from supervisor.exit_codes import Exit
from supervisor.master.redis.concerns_watch import ConcernsWatch
from supervisor.master.redis.connection import Connection
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.settling import Settling
from supervisor.master.redis.side_loop import SideLoop


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The parts for one shard that other parts of the master know."""

    loop: SideLoop
    session: Session
    leasing: Leasing
    settling: Settling
    concerns: ConcernsWatch
    pump: RedisPump
    connection: Connection


class Sides:
    def __init__(self) -> None:
        self._sides: list[Side] = []  # by shard
        self._order: list[Side] = []  # of the next turn

    def __iter__(self) -> Iterator[Side]:
        return iter(self._sides)

    def __len__(self) -> int:
        return len(self._sides)

    def add(self, side: Side) -> None:
        """Take in the side of the next shard."""
        self._sides.append(side)
        self._order.append(side)

    @property
    def first(self) -> Side:
        """The side of the first shard, which also has what concerns the namespace as a whole."""
        return self._sides[0]

    # the loop

    def deadline_at(self) -> float:
        """Return when `step` has something to do, if nothing happens before (monotonic s)."""
        return min([side.pump.deadline_at() for side in self._sides])

    def step_woken(self, now_at: float) -> None:
        """Lease where a wake-up has come: a job waits for that."""
        for side in self._sides:
            if side.session.wakeups.woken:
                side.loop.run(side.pump.step, now_at)

    def step(self, now_at: float) -> None:
        """Have each side start its next exchange or wait."""
        for side in self._order:
            side.loop.run(side.pump.step, now_at)
        if len(self._order) > 1:
            self._order.append(self._order.pop(0))
            for side in self._sides:
                side.loop.run(side.connection.follow_name)

    def log_completed(self) -> None:
        for side in self._sides:
            side.settling.log_completed()

    # what other parts tell

    def lease_soon(self) -> None:
        """Lease from each shard as soon as a child can take a job."""
        for side in self._sides:
            side.leasing.lease_soon()

    def end_put_off(self) -> None:
        """Wait no longer for memory in Redis: jobs whose completions it has refused run again, or have failed."""
        for side in self._sides:
            side.settling.end_put_off()

    def report_starts(self, leases: Sequence[LeaseRecord]) -> bool:
        """Tell each shard at once which of its jobs start. Return False if a connection proves to be lost."""
        if len(self._sides) == 1:
            return self.first.session.report_starts(leases)
        by_shard: dict[int, list[LeaseRecord]] = {}
        for lease in leases:
            by_shard.setdefault(shard_of_token(lease.token), []).append(lease)
        told = [self._sides[shard].session.report_starts(of_shard) for shard, of_shard in by_shard.items()]
        return all(told)

    def close(self) -> None:
        for side in self._sides:
            side.session.close()

    # how they are

    @property
    def connected(self) -> bool:
        """True if no shard is away."""
        return not self.away

    @property
    def away(self) -> list[int]:
        """The shards that are away."""
        return [side.session.shard for side in self._sides if not side.session.connected]

    @property
    def failure(self) -> Exit | None:
        """Why the first shard could not be used at the start, as an exit code. None: it can."""
        return self.first.connection.failure
