"""The refusal of a shard whose namespace has another number of shards. Runs in each worker. Does no I/O."""

from typing import Any

import hiredis

from supervisor.engine.model.errors import code_and_reason
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.transport.link import LinkLost


class ShardsChanged(LinkLost):
    """The namespace has `number` shards, and the worker knows another number. Redis has not carried out the command."""

    def __init__(self, error: OtherShards, number: int) -> None:
        super().__init__(str(error))
        self.number = number

    @staticmethod
    def refusal(reply: Any) -> OtherShards | None:
        """Return what a script has said that has refused its call for that, or because jobs are being moved."""
        if not isinstance(reply, hiredis.ReplyError) or not ShardsChanged.is_refusal(str(reply)):
            return None
        return OtherShards(code_and_reason(str(reply))[1])

    @staticmethod
    def is_refusal(error: str) -> bool:
        """Return whether this is the error of such a script."""
        return error.startswith("SHARDED ")

    @staticmethod
    def check(reply: Any) -> None:
        """Raise it if a script has refused its call for that. While jobs are being moved, the connection goes on."""
        refusal = ShardsChanged.refusal(reply)
        if refusal is not None and refusal.count is not None:
            raise ShardsChanged(refusal, refusal.count.number)


class DivisionRefused(LinkLost):
    """The namespace has another number of shards than the worker was told to give it."""
