"""When a child's job must have ended, and when the child is killed. Runs in the master. Stops and kills nothing."""

import math
from collections.abc import Callable


class EndPlan:
    """Times are monotonic seconds."""

    __slots__ = ("_on_planned", "_stops", "kill_at", "kill_reason", "kill_sentence", "stop_at", "stop_reason")

    def __init__(self, on_planned: Callable[[], None]) -> None:
        """`on_planned()` is called when a stop or a kill has been planned."""
        self._on_planned = on_planned
        self._stops: dict[str, float] = {}  # the time of the stop for each reason
        self.stop_at = math.inf  # the earliest of them: the job that runs then is interrupted
        self.stop_reason = ""
        self.kill_at: float | None = None  # the child is killed then, unless it answers its job before
        self.kill_reason = ""
        self.kill_sentence: str | None = None  # for people, where there is more to say than the reason

    def stop_by(self, at: float, reason: str) -> bool:
        """The child's job is to have ended by `at`. Return True if no other reason stops it sooner."""
        self._stops[reason] = min(at, self._stops.get(reason, math.inf))
        is_earliest = at < self.stop_at
        if is_earliest:
            self.stop_at, self.stop_reason = at, reason
            self._on_planned()
        return is_earliest

    def drop_stop(self, reason: str) -> None:
        """This reason holds no more. A stop for another reason stays planned."""
        self._stops.pop(reason, None)
        stops = ((at, reason) for reason, at in self._stops.items())
        self.stop_at, self.stop_reason = min(stops, default=(math.inf, ""))

    def kill_by(self, at: float, reason: str, sentence: str | None = None) -> None:
        self.kill_at, self.kill_reason, self.kill_sentence = at, reason, sentence
        self._on_planned()
