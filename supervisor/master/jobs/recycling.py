"""Says which children are worn out, by age or memory, and are to be replaced. Runs in the master. Ends no child."""

from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.units import megabytes

#: Time between two measurements of one child's memory.
_SAMPLE_S: Final = 1.0


class Recycling:
    def __init__(self, config: RunConfig, slots: Slots) -> None:
        self._age_s = config.child_age_s
        self._memory_bytes = config.child_memory_bytes
        self._slots = slots
        self._is_on = bool(self._age_s or self._memory_bytes)
        self._is_on_for_all = self._is_on and config.jobs_per_child != 1

    def is_on_for(self, child: ChildHandle) -> bool:
        """Return whether the child may wear out: it runs several jobs."""
        return self._is_on_for_all or (self._is_on and child.shared is not None)

    def retire_reason_of(self, child: ChildHandle) -> str | None:
        """Return why the child, which has just answered a job, should take no other, or None if it may.

        One child retires at a time: the next one once the successor is ready.
        """
        now_at = clock.monotonic()
        if any(other.retire_reason or other.state is ChildState.SPAWNING for other in self._slots):
            return None
        age_s = now_at - child.asked_at
        if self._age_s and age_s > self._age_s:
            return f"it is {age_s:.0f} s old, its limit is {self._age_s:g} s"
        is_due = now_at >= child.recycling_sampled_at + _SAMPLE_S
        if self._memory_bytes and (is_due or child.meter.peak_bytes > self._memory_bytes):
            child.recycling_sampled_at = now_at
            grown_bytes = child.meter.sample()
            if grown_bytes > self._memory_bytes:
                most = self._memory_bytes
                return f"it keeps {megabytes(grown_bytes)} of private memory, more than {megabytes(most)}"
        return None
