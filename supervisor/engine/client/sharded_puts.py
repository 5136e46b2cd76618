"""Divides jobs that are put together over the shards of a namespace. Runs in applications and commands.

Must not: send anything.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from supervisor.engine.client.connection import has_failed
from supervisor.engine.client.put_batches import BatchAnswer
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.new_jobs import NewJob
from supervisor.engine.model.shards import OtherShards, shard_of
from supervisor.engine.model.validation import DATA_BYTES

V = TypeVar("V")


class Sent(NamedTuple):
    """Jobs as they were sent, in batches, with the answer to each batch. None: it was not sent.

    `order`: the place of each of these jobs among those that were given.
    """

    batches: Sequence[Sequence[NewJob]]
    answers: Sequence[BatchAnswer | None]
    order: Sequence[int] = ()

    def in_order(self, values: Sequence[V]) -> list[V]:
        """Return values for the jobs that were sent in the order in which these were given."""
        if not self.order:
            return list(values)
        by_place = dict(zip(self.order, values, strict=True))
        return [by_place[place] for place in range(len(values))]

    @property
    def jobs(self) -> list[NewJob]:
        """The jobs in the order in which they were given."""
        return self.in_order([job for batch in self.batches for job in batch])


class _Placed(NamedTuple):
    place: int  # among the jobs that were given
    job: NewJob


class ShardedPuts:
    """The answers for some jobs so far, and the jobs that are left to be placed."""

    def __init__(self, batches: Sequence[Sequence[NewJob]]) -> None:
        jobs = (job for batch in batches for job in batch)
        self._given = batches
        self._left = [_Placed(place, job) for place, job in enumerate(jobs)]
        self._batches: list[list[_Placed]] = []
        self._answers: list[BatchAnswer | None] = []
        self.refusal: OtherShards | None = None  # of the last round: what is left has other shards by now

    @property
    def left(self) -> list[NewJob]:
        return [job for _, job in self._left]

    @property
    def has_failed(self) -> bool:
        return has_failed(self._answers)

    def divide(self, guests: frozenset[str], shards: int) -> "Sequence[_PutsOfShard]":
        """Return the jobs left for each shard, in their order. Those of `guests` go to the first. Raises ValueError."""
        tied = [_Placed(place, job.tied()) for place, job in self._left]
        parts: dict[int, _PutsOfShard] = {}
        for (_, given), placed in zip(self._left, tied, strict=True):
            shard = 0 if given.jid in guests else shard_of(placed.job.jid, shards)
            parts.setdefault(shard, _PutsOfShard(self, shard)).add(placed)
        self._left, self.refusal = [], None
        return list(parts.values())

    @property
    def has_answers(self) -> bool:
        """True if a shard has answered for some of the jobs, with more than a refusal of their number."""
        return any(answer is not None for answer in self._answers)

    def fail(self, error: LeaseholdError | ValueError) -> None:
        """Give what is left up. Nothing of it is put."""
        self._batches.append(self._left)
        self._answers.append(error if isinstance(error, LeaseholdError) else LeaseholdError(str(error)))
        self._left = []

    def sent(self) -> Sent:
        batches = [*self._batches, *([self._left] if self._left else [])]
        order = [place for batch in batches for place, _ in batch]
        return Sent([[job for _, job in batch] for batch in batches], self._answers, order)

    def take_all(self, answers: Sequence[BatchAnswer]) -> None:
        """Take the answers to the batches that were given, all of which went to one shard."""
        left, self._left = iter(self._left), []
        self.take([[next(left) for _ in batch] for batch in self._given], answers)

    def take(self, batches: Sequence[Sequence[_Placed]], answers: Sequence[BatchAnswer]) -> None:
        """Take the answers of one shard. What it has refused for their number is left, and what was not sent then."""
        is_refused = False
        for batch, answer in zip_longest(batches, answers):
            if isinstance(answer, OtherShards):
                self.refusal, is_refused = answer, True
            if isinstance(answer, OtherShards) or (is_refused and answer is None):
                self._left += batch
            else:
                self._batches.append(list(batch))
                self._answers.append(answer)


class _PutsOfShard:
    """The jobs for one shard, in batches of at most 1,000 jobs and 256 MB of data."""

    def __init__(self, puts: ShardedPuts, shard: int) -> None:
        self._puts = puts
        self.shard = shard
        self._batches: list[list[_Placed]] = []
        self._room = self._room_bytes = 0

    def add(self, placed: _Placed) -> None:
        weight, size_bytes = placed.job.weight, placed.job.size_bytes
        if self._room < weight or self._room_bytes < size_bytes:
            self._batches.append([])
            self._room, self._room_bytes = MOST, DATA_BYTES
        self._batches[-1].append(placed)
        self._room -= weight
        self._room_bytes -= size_bytes

    @property
    def batches(self) -> list[list[NewJob]]:
        return [[job for _, job in batch] for batch in self._batches]

    def take(self, answers: Sequence[BatchAnswer]) -> None:
        self._puts.take(self._batches, answers)
