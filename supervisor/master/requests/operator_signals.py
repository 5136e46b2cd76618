"""Reads the master's signals, and calls what each one means. Runs in the master."""

from supervisor.linux import kernel
from supervisor.master.inbox import Inbox
from supervisor.master.model.signals import MEANINGS, By, Meaning
from supervisor.master.model.slots import Slots
from supervisor.master.processes.process_manager import ProcessManager
from supervisor.master.requests.controls import Controls
from supervisor.master.requests.stack_dump import Seen, StackDump, describe
from supervisor.ops.events import Events


class OperatorSignals:
    def __init__(
        self,
        inbox: Inbox,
        controls: Controls,
        processes: ProcessManager,
        stack_dump: StackDump,
        slots: Slots,
        events: Events,
    ) -> None:
        self._inbox = inbox
        self._controls = controls
        self._processes = processes
        self._stack_dump = stack_dump
        self._slots = slots
        self._events = events
        self._signals = kernel.SignalFd(kernel.HANDLED_SIGNALS)

    def open(self) -> None:
        """Begin to read. The signals must be blocked."""
        self._inbox.watch(self._signals, self._on_signals)

    def _on_signals(self) -> None:
        for received in self._signals.read():
            meaning = MEANINGS[received.signo]
            if meaning is Meaning.REAP:
                self._processes.reap()
            else:
                self._obey(meaning, By.of(received))

    def _obey(self, meaning: Meaning, by: By) -> None:
        try:
            effect = self._do(meaning, by)
        except ValueError as error:
            effect = f"nothing: {error}"
        self._events.emit("signal.received", **by.fields, effect=effect)

    def _do(self, meaning: Meaning, by: By) -> str:
        """Return the effect, as the end of a sentence. Raises ValueError if there is none."""
        controls = self._controls
        match meaning:
            case Meaning.DRAIN:
                return controls.drain_or_hurry(by, self._inbox.oldest_at)
            case Meaning.HURRY:
                return controls.hurry(by)
            case Meaning.RELOAD:
                return controls.reload(by)
            case Meaning.MORE:
                return controls.more(by)
            case Meaning.FEWER:
                return controls.fewer(by)
            case Meaning.PAUSE:
                return controls.pause(by)
            case Meaning.RESUME:
                return controls.resume(by)
            case Meaning.STACKS:
                self._stack_dump.ask(self._slots, self._say_stacks)
                return "writes the stacks of its children into the log"
            case _:
                raise AssertionError(f"no operator sends {meaning}")

    def _say_stacks(self, seen: list[Seen]) -> None:
        for child, stack in seen:
            self._events.emit("child.seen", **describe(child), stack=stack or "it has not answered")
