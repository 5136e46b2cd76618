"""Decides when to fork again after children failed to start, and when to give up. Runs in the master."""

import math
from typing import Final

from supervisor import clock
from supervisor.master.model import outcome_rules
from supervisor.master.model.breaker import Breaker
from supervisor.master.model.child_handle import ChildHandle
from supervisor.messages import BootFailed, Reaped
from supervisor.ops.events import Events

#: For this long, start-up failures after earlier successes count as an outage of a dependency, not as broken code.
_OUTAGE_S: Final = 10.0
#: A child that exits within this time, before it has finished a job, counts as a start-up failure.
PROBATION_S: Final = 10.0
#: A fork, or the start of a zygote, that the kernel has refused is tried again after this time.
REFUSED_RETRY_S: Final = 1.0

#: Why a child is killed that does not get ready.
NOT_READY: Final = "boot"


class CrashLoopGuard:
    def __init__(self, events: Events) -> None:
        self._events = events
        self.failure: BootFailed | None = None  # why no further child would start
        self.fork_after_at = 0.0
        self._breaker = Breaker()
        self._first_failure_at = 0.0  # of those in a row
        self._last_failure_at = 0.0
        self._has_had_a_ready_child = False
        self._probation: ChildHandle | None = None  # the first child that got ready after failures

    @property
    def is_failing(self) -> bool:
        """True if the last children failed to start, and no child has passed its probation since."""
        return self._breaker.in_a_row > 0

    def record_failure(self, child: ChildHandle, reason: str, last_output: str) -> None:
        """Count one start-up failure. Children requested before the previous failure share its cause and are not
        counted.
        """
        if child.asked_at < self._last_failure_at:
            return
        self._last_failure_at = clock.monotonic()
        if not self.is_failing:
            self._first_failure_at = self._last_failure_at
        wait_s = self._breaker.fail()
        self.fork_after_at = self._last_failure_at + wait_s
        reason += self._breaker.in_words
        # A service that children need may be away for a moment. The restart of a database should not end a supervisor.
        is_outage = self._has_had_a_ready_child and self._last_failure_at < self._first_failure_at + _OUTAGE_S
        if self._breaker.broken and not is_outage:
            self.failure = self.failure or BootFailed(reason, last_output)
        else:
            said = last_output or "nothing"
            self._events.warn(f"{reason}; the next one is forked in {wait_s:g} s. It said: {said}")

    def retry_later(self, reason: str) -> None:
        """Delay the next fork without counting a failure, for example when the kernel refuses it."""
        self.fork_after_at = clock.monotonic() + REFUSED_RETRY_S
        self._events.warn(f"{reason}; trying again in {REFUSED_RETRY_S:g} s")

    def on_ready(self, child: ChildHandle) -> None:
        """A child got ready. The first one requested after a failure is on probation."""
        self._has_had_a_ready_child = True
        if self.is_failing and child.asked_at >= self._last_failure_at and self._probation is None:
            self._probation = child

    def forget(self, child: ChildHandle) -> None:
        if child is self._probation:
            self._probation = None

    def fork_now(self) -> None:
        """End the delay, because a new zygote may succeed where the last one failed."""
        self.fork_after_at = 0.0

    def reset(self) -> None:
        """Forget all failures. Called when new code takes over."""
        self._breaker.succeed()
        self._last_failure_at = clock.monotonic()
        self._probation = None
        self.failure = None
        self.fork_now()

    # time

    def deadline_at(self) -> float:
        """Return when the child on probation passes, if it lives until then (monotonic s)."""
        return math.inf if self._probation is None else self._probation.asked_at + PROBATION_S

    def end_probation(self, now_at: float) -> None:
        """Forget the failures once the child on probation has finished a job, or has lived for PROBATION_S."""
        if self._probation is not None and (self._probation.served or now_at >= self.deadline_at()):
            self._breaker.succeed()
            self._probation = None


def describe_failure(
    child: ChildHandle, reaped: Reaped | None, before: str, boot_timeout_s: float
) -> tuple[str, str]:  # fmt: skip
    """Return how the child failed to start, and its last output and stacks. `before`: what it had not done yet."""
    how = outcome_rules.death_reason(reaped.status) if reaped else "its end was not reported"
    if child.why_killed == NOT_READY:
        how = f"killed by us: it was not ready within {boot_timeout_s:g} s; see --boot-timeout"
    elif child.why_killed is not None:
        how = f"killed by us: {child.why_killed}"
    last_output = f"{child.output.last_of(0).rstrip()}\n{child.stacks.read().rstrip()}".strip()
    return f"a child ended before {before} ({how})", last_output
