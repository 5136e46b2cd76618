"""Takes to Redis what handlers stream. Runs in the master. Does no I/O.

Its parts go before the outcomes: what a job has streamed is there before its end.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.engine.commands import leasing
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.model.pending_chunks import ChunkBatch, PendingChunks
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.speaker import TimedSpeaker

#: Jobs of one call. More could stop Redis for longer than 50 ms: a first chunk makes a dense record a full one.
_MOST: Final = 250


class Streaming(TimedSpeaker):
    def __init__(self, identity: Identity, chunks: PendingChunks, answers: LeaseAnswers, renewing: Renewing) -> None:
        self._identity = identity
        self._chunks = chunks
        self._answers = answers
        self._renewing = renewing

    def deadline_at(self) -> float:
        return self._chunks.next_at()

    def parts(self, now_at: float) -> Sequence[Part]:
        if not self._chunks.any:
            return ()
        batches = self._chunks.take(now_at)
        return [self._part(batches[first : first + _MOST]) for first in range(0, len(batches), _MOST)]

    def _part(self, batches: Sequence[ChunkBatch]) -> Part:
        command = leasing.stream(self._identity.name, [batch.entry for batch in batches])
        then, refused = partial(self._on_appended, batches), partial(self._on_refused, batches)
        return Part(command, then, {"OOM": refused}, must=True, again=True)

    def _on_appended(self, batches: Sequence[ChunkBatch], are_held: Sequence[bool]) -> None:
        """Let handlers go on. A lost lease is renewed at once, which tells why it is lost, and stops its job."""
        for (held, stream, entry), is_held in zip(batches, are_held, strict=True):
            if is_held:
                stream.taken += len(entry.chunks)
                self._answers.taken(held, stream.taken)
            else:
                self._renewing.on_hint_of_loss(entry.token)

    def _on_refused(self, batches: Sequence[ChunkBatch], _message: str) -> None:
        self._chunks.refused(batches, clock.monotonic())
