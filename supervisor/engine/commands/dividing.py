"""Builds the commands that say how many shards a namespace has, and which things in the first one are guests.

Runs in every process that speaks to Redis. Must not do I/O.
"""

from collections.abc import Sequence

from supervisor.engine.commands.command import Command, checked_batch
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.shards import OtherShards, ShardCount, checked_shards


def divide(shards: int | None = None) -> Command[ShardCount]:
    """Give a new namespace its number of shards, 1 to 64; None: only read it. Answers how many it has.

    Raises LeaseholdError if it has another number, and OtherShards while its jobs are being moved. It goes to the first
    shard, by a caller that knows of none.
    """
    wanted = None if shards is None else checked_shards("shards", shards)

    def parse(reply: bytes) -> ShardCount:
        found = OtherShards(reply.decode())
        if found.count is None:
            raise found
        if wanted not in (None, found.count.number):
            raise LeaseholdError(
                f"the namespace has {_shards(found.count.number)}, and --shards {wanted} asks for another number: say"
                f" the one it has, or none; `leasehold reshard {wanted}` moves its jobs from 1 shard to several"
            )
        return found.count

    return Command(scripts.DIVIDE, ("" if wanted is None else wanted,), parse)


def guests(things: Sequence[tuple[str, str]]) -> Command[list[bool]]:
    """Tell which of up to 1,000 things the first shard has: pairs of a kind (lua/guests.lua) and a name."""
    checked_batch("things", things)
    words = [word for thing in things for word in thing]
    return Command(scripts.GUESTS, tuple(words), lambda reply: [answer == 1 for answer in reply])


def _shards(number: int) -> str:
    return "1 shard" if number == 1 else f"{number} shards"
