"""Waits in Redis for mail, and for a job while the worker has room. Runs in applications.

Each wait has a connection of its own. Mail is waited for as long as the worker lives.
"""

import asyncio
from collections.abc import Callable, Sequence

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.mail_reader import MailReader
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.patience import AWAY, Pauses

_MAIL_S = 30.0


class Waits:
    def __init__(
        self,
        calls: AsyncCalls,
        identity: Identity,
        mail: MailReader,
        demand: LeaseDemand,
        on_news: Callable[[], None],
    ) -> None:
        """`on_news` is called after each message: an exchange may be due."""
        self._calls = calls
        self._identity = identity
        self._mail = mail
        self._demand = demand
        self._on_news = on_news
        self._is_over = False
        self._idle: asyncio.Task[None] | None = None

    async def read_mail(self) -> None:
        """Read each message, for ever."""
        pauses = Pauses()
        while True:
            try:
                message = await self._calls.pop([self._calls.namespace.mail(self._identity.name)], _MAIL_S)
            except AWAY:
                await pauses.wait()
                continue
            pauses = Pauses()
            if message is not None:
                self._mail.read(message)
                self._on_news()

    def wait_for_job(self, queues: Sequence[str], longest_s: float) -> None:
        """Begin to wait until a queue calls for a worker, at most `longest_s`. One wait at a time."""
        if not self._is_over and self._idle is None:
            self._idle = asyncio.create_task(self._wait_for_job(queues, longest_s), name="leasehold idle")

    async def _wait_for_job(self, queues: Sequence[str], longest_s: float) -> None:
        woken = False
        try:
            woken = (
                await self._calls.pop([self._calls.namespace.wakeup(queue) for queue in queues], longest_s) is not None
            )
        except AWAY:
            await asyncio.sleep(longest_s)
        finally:
            self._idle = None
        self._demand.lease_soon(woken)

    async def end(self) -> None:
        """End the wait for a job, and begin no other. A wake-up that it has taken must be passed on."""
        self._is_over, idle = True, self._idle
        if idle is not None:
            idle.cancel()
            await asyncio.wait([idle])
