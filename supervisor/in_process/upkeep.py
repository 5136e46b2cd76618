"""Does a worker's share of the namespace's maintenance: it sweeps, and puts the jobs of cron times. Runs in
applications.
"""

import asyncio
import logging
from collections.abc import Sequence

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.commands import maintenance
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.maintenance import SWEEP_COUNT, next_sweep_s
from supervisor.engine.model.cron_times import DueCron
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.patience import AWAY

log = logging.getLogger("leasehold")


class Upkeep:
    def __init__(self, calls: AsyncCalls, identity: Identity, serving: ServedQueues, demand: LeaseDemand) -> None:
        self._calls = calls
        self._identity = identity
        self._serving = serving
        self._demand = demand
        self._due: list[tuple[Sequence[DueCron], float]] = []
        self._is_due = asyncio.Event()
        self._offset = 0  # where the next sweep goes on

    def put_due(self, grant: Grant) -> None:
        """A lease has found cron times that are due."""
        self._due.append((grant.due, grant.now_unix))
        self._is_due.set()

    async def serve(self) -> None:
        """Do the upkeep, for ever. What fails is due again."""
        while True:
            is_swept = False
            try:
                async with asyncio.timeout(next_sweep_s()):
                    await self._is_due.wait()
            except TimeoutError:
                is_swept = True
            try:
                await self._put()
                if is_swept:
                    await self._sweep()
            except AWAY:
                continue
            except LeaseholdError as error:
                log.warning("upkeep is due again: %s", error)

    async def _put(self) -> None:
        self._is_due.clear()
        due, self._due = self._due, []
        for crons, now_unix in due:
            if await self._calls.spawn(crons, now_unix):
                self._demand.lease_soon()

    async def _sweep(self) -> None:
        while True:
            swept = await self._calls.run(
                maintenance.sweep(
                    SWEEP_COUNT, offset=self._offset, worker=self._identity.name, queues=self._serving.names
                )
            )
            self._offset = swept.next_offset
            if await self._calls.spawn(swept.due, swept.now_unix):
                self._demand.lease_soon()
            if not swept.has_more:
                break
        self._serving.look_for_queues()  # mail about new ones may have been lost
