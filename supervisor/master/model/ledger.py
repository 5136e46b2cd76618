"""Every lease of one shard in the master's hands, from its grant until Redis has accepted its end. Runs in the master.

No I/O. A lease is ready (no child has it), sent (in a child's `sent`), ended (its outcome waits for an exchange), put
off (a Redis whose memory is full has refused its outcome) or settling (the exchange with its outcome is under way).
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LARGE_DATA_BYTES, Completed, Outcome
from supervisor.engine.model.validation import UNSET
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.pending_chunks import PendingChunks
from supervisor.master.model.pending_reports import PendingReports

#: Most data in one exchange, unless one outcome alone has more. Redis drops a connection that sends 1 GB at once.
MOST_BYTES: Final = 64 * 2**20
#: The pause after a Redis whose memory is full has refused outcomes. Each refusal doubles it.
_FULL_S: Final = 1.0
_LONGEST_FULL_S: Final = 5.0
#: With more waiting outcomes, or more data than MOST_BYTES, no further job starts. `Ledgers` has the rule for shards.
MOST_WAITING: Final = 1000


class Ledger:
    def __init__(self) -> None:
        self._held: dict[int, HeldLease] = {}  # by token: all except settling ones
        self.reports = PendingReports(self._held)
        self.chunks = PendingChunks()
        self._ended: deque[HeldLease] = deque()
        self._settling: list[HeldLease] = []
        self.unsettled_bytes = 0  # data of all outcomes that are not settled
        self._put_off: deque[HeldLease] = deque()  # after a refusal: smallest first
        self._put_off_until_at = -math.inf
        self._put_off_s = 0.0  # the current pause; 0: none was refused lately

    def __len__(self) -> int:
        """The number of leases without an accepted end."""
        return len(self._held) + len(self._settling)

    def add(self, held: HeldLease) -> None:
        self._held[held.lease.token] = held

    def find(self, token: int) -> HeldLease | None:
        return self._held.get(token)

    @property
    def held(self) -> list[HeldLease]:
        """All leases except settling ones."""
        return list(self._held.values())

    @property
    def leases(self) -> list[LeaseRecord]:
        """All leases that must be renewed, and claimed after an outage. Redis hands all others back as never started.

        Settling leases are among them, because their outcomes may be refused.
        """
        return [held.lease for held in (*self._held.values(), *self._settling)]

    def end(self, held: HeldLease, outcome: Outcome, read: Callable[[], Outcome] | None = None) -> None:
        """Let the outcome go with the next exchange. `read` makes a large one again instead of keeping it."""
        held.outcome, held.read_outcome = outcome, read
        held.needs_memory = _needs_memory(outcome, held.weight_bytes)
        self.unsettled_bytes += held.weight_bytes
        if read is not None:
            _lighten(held)
        (self._put_off if self._is_too_large_now(held) else self._ended).append(held)

    def _is_too_large_now(self, held: HeldLease) -> bool:
        """True if an outcome of this size was put off. Smaller ones go on: Redis may have memory for them."""
        least_bytes = self._put_off[0].weight_bytes if self._put_off else math.inf
        return held.needs_memory and max(held.weight_bytes, LARGE_DATA_BYTES) >= least_bytes

    def lose(self, held: HeldLease, why: str) -> None:
        """The lease is void. Redis would refuse everything about it."""
        held.lost_reason = why
        self._drop(held)
        self.reports.drop_checkpoint(held.lease.token)
        self.chunks.drop(held.lease.token)

    @property
    def has_ended(self) -> bool:
        """True if outcomes are for the next exchange. Those put off do not count.

        None are while others are settling, which lack replicas: only the last settle is safe to send again.
        """
        return bool(self._ended) and not self._settling

    @property
    def waiting(self) -> int:
        """The number of outcomes that wait for an exchange."""
        return len(self._ended) + len(self._put_off)

    @property
    def settle_at(self) -> float:
        """When an outcome that was put off is tried again (monotonic s). Infinity: there is none, or not yet."""
        return self._put_off_until_at if self._put_off and not self._settling else math.inf

    @property
    def slots_freed(self) -> int:
        """The number of places in limits that the next exchange gives back."""
        return sum(held.lease.limited for held in self._ended) if self.has_ended else 0

    def settle_next(self, most: int, now_at: float = 0.0) -> list[Outcome]:
        """Return the outcomes of the next exchange: of at most `most` jobs and MOST_BYTES of data, or one outcome.

        They are settling until `settled` or `refused_for_memory`, also across an outage. An outcome that was put off is
        tried alone, the smallest first, so that a large one holds up no other.
        """
        assert not self._settling
        if self._put_off and self._put_off_until_at <= now_at:
            self._settling.append(self._put_off.popleft())
        else:
            self._take_ended(most)
        for held in self._settling:
            self._drop(held)
            if held.read_outcome is not None:
                held.outcome = held.read_outcome()
        return [held.outcome for held in self._settling if held.outcome is not None]

    def _take_ended(self, most: int) -> None:
        weight = weight_bytes = 0
        while self._ended:
            held = self._ended[0]
            weight += held.weight
            weight_bytes += held.weight_bytes
            if self._settling and (weight > most or weight_bytes > MOST_BYTES):
                break
            self._settling.append(self._ended.popleft())

    def refused_for_memory(self, now_at: float) -> int:
        """Redis has refused the exchange, because its memory is full. Put off the outcomes that need memory.

        Their leases go on. The others go with the next exchange. Return the number of outcomes put off.
        """
        self._put_off_s = min(self._put_off_s * 2 or _FULL_S, _LONGEST_FULL_S)
        self._put_off_until_at = now_at + self._put_off_s
        refused, self._settling = self._settling, []
        for held in refused:
            _lighten(held)
            if not held.lost_reason:
                self.add(held)
        put_off = [*(held for held in refused if held.needs_memory), *self._put_off]
        self._put_off = deque(sorted(put_off, key=lambda held: held.weight_bytes))
        waiting = [*(held for held in refused if not held.needs_memory), *self._ended]
        self._put_off.extend(held for held in waiting if self._is_too_large_now(held))
        self._ended = deque(held for held in waiting if not self._is_too_large_now(held))
        return len(self._put_off)

    def end_put_off(self, outcome_of: Callable[[LeaseRecord], Outcome]) -> None:
        """Replace the outcomes that were put off by others, for which Redis needs no memory."""
        put_off, self._put_off = self._put_off, deque()
        for held in put_off:
            self.unsettled_bytes -= held.weight_bytes
            held.weight, held.weight_bytes = 1, 0
            self.end(held, outcome_of(held.lease))

    def _drop(self, held: HeldLease) -> None:
        # A server that lost its last writes draws the same tokens again, so another lease may have this one.
        if self._held.get(held.lease.token) is held:
            del self._held[held.lease.token]

    def end_again(self, held: HeldLease, outcome: Outcome) -> None:
        """Redis has refused the outcome. The lease goes on and ends by another outcome."""
        held.weight, held.weight_bytes = 1, 0
        self.add(held)
        self.end(held, outcome)

    def settle_again(self, held: HeldLease) -> None:
        """Send its outcome once more, first of the next exchange: it was too much work beside others of this one."""
        self.add(held)
        self.unsettled_bytes += held.weight_bytes
        self._ended.appendleft(held)

    def settled(self) -> list[HeldLease]:
        """The exchange was answered. Return the leases whose outcomes it had, in their order."""
        settled, self._settling = self._settling, []
        if self._put_off_s and any(held.needs_memory for held in settled):
            self._try_again(max(held.weight_bytes for held in settled))
        for held in settled:
            self.unsettled_bytes -= held.weight_bytes
            held.read_outcome = None
        return settled

    def _try_again(self, size_bytes: int) -> None:
        """Redis has memory for outcomes of up to this size, and for all small ones: let them go."""
        while self._put_off and self._put_off[0].weight_bytes <= max(size_bytes, LARGE_DATA_BYTES):
            self._ended.append(self._put_off.popleft())
        if not self._put_off:
            self._put_off_s = 0.0


def _needs_memory(outcome: Outcome, data_bytes: int) -> bool:
    return type(outcome) is Completed and (bool(outcome.then) or data_bytes > LARGE_DATA_BYTES)


def _lighten(held: HeldLease) -> None:
    """Drop the parts of the outcome that `read_outcome` can make again."""
    if held.read_outcome is not None and isinstance(held.outcome, Completed):
        held.outcome = replace(held.outcome, data=UNSET, then=())
