"""Says how many jobs to lease. Runs in the master. Does no I/O."""

from typing import Final

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.job_pipe import MAX_SENT
from supervisor.master.model.pace import SHORT_S, Pace
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState

#: A lease brings at most so many jobs for shared children: their sockets have room for them.
MOST_FOR_SHARED: Final = 128


class Capacity:
    def __init__(self, slots: Slots, admission: Admission, pace: Pace, ahead_s: float) -> None:
        """`ahead_s`: how much estimated run time may wait at one child."""
        self._slots = slots
        self._admission = admission
        self._pace = pace
        self._ahead_s = ahead_s

    def startable(self) -> int:
        """Return how many jobs idle children would start at once."""
        if self._admission.waits_for_room or self._admission.awaits_reload:
            return 0
        room = self._admission.at_once - self._slots.busy
        if room <= 0:
            return 0
        idle = [child for child in self._slots if child.state is ChildState.IDLE and not child.retire_reason]
        return min(room, len(idle))

    def shared_room(self) -> int:
        """Return how many more jobs shared children would start at once, as far as one lease may bring them."""
        if not self._admission.may_lease_beside:
            return 0
        rooms = (
            child.shared.room(self._admission.largest_concurrency)
            for child in self._slots
            if child.shared is not None and child.state is ChildState.BUSY and child.retire_reason is None
        )
        return min(MOST_FOR_SHARED, sum(rooms))

    def to_lease(self, coming: int = 0) -> tuple[int, int]:
        """Return how many jobs to lease now beside the `coming` ones, and how many of these would start at once.

        Jobs that run beside others take the room of shared children. The others are sent to idle children, and ahead:
        see `_to_lease`.
        """
        count, starting = self._to_lease(coming)
        shared = max(0, self.shared_room() - coming)
        return count + shared, starting + shared

    def _to_lease(self, coming: int) -> tuple[int, int]:
        """Jobs are sent ahead as far as they start in time, but one lease brings at most half of what the children
        take: they do the other half while Redis carries the lease out. Each child that is about to get ready counts for
        one short job.
        """
        idle, recent_s = self.startable(), self._pace.recent_s
        starting = max(0, idle - coming)
        if recent_s is None or recent_s > self._ahead_s or not self._admission.may_lease_ahead:
            return starting, starting
        ahead, most = self._room_ahead(idle, recent_s)
        soon = self._soon() if recent_s <= SHORT_S else 0
        soon = max(0, min(soon, self._admission.at_once - self._slots.busy - idle) - max(0, coming - idle))
        # Very short jobs may wait at a busy child although another child is idle: none of them counts as starting.
        return max(starting, min(ahead - coming, (most + 1) // 2)) + soon, 0 if self._pace.is_quick else starting

    def _room_ahead(self, idle: int, recent_s: float) -> tuple[int, int]:
        """Return how many jobs of `recent_s` seconds start in time, and how many the children take at most.

        Counts this many of the idle children, and the busy ones.
        """
        in_time = most = 0
        for child in self._slots:
            if child.state is ChildState.IDLE and idle:
                idle -= 1
            elif not child.sent or not self._slots.may_send_ahead(child):
                continue
            left = self._slots.jobs_left(child)
            in_time += max(0, min(int((self._ahead_s - child.jobs.estimated_s) / recent_s), left))
            most += min(int(self._ahead_s / recent_s), MAX_SENT, left + len(child.sent))
        return in_time, most

    def _soon(self) -> int:
        """Return how many children are about to get ready, by the time that recent forks took."""
        fork_s = self._pace.fork_s
        if fork_s is None:
            return 0
        # Overdue children do not count: a job could wait for them for any time.
        asked_at = clock.monotonic() - fork_s
        under_way = [child for child in self._slots if child.state is ChildState.SPAWNING and not child.retire_reason]
        return sum(asked_at <= child.asked_at <= asked_at + self._ahead_s / 2 for child in under_way)
