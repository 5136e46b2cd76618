"""Renews leases, and tells Redis how running jobs get on. Runs in the master. Does no I/O.

Owns when leases are renewed: every third of their TTL. A renewal tells which leases are lost.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from supervisor import clock
from supervisor.engine.commands import leasing
from supervisor.engine.commands.leasing import GONE, LOST, Renewal, Renewals, ResumeResult
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.exchange import Confirmation, Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.known_leases import started
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.pipeline import Pipeline
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.ledger import Ledger
from supervisor.master.redis.speaker import TimedSpeaker


class Due(NamedTuple):
    """A renewal, and the number of the checkpoint that goes with it."""

    lease: LeaseRecord
    renewal: Renewal
    number: int = 0


class Renewing(TimedSpeaker):
    def __init__(
        self,
        identity: Identity,
        ledger: Ledger,
        times: LeaseTimes,
        pipeline: Pipeline,
        answers: LeaseAnswers,
        cut_off: CutOff,
        counts: MasterCounts,
    ) -> None:
        self._identity = identity
        self._ledger = ledger
        self._reports = ledger.reports
        self._times = times
        self._pipeline = pipeline
        self._answers = answers
        self._cut_off = cut_off
        self._counts = counts
        self._renew_at = math.inf
        self._in_doubt: list[LeaseRecord] = []  # hinted to be lost, and not renewed since
        self.is_hinted = False  # a hint of lost leases, without their tokens, has not been followed

    # when

    def connected(self, now_at: float) -> None:
        self._plan(now_at)

    def _plan(self, now_at: float) -> None:
        self._renew_at, self.is_hinted = now_at + self._times.ttl_s / 3, False
        self._in_doubt.clear()

    def on_hint_of_loss(self, token: int | None = None) -> None:
        """Renew this lease at once, which may be lost, or all."""
        if token is None:
            self._renew_at, self.is_hinted = -math.inf, True
        elif (held := self._ledger.find(token)) is not None:
            self._in_doubt.append(held.lease)

    def on_times_read(self) -> None:
        self._renew_at = min(self._renew_at, clock.monotonic() + self._times.ttl_s / 3)

    def shorten_ttl(self, ttl_s: float) -> None:
        """A lease runs for `ttl_s`: the heartbeat of its queue may be shorter now than when it was read."""
        if ttl_s < self._times.ttl_s:
            self._times.ttl_s = max(ttl_s, 0.0)
            self.on_times_read()

    def renew_if_old(self, age_s: float) -> None:
        """Renew at once leases that are as old as the wait in which they were granted: their fence is too near."""
        if age_s > self._times.ttl_s / 3:
            self._renew_at = min(self._renew_at, clock.monotonic())

    def deadline_at(self) -> float:
        return -math.inf if self._in_doubt else min(self._renew_at, self._reports.next_checkpoint_at())

    # what goes

    def parts(self, now_at: float) -> Sequence[Part]:
        """Return the renewals that are due. They go before the outcomes: with a job its last progress is kept."""
        due = self._told() if self._reports.any else []
        due += [Due(lease, Renewal(lease.jid, lease.token)) for lease in self._take_due(now_at)]
        # Apart from renewals, which count whether replicas have them or not.
        stored = self._stored(now_at) if self._reports.any else []
        if not (due or stored):
            return ()
        self._times.read_if_stale(now_at)
        return [
            *(self._part(batch, self._on_renewed) for batch in _batches(due)),
            *(self._part(batch, self._on_stored, again=True) for batch in _batches(stored)),
        ]

    def _take_due(self, now_at: float) -> list[LeaseRecord]:
        if now_at < self._renew_at:
            in_doubt, self._in_doubt = self._in_doubt, []
            return in_doubt
        self._plan(now_at)
        return self._ledger.leases

    def _told(self) -> list[Due]:
        """Return what is to be told of jobs that run."""
        reports = self._reports
        told = [Due(lease, started(lease)) for lease in reports.take_starts()]
        told += [Due(lease, started(lease, progress=progress)) for lease, progress in reports.take_progress()]
        return told

    def _stored(self, now_at: float) -> list[Due]:
        """Return the checkpoints and steps to store."""
        return [
            Due(lease, started(lease, state=state, step=step), number)
            for lease, (number, state, step) in self._reports.take_checkpoints(now_at)
        ]

    def _part(self, due: Sequence[Due], then: Callable[[Sequence[Due], Renewals], None], again: bool = False) -> Part:
        renewals = [each.renewal for each in due]
        command = leasing.renew(
            self._identity.name, renewals, number=self._identity.next_number, ttl_s=self._times.own_ttl_s
        )  # fmt: skip
        return Part(command, partial(then, due), must=True, again=again)

    # what comes

    def _on_renewed(self, due: Sequence[Due], renewals: Renewals) -> None:
        self._keep([each.lease for each in due], renewals, self._pipeline.confirmation(renewals.now_unix))

    def _on_stored(self, due: Sequence[Due], renewals: Renewals) -> None:
        """The checkpoints count. The reply may be old by now, so it renews no lease; a lost one is looked at again."""
        for (lease, _, number), expires in zip(due, renewals, strict=True):
            if (stored := self._reports.take_stored(lease.token, number)) is not None:
                self._answers.stored(*stored, kept=expires not in (LOST, GONE))
            if expires in (LOST, GONE):
                self.on_hint_of_loss(lease.token)

    def on_resumed(self, leases: Sequence[LeaseRecord], resumed: ResumeResult) -> None:
        self._keep(leases, resumed.expires, self._pipeline.confirmation(resumed.expires.now_unix))

    def _keep(self, leases: Sequence[LeaseRecord], renewals: Renewals, confirmation: Confirmation) -> None:
        """Go on with the leases that Redis has renewed, and stop the jobs of the others."""
        lost = []
        for i, (lease, expires) in enumerate(zip(leases, renewals, strict=True)):
            if expires not in (LOST, GONE):
                self._counts.renewed += 1
                self._cut_off.on_renewed(lease, expires, confirmation)
            elif (held := self._ledger.find(lease.token)) is not None:
                held.cancelled_by = renewals.cancelled_by.get(i)
                lost.append((held, "cancelled" if expires == GONE else "lease-lost"))
        if lost:
            self._answers.lost(lost)


def _batches(due: Sequence[Due]) -> Iterator[Sequence[Due]]:
    return (due[first : first + MOST] for first in range(0, len(due), MOST))
