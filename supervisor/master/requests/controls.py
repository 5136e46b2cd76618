"""What people can have a running supervisor do, by a signal or by a command. Runs in master.

Owns what an order brings about in which state, and the words for it. Must not decide how a drain goes on, nor how many
processes there may be.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from supervisor.linux import kernel
from supervisor.master.model.reload_log import Reloaded
from supervisor.master.model.signals import MEANINGS, By, Meaning
from supervisor.master.model.slots import Slots
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.requests.stack_dump import Seen, StackDump, describe
from supervisor.ops.events import Events

Answer = Mapping[str, Any]


class Steered(Protocol):
    """The master. What it does it answers in words, which go on a sentence that begins with the supervisor."""

    @property
    def draining(self) -> bool: ...

    def drain(self, by: By) -> str: ...

    def drain_again(self, by: By) -> str: ...

    def hurry(self, by: By) -> str: ...

    def pause(self) -> bool:
        """Whether that changes anything."""

    def resume(self) -> bool:
        """The same."""

    def status(self) -> Answer: ...


class Controls:
    def __init__(
        self,
        master: Steered,
        zygotes: ZygoteManager,
        scaling: Scaling,
        slots: Slots,
        stack_dump: StackDump,
        events: Events,
    ) -> None:
        self._master = master
        self._zygotes = zygotes
        self._scaling = scaling
        self._slots = slots
        self._stack_dump = stack_dump
        self._events = events

    def on_signal(self, received: kernel.Received) -> None:
        """Do what it means, and say what has come of it. The kernel's word of a child's end is only acted on."""
        if MEANINGS[received.signo] is Meaning.REAP:
            self._zygotes.reap()
            return
        by = By.of(received)
        try:
            effect = self._obey(MEANINGS[received.signo], by)
        except ValueError as error:
            effect = f"nothing: {error}"
        self._events.emit("signal.received", **by.fields, effect=effect)

    def _obey(self, meaning: Meaning, by: By) -> str:
        """What comes of it, in words. Raises ValueError where nothing can."""
        match meaning:
            case Meaning.DRAIN:
                return self._master.drain_again(by) if self._master.draining else self._master.drain(by)
            case Meaning.HURRY:
                return self._master.hurry(by)
            case Meaning.RELOAD:
                self._reload(by, None)
                return "loads the handlers anew; until the new ones have proved themselves nothing changes"
            case Meaning.MORE | Meaning.FEWER:
                self._check_serving()
                scaled = self._scaling.more(by) if meaning is Meaning.MORE else self._scaling.fewer(by)
                now, before = scaled["now"], scaled["before"]
                return f"goes from {before} to {now} processes" if now != before else f"nothing: it stays at {now}"
            case Meaning.STACKS:
                self._stack_dump.ask(self._slots, self._say_stacks)
                return "writes the stacks of its children into the log"
            case Meaning.PAUSE:
                return self._pause(by)
            case Meaning.RESUME:
                return self._resume(by)
            case _:
                raise AssertionError(f"{meaning} is nobody's wish")

    def _check_serving(self) -> None:
        if self._master.draining:
            raise ValueError("it drains")

    def _reload(self, by: By, on_done: Callable[[Reloaded], None] | None) -> None:
        self._check_serving()
        self._scaling.again(by)
        self._zygotes.reload(str(by), on_done)

    def _pause(self, by: By) -> str:
        self._check_serving()
        if not self._master.pause():
            return "nothing: it is paused already"
        self._events.emit("master.paused", **by.fields, running=self._slots.busy)
        return f"is paused: it starts no job; running, and going on: {self._slots.busy}"

    def _resume(self, by: By) -> str:
        self._check_serving()
        if not self._master.resume():
            return "nothing: it is not paused"
        self._events.emit("master.resumed", **by.fields)
        return "starts jobs again"

    def _say_stacks(self, seen: list[Seen]) -> None:
        for child, stack in seen:
            self._events.emit("child.seen", **describe(child), stack=stack or "it has not answered")

    # commands: what cannot be done raises ValueError, with a sentence

    def drain(self, by: str) -> Answer:
        """Idempotent: a repeated command is no hurry."""
        return {"did": "nothing: it drains already" if self._master.draining else self._master.drain(By(by))}

    def reload(self, by: str, on_done: Callable[[Answer], None]) -> None:
        """`on_done` is called once, with what has come of it."""
        self._reload(By(by), lambda done: on_done(self._told(done)))

    def _told(self, done: Reloaded) -> Answer:
        """A traceback, maybe an empty one, says that the new code is at fault; a drain has ended it for no fault."""
        if not done.message:
            return {"did": f"runs the new code, in zygote {done.zygote}", "zygote": done.zygote}
        if self._master.draining:
            return {"error": done.message}
        return {"error": done.message, "traceback": done.traceback}

    def scale(self, fewest: int | None, most: int, by: str) -> Answer:
        """None: as many as the machine has room for."""
        self._check_serving()
        return self._scaling.automatic(By(by)) if fewest is None else self._scaling.set(fewest, most, By(by))

    def pause(self, by: str) -> Answer:
        """Idempotent."""
        return {"did": self._pause(By(by))}

    def resume(self, by: str) -> Answer:
        """Idempotent."""
        return {"did": self._resume(By(by))}

    def status(self) -> Answer:
        return self._master.status()
