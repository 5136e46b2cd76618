"""What people can have a running supervisor do, by a signal or by a command. Runs in master.

Owns what an order brings about in which state, and the words for it. Must not decide how a drain goes on.
"""

from typing import Any, Protocol

from supervisor.ops.events import Events
from supervisor.pool import kernel
from supervisor.pool.signals import MEANINGS, By, Meaning
from supervisor.pool.slots import Slots
from supervisor.pool.stacks import Seen, Watcher, describe


class WayDown(Protocol):
    """The master's. Each answers in words what has come of it."""

    @property
    def draining(self) -> bool: ...

    def drain(self, by: By) -> str: ...

    def drain_again(self, by: By) -> str: ...

    def hurry(self, by: By) -> str: ...


class Controls:
    def __init__(self, way_down: WayDown, slots: Slots, watcher: Watcher, events: Events) -> None:
        self._way_down = way_down
        self._slots = slots
        self._watcher = watcher
        self._events = events

    def on_signal(self, received: kernel.Received) -> None:
        """Do what it means, and say what has come of it."""
        by = By.of(received)
        effect = self._obey(MEANINGS[received.signo], by)
        self._events.emit("signal.received", **by.fields, effect=effect)

    def _obey(self, meaning: Meaning, by: By) -> str:
        match meaning:
            case Meaning.HURRY:
                return self._way_down.hurry(by)
            case Meaning.STACKS:
                self._watcher.ask(self._slots, self._say_stacks)
                return "the stacks of all children go to the log"
            case Meaning.DRAIN:
                return self._way_down.drain_again(by) if self._way_down.draining else self._way_down.drain(by)
            case _:
                return "none in this version"

    def _say_stacks(self, seen: list[Seen]) -> None:
        for child, stack in seen:
            self._events.emit("child.seen", **describe(child), stack=stack or "it has not answered")

    # commands

    def drain(self, by: str) -> dict[str, Any]:
        """Idempotent: a command may arrive twice."""
        if self._way_down.draining:
            return {"did": "nothing: it drains already"}
        return {"did": self._way_down.drain(By(by))}
