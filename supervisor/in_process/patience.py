"""Tries again what a lost connection has prevented. Runs in applications."""

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.commands.command import Command
from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable

#: The first pause between two tries, and the longest. Each is twice as long as the one before, less a random part.
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
#: What a call raises whose connection was lost, or whose server cannot serve now.
AWAY: Final = (StoreUnavailable, OutcomeUnknown)

T = TypeVar("T")


class Pauses:
    """The pauses between the tries of one call."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    async def wait(self) -> None:
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        await asyncio.sleep(random.uniform(0.5, 1.0) * pause_s)


async def patiently(calls: AsyncCalls, command: Command[T], check: Callable[[], None]) -> T:
    """Run a command that may be sent twice, until Redis has answered it. `check` raises if nobody needs it any more."""
    pauses = Pauses()
    while True:
        check()
        try:
            return await calls.run(command)
        except AWAY:
            await pauses.wait()
