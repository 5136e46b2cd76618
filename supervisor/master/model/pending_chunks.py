"""Keeps what running jobs stream until an exchange takes it to Redis. Runs in the master. No I/O.

A job has at most MOST_CHUNKS under way: a handler that streams more waits. So neither the memory nor the time of the
master grows with what handlers say.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from supervisor import clock
from supervisor.engine.commands.leasing import Streamed
from supervisor.engine.model.chunks import cost_of
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.held_reports import HeldStream
from supervisor.messages import MOST_CHUNK_BYTES, MOST_CHUNKS

#: Each job may stream at this rate. All of it goes into Redis' append-only file.
_BYTES_PER_S: Final = 2**20
#: A job that has streamed nothing for a while may exceed the rate by at most this much time.
_RESERVE_S: Final = 0.5
#: Most of one exchange, unless one job alone has more, or jobs have ended.
_MOST_BYTES: Final = 2**20
#: The pause after a Redis whose memory is full has refused chunks.
_FULL_S: Final = 1.0


class ChunkBatch(NamedTuple):
    """The chunks of one job in an exchange."""

    held: HeldLease
    stream: HeldStream
    entry: Streamed


class PendingChunks:
    def __init__(self) -> None:
        self._waiting: dict[int, tuple[HeldLease, HeldStream]] = {}  # by token

    @property
    def any(self) -> bool:
        """True if there is something for an exchange, now or later."""
        return bool(self._waiting)

    def add(self, held: HeldLease, chunk: bytes) -> None:
        """Have the next exchange append the chunk. Raises ValueError if the job has more under way than it may."""
        stream = held.stream
        if stream is None:
            stream = held.stream = HeldStream()
        is_beyond = stream.chunks and stream.chunk_bytes + len(chunk) > MOST_CHUNK_BYTES
        if is_beyond or stream.sent + len(stream.chunks) - stream.taken >= MOST_CHUNKS:
            raise ValueError("it streams without waiting for its turn")
        stream.chunks.append(chunk)
        stream.chunk_bytes += len(chunk)
        self._waiting[held.lease.token] = held, stream

    def drop(self, token: int) -> None:
        """The lease is lost: nothing of it is appended any more."""
        self._waiting.pop(token, None)

    def take(self, now_at: float) -> list[ChunkBatch]:
        """Take what may be appended by now, of jobs that have ended all, because the end goes with the same exchange.

        What does not fit into the exchange comes first in the next.
        """
        batches: list[ChunkBatch] = []
        room_bytes = _MOST_BYTES
        for token, (held, stream) in list(self._waiting.items()):
            if held.outcome is None and (stream.next_at > now_at or room_bytes <= 0):
                continue
            del self._waiting[token]
            room_bytes -= stream.chunk_bytes
            batches += [ChunkBatch(held, stream, entry) for entry in _take(held, stream, now_at)]
        return batches

    def next_at(self) -> float:
        """When the first waiting chunk may go (monotonic s). Infinity: none waits."""
        return min((stream.next_at for _held, stream in self._waiting.values()), default=math.inf)

    def refused(self, batches: Sequence[ChunkBatch], now_at: float) -> None:
        """The memory of Redis is full. Try again later as long as the jobs run, whose handlers wait meanwhile."""
        for held, stream, entry in batches:
            if held.outcome is None and not held.lost_reason:
                stream.refused.append(entry)
                stream.next_at = now_at + _FULL_S
                self._waiting[held.lease.token] = held, stream


def _take(held: HeldLease, stream: HeldStream, now_at: float) -> list[Streamed]:
    """Return what a job has for Redis. What was refused goes as it was: Redis may know it."""
    entries, chunks = stream.refused, stream.chunks
    stream.refused, stream.chunks, stream.chunk_bytes = [], [], 0
    if chunks:
        entries.append(Streamed(held.lease.jid, held.lease.token, stream.sent, chunks))
        stream.sent += len(chunks)
    since_at = max(stream.next_at, min(now_at, clock.monotonic()) - _RESERVE_S)
    stream.next_at = since_at + sum(map(cost_of, chunks)) / _BYTES_PER_S
    return entries
