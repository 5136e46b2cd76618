"""The leases of all shards in the master's hands: one ledger for each shard, and the jobs that wait for a child.

Runs in the master. No I/O. A lease belongs to the shard that has granted it, as its token says.
"""

from collections import deque

from supervisor.engine.model.shards import shard_of_token
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING, Ledger


class Ledgers:
    def __init__(self) -> None:
        self.ready: deque[HeldLease] = deque()  # jobs of all shards that no child has
        #: Indexed by `HeldLease.shard`.
        self.by_shard: list[Ledger] = [Ledger()]

    def divide(self, shards: int) -> None:
        """The namespace has so many shards. What is held stays where it was leased."""
        self.by_shard += [Ledger() for _ in range(shards - len(self.by_shard))]

    @property
    def is_divided(self) -> bool:
        return len(self.by_shard) > 1

    @property
    def are_empty(self) -> bool:
        """True if Redis has accepted the end of every lease."""
        return not any(self.by_shard)

    def shard_of(self, token: int) -> int:
        """Return the shard that has granted a lease with this token."""
        return shard_of_token(token) if self.is_divided else 0

    def find(self, token: int) -> HeldLease | None:
        """Return the lease with this token, unless its end is being settled. Children may name any token."""
        shard = self.shard_of(token)
        return self.by_shard[shard].find(token) if 0 <= shard < len(self.by_shard) else None

    def lose(self, held: HeldLease, why: str) -> None:
        """The lease is void. Redis would refuse everything about it."""
        self.by_shard[held.shard].lose(held, why)
        if held in self.ready:
            self.ready.remove(held)

    @property
    def are_laden(self) -> bool:
        """True if so much waits to be settled that no further job may start."""
        unsettled_bytes = waiting = 0
        for ledger in self.by_shard:
            unsettled_bytes += ledger.unsettled_bytes
            waiting += ledger.waiting
        return unsettled_bytes > MOST_BYTES or waiting > MOST_WAITING

    def hold_back(self, ledger: Ledger) -> bool:
        """Return whether no job is leased from this shard, because it alone has half of what may wait.

        A shard whose Redis is full or away thus leaves room to the others.
        """
        is_half = ledger.unsettled_bytes > MOST_BYTES // 2 or ledger.waiting > MOST_WAITING // 2
        return is_half and self.is_divided
