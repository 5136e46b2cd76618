"""Reloads: who has asked for one, what has come of it, and who is told. Runs in master.

Owns the words and the account. Which zygote forks is decided by `ZygoteManager`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from supervisor import clock
from supervisor.ops.events import Events

#: Who asks where `--watch` does.
WATCH: Final = "watch"
#: Why a child of the code before gets no more jobs.
WORN: Final = "the code was reloaded"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What has come of a reload: the number of the zygote that forks now; or None, why not, and where it was seen."""

    zygote: int | None
    message: str = ""
    traceback: str = ""


class Reloads:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: list[tuple[str, Callable[[Reloaded], None] | None]] = []  # for the next one to begin
        self._told: list[Callable[[Reloaded], None]] = []  # of the one under way
        self._by = ""
        self.last: dict[str, Any] | None = None  # what has come of the last one, for the status

    def ask(self, by: str, on_done: Callable[[Reloaded], None] | None) -> None:
        """`by`, who wants one, is told by `on_done` what has come of one that begins from now on."""
        emit = self._events.emit_quietly if by == WATCH else self._events.emit  # while developing one line is enough
        emit("reload.requested", by=by)
        self._waiting.append((by, on_done))

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for one to begin."""
        return bool(self._waiting)

    def begin(self) -> None:
        """All who wait are told of this one; so are those who would have been told of one that is given up for it."""
        if self._waiting:
            self._by = self._waiting[-1][0]
        self._told += [on_done for _by, on_done in self._waiting if on_done is not None]
        self._waiting.clear()

    def succeed(self, zygote: int, boot_s: float, before: Iterable[str], after: Iterable[str]) -> None:
        """`before`, `after`: the names of the handlers."""
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
