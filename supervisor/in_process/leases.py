"""Leases jobs and begins them. Runs in applications. No I/O."""

import logging
import math
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.engine.client.answers import pause_s
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.leaser import Leaser
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.jobs import Jobs
from supervisor.in_process.renewals import LeaseRenewals
from supervisor.in_process.upkeep import Upkeep
from supervisor.in_process.waits import Waits

#: The shortest pause after a lease that has found nothing, though a time says that there is something.
_SHORTEST_S: Final = 0.05

log = logging.getLogger("leasehold")


class JobLeases:
    def __init__(
        self, demand: LeaseDemand, leaser: Leaser, renewals: LeaseRenewals, jobs: Jobs, waits: Waits, upkeep: Upkeep
    ) -> None:
        self._demand = demand
        self._leaser = leaser
        self._renewals = renewals
        self._jobs = jobs
        self._waits = waits
        self._upkeep = upkeep

    def due_at(self) -> float:
        return -math.inf if self._demand.is_due else math.inf

    def parts(self, _now_at: float) -> list[Part]:
        wanted = self._demand.take()
        if wanted is None:
            return []
        command = self._leaser.command(wanted)
        return [Part(command, partial(self._on_granted, wanted.count), lost=self._demand.lease_soon)]

    def _on_granted(self, count: int, grant: Grant) -> None:
        leases = self._leaser.granted(grant, clock.boottime()).grant.leases
        if grant.unreadable:
            log.warning("records that cannot be read: %s; see `leasehold check`", ", ".join(grant.unreadable))
        if leases:
            self._renewals.shorten_ttl(min(lease.expires_unix for lease in leases) - grant.now_unix)
        for lease in leases:
            self._jobs.begin(lease)
        if grant.due:
            self._upkeep.put_due(grant)
        if len(leases) == count:
            self._demand.lease_soon()  # there may be more
        else:
            self._waits.wait_for_job(self._leaser.queues, max(_SHORTEST_S, pause_s(grant, math.inf, math.inf)))
