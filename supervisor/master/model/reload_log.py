"""Records who asked for a reload and how it ended, and tells those who asked. Runs in the master.

`RollingReload` decides whether the new code takes over.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from supervisor import clock
from supervisor.ops.events import Events

#: The origin of reloads that `--watch` requests.
WATCH: Final = "watch"
#: Why a child with the old code gets no more jobs.
WORN: Final = "the code was reloaded"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload: the number of the zygote that forks now. None: it failed, and `message` says why."""

    zygote: int | None
    message: str = ""
    traceback: str = ""


class Reloads:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: list[tuple[str, Callable[[Reloaded], None] | None]] = []  # requests for the next reload to begin
        self._told: list[Callable[[Reloaded], None]] = []  # callbacks of the reload under way
        self._by = ""
        self.last: dict[str, Any] | None = None  # the result of the last reload, for the status

    def ask(self, by: str, on_done: Callable[[Reloaded], None] | None) -> None:
        """Request a reload for `by`. `on_done` gets the result of a reload that begins after this call."""
        emit = self._events.emit_quietly if by == WATCH else self._events.emit  # one line per reload is enough
        emit("reload.requested", by=by)
        self._waiting.append((by, on_done))

    @property
    def wanted(self) -> bool:
        """True if a request waits for a reload to begin."""
        return bool(self._waiting)

    def begin(self) -> None:
        """A reload begins. Its result answers all waiting requests, and those of a reload that is given up for it."""
        if self._waiting:
            self._by = self._waiting[-1][0]
        self._told += [on_done for _by, on_done in self._waiting if on_done is not None]
        self._waiting.clear()

    def succeed(self, zygote: int, boot_s: float, before: Iterable[str], after: Iterable[str]) -> None:
        """New code forks from now on. `before`, `after`: the names of the handlers."""
        added, removed = sorted(set(after) - set(before)), sorted(set(before) - set(after))
        self._events.emit(
            "reload.completed", zygote=zygote, boot_ms=round(boot_s * 1000), added=added or None,
            removed=removed or None, by=self._by or None,
        )  # fmt: skip
        self._answer("completed", Reloaded(zygote))

    def fail(self, message: str, traceback: str = "") -> None:
        self._events.emit("reload.failed", message=message, traceback=traceback or None)
        self._answer("failed", Reloaded(None, message, traceback))

    def _answer(self, outcome: str, what: Reloaded) -> None:
        self.last = {
            "at_unix": clock.unix(), "by": self._by, "outcome": outcome, "message": what.message,
            "traceback": what.traceback,
        }  # fmt: skip
        told, self._told = self._told, []
        for on_done in told:
            on_done(what)
