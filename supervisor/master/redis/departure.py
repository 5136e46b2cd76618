"""Ends the master's talk with Redis: settles the last leases, and has Redis forget the worker. Runs in the master.

Does no I/O of its own. `Drain` says when.
"""

from supervisor.engine.worker.session import Session
from supervisor.master.model.shutdown_schedule import ShutdownSchedule
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.settling import Settling


class Departure:
    def __init__(self, session: Session, demand: Demand, settling: Settling) -> None:
        self._session = session
        self._demand = demand
        self._settling = settling

    def settle_without_memory(self) -> None:
        """Wait no longer for memory in Redis: completions that it has refused count as not done."""
        self._settling.end_put_off()

    @property
    def is_settled(self) -> bool:
        """True if Redis has accepted the end of every lease."""
        return self._demand.is_settled

    @property
    def may_hold_more(self) -> bool:
        """True if Redis may have granted jobs that this master does not know of."""
        return self._session.may_hold_more

    def start_leaving(self, schedule: ShutdownSchedule, now_at: float) -> None:
        """Nothing is held any more: give the last exchange its time, or little if it has nothing to hand back."""
        schedule.arrived(now_at)
        if not self._session.connected and not self._session.may_hold_more:
            schedule.in_vain(now_at)

    def leave(self, schedule: ShutdownSchedule, now_at: float) -> bool:
        """Have Redis forget the worker. Return True once it has, or if it never knew the worker. Raises LinkLost."""
        session, wakeups = self._session, self._session.wakeups
        if not session.connected:
            # One more try: the good-bye was lost, or a grant, which it would hand back.
            schedule.in_vain(now_at, session.longest_reconnect_s)
        if session.has_left or not session.has_begun:
            return True
        # A good-bye during a wait would lose a wake-up.
        if session.idle and not wakeups.waiting and not wakeups.woken:
            session.leave()
        return False
