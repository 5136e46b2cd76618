"""Takes on the jobs that a lease of one shard has granted. Runs in the master.

Does no I/O beside the report of starts.
"""

from collections.abc import Mapping
from typing import Final

from supervisor import clock
from supervisor.engine.worker.exchange import Granted, Wanted
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.intake import Intake
from supervisor.master.jobs.placing import Placing
from supervisor.master.jobs.start_reports import StartReports
from supervisor.master.model.counts import MasterCounts
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.renewing import Renewing
from supervisor.messages import HandlerSettings
from supervisor.ops.events import Events

#: To place this many jobs takes longer than to start an exchange.
_MANY: Final = 16


class Grants:
    def __init__(
        self,
        intake: Intake,
        placing: Placing,
        cut_off: CutOff,
        renewing: Renewing,
        starts: StartReports,
        backlog: Backlog,
        events: Events,
        counts: MasterCounts,
        shard: int = 0,
    ) -> None:
        self._intake = intake
        self._placing = placing
        self._cut_off = cut_off
        self._renewing = renewing
        self._backlog = backlog
        self._events = events
        self._counts = counts
        self._starts = starts
        self._shard = shard
        self.fresh = 0  # jobs that were granted and not placed yet
        self._reports_starts = False

    def take(
        self, granted: Granted, wanted: Wanted, handlers: Mapping[str, HandlerSettings], reports_starts: bool
    ) -> None:
        """Make the granted jobs ready; `place` is to follow. `reports_starts`: the lease has reported no start."""
        grant = granted.grant
        if grant.unreadable:
            jids = ", ".join(grant.unreadable)
            self._events.warn(f"records that cannot be read: {jids}; see `leasehold check`")
        if not grant.leases:
            return
        self._renewing.shorten_ttl(min(lease.expires_unix for lease in grant.leases) - grant.now_unix)
        self._counts.granted += len(grant.leases)
        self._backlog.move(self._shard)
        self._events.emit("lease.granted", count=len(grant.leases))
        self._intake.accept(grant, handlers, wanted.ahead, self._shard)
        if self._cut_off.on_granted(grant.leases, handlers, granted.confirmation):
            self._renewing.renew_if_old(clock.boottime() - granted.confirmation.sent_at)
        if granted.late:
            self._placing.hand_back()
        self.fresh, self._reports_starts = len(grant.leases), reports_starts
        self._starts.are_first = not granted.woken

    def forget_fresh(self) -> None:
        """The connection was lost before the fresh jobs were placed: the loop places them like all that are ready."""
        self.fresh, self._starts.are_first = 0, False

    @property
    def are_many(self) -> bool:
        """True if Redis should get its next exchange before the fresh jobs are placed."""
        return self.fresh >= _MANY

    @property
    def coming(self) -> int:
        """How many jobs are ready to be placed."""
        return self._intake.ready_count

    def place(self) -> None:
        """Place the fresh jobs. After a wake-up `report_starts` is to follow soon."""
        self.fresh = 0
        try:
            self._placing.place(self._reports_starts)
        finally:
            self._starts.are_first = False

    def report_starts(self) -> None:
        """Report to Redis which of the jobs just placed have started."""
        self._starts.finish()
