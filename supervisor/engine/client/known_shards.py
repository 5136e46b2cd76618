"""Holds how many shards a client knows, and their stores. Runs in applications and commands. Does no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from supervisor.engine.model.shards import ShardCount

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class KnownShards(Generic[S]):
    """The shards as a call finds them. Another call may learn of others meanwhile, also in another thread."""

    count: ShardCount
    stores: Sequence[S]  # one for each
    is_sure: bool  # a shard has said how many there are

    @property
    def number(self) -> int:
        return self.count.number
