"""Decides when the master leases from one shard, and reads what is granted. Runs in the master. Does no I/O."""

import math
from collections.abc import Sequence
from typing import Final

from supervisor import clock
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.worker.exchange import Granted, Part, Wanted
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.pipeline import Pipeline
from supervisor.engine.worker.wait import LeaseBehind, Wait
from supervisor.master.model.ledger import Ledger
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.maintenance import Maintenance
from supervisor.master.redis.speaker import TimedSpeaker

#: A refused lease is tried again after this.
_REFUSED_S: Final = 1.0
#: A shard for which there was no room is asked again after this, because nothing tells the master of its jobs.
_LOOK_S: Final = 0.25


class Leasing(TimedSpeaker):
    def __init__(
        self,
        demand: Demand,
        ledger: Ledger,
        grants: Grants,
        maintenance: Maintenance,
        leaser: Leaser,
        wakeups: Wait,
        pipeline: Pipeline,
    ) -> None:
        self._demand = demand
        self._ledger = ledger
        self._grants = grants
        self._maintenance = maintenance
        self._leaser = leaser
        self._wakeups = wakeups
        self._pipeline = pipeline
        self._is_due = True  # there may be something to lease
        self._due_at = math.inf  # there will be something to lease
        self.wanted: Wanted | None = None  # of the exchange that begins, or is under way
        self._behind_wait = Wanted(0, 0)
        self._asked = 0  # jobs, by the exchange under way

    def connected(self, now_at: float) -> None:
        self._is_due = True
        self._count_asked(0)
        self._grants.forget_fresh()

    # why

    def lease_soon(self) -> None:
        """Lease as soon as a child can take a job."""
        self._is_due = True

    def on_refused(self, now_at: float) -> None:
        """Lease again a moment later: Redis has refused a lease, or a command beside it."""
        self._count_asked(0)
        self._due_at = now_at + _REFUSED_S

    def look_later(self, now_at: float) -> None:
        """Lease in a moment, if there is no reason to lease now: there was no room to wait for jobs of this shard."""
        if not self._is_due:
            self._due_at = min(self._due_at, now_at + _LOOK_S)

    def deadline_at(self) -> float:
        return self._due_at

    # when

    def decide(self, now_at: float, coming: int) -> None:
        """Decide what the exchange that begins leases. `coming`: jobs that are granted and not placed yet."""
        self.wanted = self._wanted_now(now_at, coming)
        if self.wanted is not None:
            # A lease of no job only passes a wake-up on: once a child is free, the master must ask for jobs.
            self._is_due, self._due_at = not self.wanted.count, math.inf
        elif (wanted := self._demand.for_freed_slots(self._ledger)) is not None:
            self.wanted = wanted if self._leaser.queues and not self._wakeups.lease_behind.is_own else None
        if self.wanted is not None:
            self._count_asked(self.wanted.count)

    def _wanted_now(self, now_at: float, coming: int) -> Wanted | None:
        if now_at >= self._due_at:
            self._is_due, self._due_at = True, math.inf
        if not self._is_due:
            return None
        wakeups = self._wakeups
        if not self._leaser.queues:
            wakeups.forget_wakeup()  # the wait was for mail
            return None
        wanted = self._demand.now(self._ledger, wakeups.woken, coming)
        if wanted is None:
            return None
        if (behind := wakeups.lease_behind).is_own:
            if not wakeups.is_ending:  # else the wait was ended before there was a reason to lease
                self._is_due = behind is not LeaseBehind.ALL
                wakeups.end_wait()
            return None
        wakeups.forget_wakeup()
        return wanted

    def parts(self, now_at: float) -> Sequence[Part]:
        if self.wanted is None:
            return ()
        return [Part(self._leaser.command(self.wanted), self._on_answer, lost=self._on_no_answer)]

    def _count_asked(self, count: int) -> None:
        """The exchange that begins asks for so many jobs, which take room from other shards until it is answered."""
        self._demand.asked += count - self._asked
        self._asked = count

    def _on_no_answer(self) -> None:
        self._count_asked(0)

    def begin_wait(self) -> None:
        """Wait for wake-ups, with a lease behind the wait. Raises LinkLost."""
        self._behind_wait = self._demand.behind_wait()
        self._wakeups.wait_for_queues(self._behind_wait)

    # what was granted

    def _on_answer(self, grant: Grant) -> None:
        assert self.wanted is not None
        self._count_asked(0)
        granted = self._leaser.granted(grant, self._pipeline.sent_at)
        self._on_granted(granted, self.wanted, reports_starts=False)

    def on_waited(self, granted: Granted) -> None:
        """The end of a wait has leased."""
        self._on_granted(granted, self._behind_wait, reports_starts=True)

    def _on_granted(self, granted: Granted, wanted: Wanted, reports_starts: bool) -> None:
        grant, count = granted.grant, len(granted.grant.leases)
        if self._maintenance.on_granted(grant, count < wanted.count):
            self._is_due = True  # what is spawned may be for this master
        self._is_due = self._is_due or 0 < wanted.count <= count
        if grant.next_at_unix is not None:
            self._due_at = clock.monotonic() + max(0.0, grant.next_at_unix - grant.now_unix)
            if not self._leaser.takes_over:
                # Until then Redis names no time for leases that have expired.
                self._due_at = min(self._due_at, self._leaser.takeover_at)
        self._grants.take(granted, wanted, self._demand.handlers, reports_starts)
