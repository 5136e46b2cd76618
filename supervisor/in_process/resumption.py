"""Resumes a worker's session with the leases that it knows, or begins it anew. Runs in applications."""

from collections.abc import Sequence

from supervisor import clock
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.connection import refused_as
from supervisor.engine.commands.leasing import ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker import known_leases
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.in_process.book import Book
from supervisor.in_process.jobs import Jobs
from supervisor.in_process.lookups import Lookups
from supervisor.in_process.patience import AWAY
from supervisor.in_process.renewals import LeaseRenewals


class Resumption:
    def __init__(
        self,
        calls: AsyncCalls,
        identity: Identity,
        times: LeaseTimes,
        book: Book,
        jobs: Jobs,
        renewals: LeaseRenewals,
        lookups: Lookups,
    ) -> None:
        self._calls = calls
        self._identity = identity
        self._times = times
        self._book = book
        self._jobs = jobs
        self._renewals = renewals
        self._lookups = lookups

    async def resume(self) -> None:
        """Begin the session, or resume it. Raises StoreUnavailable or OutcomeUnknown."""
        self._times.keep(await self._calls.run(self._times.query()))
        known = self._book.leases
        try:
            resumed = await self._resume_with(known)
        except AWAY as error:
            if refused_as(error) != "DEREGISTERED":
                raise
            self._begin_anew()
            known = []
            resumed = await self._resume_with(known)
        self._times.spare_peers()
        self._renewals.plan(clock.monotonic())
        self._renewals.on_renewed(known, resumed.expires)
        self._lookups.connected()

    async def _resume_with(self, known: Sequence[LeaseRecord]) -> ResumeResult:
        resume = known_leases.resume(self._identity, self._times, known)
        self._identity.number += 1
        return await self._calls.run(resume)

    def _begin_anew(self) -> None:
        """Redis has forgotten the worker, and its jobs are others': go on under another name."""
        self._jobs.lose_all()
        self._book.drop_outcomes()
        self._identity.rename()
        self._lookups.begin_anew()
