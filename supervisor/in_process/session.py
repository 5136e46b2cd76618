"""A worker's session with Redis: sends exchanges, and resumes after an outage. Runs in applications.

After an outage the outcomes whose fate is unknown are sent again under their number, which changes nothing twice.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.connection import refused_as
from supervisor.engine.commands import workers
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown
from supervisor.engine.worker.exchange import Part, Wanted
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.leaser import Leaser
from supervisor.in_process.patience import AWAY, Pauses
from supervisor.in_process.resumption import Resumption

log = logging.getLogger("leasehold")


class WorkerSession:
    def __init__(self, calls: AsyncCalls, identity: Identity, leaser: Leaser, resumption: Resumption) -> None:
        self._calls = calls
        self._identity = identity
        self._leaser = leaser
        self._resumption = resumption
        self._unanswered: list[Part] = []  # whose fate is unknown
        self._pauses = Pauses()
        self._trouble = ""  # the last reason why an exchange was not answered

    # an exchange

    async def exchange(self, parts: Sequence[Part]) -> None:
        """Run an exchange of these parts. If Redis does not answer it as a whole, resume, however long it takes."""
        if parts and not await self._run(parts):
            await self._recover()
        else:
            self._pauses = Pauses()

    async def _run(self, parts: Sequence[Part]) -> bool:
        self._identity.number += 1
        calls = (self._calls.run(part.command) for part in parts)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        taken = [self._take(part, reply) for part, reply in zip(parts, replies, strict=True)]
        return all(taken)

    def _take(self, part: Part, reply: Any) -> bool:
        """Return whether Redis has answered a part."""
        if not isinstance(reply, BaseException):
            if part.then is not None:
                part.then(reply)
            return True
        if not isinstance(reply, LeaseholdError):
            raise reply
        code = refused_as(reply)
        if code in part.refused:
            part.refused[code](str(reply))
            return True
        if part.again and isinstance(reply, OutcomeUnknown):
            self._unanswered.append(part)
        elif part.lost is not None:
            part.lost()
        self._trouble = str(reply)
        return False

    # outages

    async def _recover(self) -> None:
        log.warning("jobs go on, and their ends wait: %s", self._trouble)
        while True:
            await self._pauses.wait()
            try:
                await self.resume()
            except AWAY:
                continue
            log.info("the worker is connected to Redis again")
            return

    async def resume(self) -> None:
        """Begin the session, or resume it. Raises StoreUnavailable or OutcomeUnknown."""
        for part in tuple(self._unanswered):
            await self._answer_again(part)
            self._unanswered.remove(part)
        await self._resumption.resume()

    async def _answer_again(self, part: Part) -> None:
        """Send what may have been carried out under its old number, by which the answer is the same."""
        try:
            reply = await self._calls.run(part.command)
        except AWAY as error:
            refused = part.refused.get(refused_as(error))
            if refused is None:
                raise
            refused(str(error))
        else:
            assert part.then is not None
            part.then(reply)

    # the end

    async def leave(self) -> None:
        """Have Redis forget the worker. Raises StoreUnavailable or OutcomeUnknown."""
        if self._leaser.queues:  # a wake-up may have been taken that nobody has followed
            await self._calls.run(self._leaser.command(Wanted(0, 0, woken=True)))
        await self._calls.run(workers.deregister(self._identity.name, own=True))
