"""The leases of all shards in the master's hands: one ledger for each shard, and the jobs that wait for a child.

Runs in the master. No I/O. A lease belongs to the shard that has granted it, as its token says.
"""

from collections import deque
from typing import Final

from supervisor.engine.model.shards import shard_of_token
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING, Ledger

#: With more data of the outcomes of all shards, no further job starts.
_MOST_BYTES_TOGETHER: Final = 4 * MOST_BYTES


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
        """True if so much waits to be settled that no further job may start: at each shard, or of all together."""
        if not self.is_divided:
            return _has_more(self.by_shard[0], MOST_WAITING, MOST_BYTES)
        if sum(ledger.unsettled_bytes for ledger in self.by_shard) > _MOST_BYTES_TOGETHER:
            return True
        return all(map(self.hold_back, self.by_shard))

    def hold_back(self, ledger: Ledger) -> bool:
        """Return whether no job is leased from this shard, because half of what may wait of a plain namespace does.

        Shards whose Redis is full or away thus leave room to the others.
        """
        return self.is_divided and _has_more(ledger, MOST_WAITING // 2, MOST_BYTES // 2)


def _has_more(ledger: Ledger, most: int, most_bytes: int) -> bool:
    return ledger.waiting > most or ledger.unsettled_bytes > most_bytes
