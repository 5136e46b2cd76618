"""What somebody asks this supervisor for, and what it answers. Runs in master. Must not speak to Redis.

The answers go with the next exchange; who asked has given up after a while, and then they are nobody's.
"""

from collections.abc import Sequence
from typing import Any, Final

from supervisor.engine.exchange import Reply
from supervisor.engine.looks import Ask
from supervisor.pool.slots import Slots
from supervisor.pool.stacks import Seen, Watcher, describe

#: Of all stacks in one answer: with what JSON makes of them it stays below what the engine takes.
_STACKS_CHARS: Final = 400_000


class Requests:
    def __init__(self, slots: Slots, watcher: Watcher) -> None:
        self._slots = slots
        self._watcher = watcher
        self._replies: list[Reply] = []

    def on_asked(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            match ask.what:
                case "stacks":
                    self._tell_stacks(ask)
                case _:
                    self._reply(ask, {"error": f"this supervisor knows no answer to {ask.what!r}; is it an older one?"})

    @property
    def answered(self) -> bool:
        """Whether there are answers to be sent."""
        return bool(self._replies)

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def _reply(self, ask: Ask, answer: Any) -> None:
        self._replies.append(Reply(ask, answer))

    def _tell_stacks(self, ask: Ask) -> None:
        def tell(seen: list[Seen]) -> None:
            most = _STACKS_CHARS // max(1, len(seen))
            self._reply(ask, {"children": [{**describe(child), "stack": stack[:most]} for child, stack in seen]})

        self._watcher.ask(self._slots, tell)
