"""Ends the master's talk with Redis: settles the last leases, and has each shard forget the worker. Runs in the master.

Does no I/O of its own. `Drain` says when.
"""

from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.shutdown_schedule import ShutdownSchedule
from supervisor.master.redis.sides import Side, Sides


class Departure:
    def __init__(self, sides: Sides, ledgers: Ledgers) -> None:
        self._sides = sides
        self._ledgers = ledgers

    def settle_without_memory(self) -> None:
        """Wait no longer for memory in Redis: completions that it has refused count as not done."""
        self._sides.end_put_off()

    @property
    def is_settled(self) -> bool:
        """True if Redis has accepted the end of every lease."""
        return self._ledgers.are_empty

    @property
    def may_hold_more(self) -> bool:
        """True if Redis may have granted jobs that this master does not know of."""
        return any(side.session.may_hold_more for side in self._sides)

    def start_leaving(self, schedule: ShutdownSchedule, now_at: float) -> None:
        """Nothing is held any more: give the last exchange its time, or little if it has nothing to hand back."""
        schedule.arrived(now_at)
        if not self.may_hold_more and not any(side.session.connected for side in self._sides):
            schedule.in_vain(now_at)

    def leave(self, schedule: ShutdownSchedule, now_at: float) -> bool:
        """Have each shard forget the worker. Return True once all have that knew it."""
        if not self._sides.connected:
            # One more try: the good-bye was lost, or a grant, which it would hand back.
            schedule.in_vain(now_at, max(side.session.longest_reconnect_s for side in self._sides))
        have_left = [self._has_left(side) for side in self._sides]
        return all(have_left)

    @staticmethod
    def _has_left(side: Side) -> bool:
        session, wakeups = side.session, side.session.wakeups
        if session.has_left or not session.has_begun:
            return True
        # A good-bye during a wait would lose a wake-up.
        if session.idle and not wakeups.waiting and not wakeups.woken:
            side.loop.run(session.leave)
        return False
