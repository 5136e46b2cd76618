"""The faults that a test wants in a handler, and where. Used in the process of pytest. Must not do I/O."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_POINT: Final = re.compile(r"start|return|(before )?(checkpoint|step) [1-9]\d*|(put|progress) [1-9]\d*|next")
_POINTS: Final = (
    "'start', 'checkpoint 2', 'before checkpoint 2', 'step 1', 'before step 1', 'put 1', 'next', 'progress 3' or"
    " 'return'"
)


class Crashed(BaseException):
    """Ends a handler in place of a SIGKILL. No `except Exception` catches it."""


def checked_point(at: str) -> str:
    """Return a place in a handler. Raises ValueError."""
    if not isinstance(at, str) or not _POINT.fullmatch(at):
        raise ValueError(f"at={at!r}: write {_POINTS}")
    return at


@dataclass(slots=True)
class Trial:
    """One run of a test among those of `every_crash_point`.

    `kill_at`: the index of the point at which the process is killed; None: at none. `reached`: all points, in order.
    """

    kill_at: int | None = None
    reached: list[str] = field(default_factory=list)


class Faults:
    def __init__(self) -> None:
        self._armed: list[tuple[str, Callable[[], BaseException | None]]] = []
        self.trial: Trial | None = None

    @property
    def pending(self) -> list[str]:
        """The places of faults that no handler has reached."""
        return [at for at, _ in self._armed]

    def arm(self, at: str, fault: Callable[[], BaseException | None]) -> None:
        """Have the next run that reaches a place raise what `fault()` returns. Raises ValueError."""
        self._armed.append((checked_point(at), fault))

    def clear(self) -> None:
        self._armed.clear()

    def reach(self, point: str, klass: str) -> None:
        """Note that a handler is at a point. Raises the fault that waits there."""
        trial = self.trial
        if trial is not None:
            trial.reached.append(f"{point} of {klass}")
            if len(trial.reached) - 1 == trial.kill_at:
                raise Crashed(point)
        for index, (at, fault) in enumerate(self._armed):
            if at == point:
                del self._armed[index]
                if (error := fault()) is not None:
                    raise error
                return
