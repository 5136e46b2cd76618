"""Waits in Redis for mail, and for a job while the worker has room. Runs in applications.

Each wait has a connection of its own. Mail is waited for as long as the worker lives.
"""

import asyncio
from collections.abc import Callable, Sequence

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.in_process.patience import AWAY, Pauses

_MAIL_S = 30.0


class Waits:
    def __init__(
        self,
        calls: AsyncCalls,
        worker: Callable[[], str],
        on_mail: Callable[[bytes], None],
        on_wakeup: Callable[[bool], None],
    ) -> None:
        """`worker()`: its name at that time. `on_wakeup(woken)` is called at the end of each wait for a job."""
        self._calls = calls
        self._worker = worker
        self._on_mail = on_mail
        self._on_wakeup = on_wakeup
        self._is_over = False
        self._idle: asyncio.Task[None] | None = None

    async def read_mail(self) -> None:
        """Pass on each message, for ever."""
        pauses = Pauses()
        while True:
            try:
                mail = await self._calls.pop([self._calls.namespace.mail(self._worker())], _MAIL_S)
            except AWAY:
                await pauses.wait()
                continue
            pauses = Pauses()
            if mail is not None:
                self._on_mail(mail)

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
        self._on_wakeup(woken)

    async def end(self) -> None:
        """End the wait for a job, and begin no other. A wake-up that it has taken must be passed on."""
        self._is_over, idle = True, self._idle
        if idle is not None:
            idle.cancel()
            await asyncio.wait([idle])
