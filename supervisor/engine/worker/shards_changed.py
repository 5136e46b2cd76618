"""The refusal of a shard whose namespace has another number of shards. Runs in each worker. Does no I/O."""

from typing import Any

import hiredis

from supervisor.engine.model.errors import code_and_reason
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.transport.link import LinkLost


class ShardsChanged(LinkLost):
    """The namespace has another number of shards than the worker knows. Redis has not carried out the command."""

    def __init__(self, why: str) -> None:
        error = OtherShards(why)
        super().__init__(str(error))
        self.count = error.count

    @staticmethod
    def check(reply: Any) -> None:
        """Raise it if a script has refused its call for that."""
        code, why = code_and_reason(str(reply)) if isinstance(reply, hiredis.ReplyError) else ("", "")
        if code == "SHARDED":
            raise ShardsChanged(why)
