"""Children that do not get ready: when the next one may be forked, and when there is no use in it. Runs in master.

Owns that judgement. Which children these are is said by `ChildManager`.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.master.model.breaker import Breaker
from supervisor.master.model.child_handle import ChildHandle
from supervisor.messages import BootFailed
from supervisor.ops.events import Events

#: Children that do not get ready any more, where others did, are so long taken for an outage of what they need.
_OUTAGE_S: Final = 10.0
#: A child that ends by itself within this, without having answered a job, is as one that was never ready.
PROBATION_S: Final = 10.0
#: When what the kernel has refused is tried again.
AGAIN_S: Final = 1.0


class CrashLoopGuard:
    def __init__(self, events: Events) -> None:
        self._events = events
        self.failure: BootFailed | None = None  # why there is no use in forking more
        self.fork_after_at = 0.0
        self._breaker = Breaker()  # each of them was forked after the last one's end
        self._last_at = 0.0  # when the last one of them ended
        self._first_at = 0.0  # and the first
        self._proven = False  # a child has been ready, sometime
        self._on_trial: ChildHandle | None = None  # the first one that is ready after some that failed

    @property
    def any(self) -> bool:
        """Whether the last ones have failed, and none has proved itself since."""
        return self._breaker.in_a_row > 0

    def count(self, child: ChildHandle, what: str, said: str) -> None:
        """`said`: its last words. Those that were asked for together count once, for they have the same cause."""
        if child.asked_at < self._last_at:
            return
        self._last_at = clock.monotonic()
        if not self.any:
            self._first_at = self._last_at
        wait_s = self._breaker.fail()
        self.fork_after_at = self._last_at + wait_s
        what += self._breaker.in_words
        # What children need may be away for a moment: not every restart of a database is to end a supervisor.
        is_outage = self._proven and self._last_at < self._first_at + _OUTAGE_S
        if self._breaker.broken and not is_outage:
            self.failure = self.failure or BootFailed(what, said)
        else:
            self._events.warn(f"{what}; the next one is forked in {wait_s:g} s. It said: {said or 'nothing'}")

    def put_off(self, why: str) -> None:
        """None can be had now; that is nobody's fault."""
        self.fork_after_at = clock.monotonic() + AGAIN_S
        self._events.warn(f"{why}; trying again in {AGAIN_S:g} s")

    # what speaks for the next ones

    def note_ready(self, child: ChildHandle) -> None:
        """What one child could, the next ones can: the first of them has yet to prove itself."""
        self._proven = True
        if self.any and child.asked_at >= self._last_at and self._on_trial is None:
            self._on_trial = child

    def forget(self, child: ChildHandle) -> None:
        if child is self._on_trial:
            self._on_trial = None

    def fork_now(self) -> None:
        """There is another zygote: what the last one could not, it may."""
        self.fork_after_at = 0.0

    def begin_anew(self) -> None:
        """The code is another one: what came of children before says nothing any more."""
        self._breaker.succeed()
        self._last_at = clock.monotonic()
        self._on_trial = None
        self.failure = None
        self.fork_now()

    # time

    def deadline_at(self) -> float:
        return math.inf if self._on_trial is None else self._on_trial.asked_at + PROBATION_S

    def keep_time(self, now_at: float) -> None:
        """The one on trial has proved itself once it has answered a job, or has lived for a while."""
        if self._on_trial is not None and (self._on_trial.served or now_at >= self.deadline_at()):
            self._breaker.succeed()
            self._on_trial = None
