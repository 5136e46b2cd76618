"""Renews leases, and stores what jobs report. Runs in applications. No I/O.

Owns when leases are renewed: every third of their TTL. A renewal tells which leases are lost.
"""

import math
from collections.abc import Sequence
from functools import partial

from supervisor import clock
from supervisor.engine.commands import leasing
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.leasing import GONE, LOST, Renewal, Renewals
from supervisor.engine.model.bounds import MOST_RENEWALS
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.in_process.book import Book, PendingStore, accept, refuse
from supervisor.in_process.jobs import Jobs


class LeaseRenewals:
    def __init__(self, identity: Identity, times: LeaseTimes, book: Book, jobs: Jobs) -> None:
        self._identity = identity
        self._times = times
        self._book = book
        self._jobs = jobs
        self._renew_at = math.inf
        self._in_doubt: set[int] = set()  # tokens of leases that are hinted to be lost

    # when

    def due_at(self) -> float:
        return -math.inf if self._in_doubt or self._book.has_reports else self._renew_at

    def plan(self, now_at: float) -> None:
        """All leases have just been renewed."""
        self._renew_at = now_at + self._times.ttl_s / 3

    def on_hint_of_loss(self, token: int | None) -> None:
        """Renew this lease at once, which may be lost. None: renew all."""
        if token is None:
            self._renew_at = -math.inf
        else:
            self._in_doubt.add(token)

    def shorten_ttl(self, ttl_s: float) -> None:
        """A lease runs for `ttl_s`: the heartbeat of its queue may be shorter than that of others."""
        self._times.ttl_s = min(self._times.ttl_s, max(ttl_s, 0.0))
        self._renew_at = min(self._renew_at, clock.monotonic() + self._times.ttl_s / 3)

    # what goes

    def parts(self, now_at: float) -> list[Part]:
        told = self._book.take_progress()
        told += [(lease, Renewal(lease.jid, lease.token)) for lease in self._take_due(now_at)]
        parts = [self._renewal(told[at : at + MOST_RENEWALS]) for at in range(0, len(told), MOST_RENEWALS)]
        if stores := self._book.take_stores():
            command = self._renew([store.renewal for store in stores])
            again = partial(self._book.store_again, stores)
            parts.append(Part(command, partial(self._on_stored, stores), lost=again))
        return parts

    def _take_due(self, now_at: float) -> list[LeaseRecord]:
        leases, in_doubt = self._book.leases, self._in_doubt
        self._in_doubt = set()
        if now_at < self._renew_at:
            return [lease for lease in leases if lease.token in in_doubt]
        self.plan(now_at)
        return leases

    def _renewal(self, told: Sequence[tuple[LeaseRecord, Renewal]]) -> Part:
        leases = [lease for lease, _ in told]
        return Part(self._renew([renewal for _, renewal in told]), partial(self.on_renewed, leases))

    def _renew(self, renewals: Sequence[Renewal]) -> Command[Renewals]:
        return leasing.renew(
            self._identity.name, renewals, number=self._identity.next_number, ttl_s=self._times.own_ttl_s
        )

    # what comes

    def on_renewed(self, leases: Sequence[LeaseRecord], expires_unix: Sequence[float]) -> None:
        """Stop the jobs whose leases are lost."""
        for lease, expires in zip(leases, expires_unix, strict=True):
            if expires in (LOST, GONE) and self._book.holds(lease.token):
                self._jobs.lose(lease, "cancelled" if expires == GONE else "lease-lost")

    def _on_stored(self, stores: Sequence[PendingStore], expires_unix: Sequence[float]) -> None:
        for store, expires in zip(stores, expires_unix, strict=True):
            if expires in (LOST, GONE):
                refuse(store)
                self._in_doubt.add(store.lease.token)
            else:
                accept(store)
