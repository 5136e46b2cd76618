"""Carries requests of operators from Redis and their answers back. Runs in the master. Does no I/O."""

from collections.abc import Sequence
from functools import partial

from supervisor.engine.commands import mailbox
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.speaker import Speaker
from supervisor.master.requests.operator_requests import OperatorRequests, Reply


class RequestRelay(Speaker):
    """A request whose answer is lost with a connection still stands in Redis, and is told again."""

    def __init__(
        self, identity: Identity, serving: ServedQueues, requests: OperatorRequests, idle_exit: IdleExit
    ) -> None:
        self._identity = identity
        self._serving = serving
        self._requests = requests
        self._idle_exit = idle_exit

    def on_requests(self, standing: Sequence[OperatorRequest]) -> None:
        if new := self._serving.take_requests(standing):
            self._idle_exit.restart()
            self._requests.on_asked(new)

    def parts(self, now_at: float) -> Sequence[Part]:
        replies = self._requests.take_replies()
        return [self._part(reply) for reply in replies] if replies else ()

    def _part(self, reply: Reply) -> Part:
        forget = partial(self._serving.forget_request, reply.request)
        return Part(self._answer(reply), lambda _taken: forget(), {"": lambda _error: forget()}, lost=forget)

    def _answer(self, reply: Reply) -> Command[bool]:
        try:
            return mailbox.answer(self._identity.name, reply.request.id, reply.answer)
        except (TypeError, ValueError) as error:  # too long, or no JSON: the asker is told so in place of the answer
            return mailbox.answer(self._identity.name, reply.request.id, {"error": str(error)})
