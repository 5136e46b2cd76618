"""The way down: patience, interruption, kill, last exchange. Runs in master.

Owns the phase of the master's life, the deadlines of a drain, and the exit code. Must not decide what an end means for
a job.
"""

import math
from dataclasses import dataclass
from typing import Final

from supervisor import clock
from supervisor.config import LAST_EXCHANGE_S, REAP_S, Config, Exit
from supervisor.engine.worker.session import Session
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import PHASE_MOVES, Phase, move
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.settling import Settling
from supervisor.master.timers import Timers
from supervisor.ops.events import Events

#: What an exchange may take where somebody is in a hurry: an outage is not waited for then.
HURRIED_EXCHANGE_S: Final = 5.0
#: The key of the timer.
_STEP: Final = "drain"
#: At most this many of the jobs that a drain waits for are named.
_MOST_JOBS: Final = 10


@dataclass(slots=True)
class ShutdownSchedule:
    """When each step of a drain is due (monotonic s)."""

    began_at: float
    interrupt_at: float
    kill_at: float
    hand_back_at: float  # jobs of what has not ended by then are handed back all the same
    leave_by_at: float  # without an answer by then we go, and the leases expire

    @classmethod
    def of(cls, now_at: float, patience_s: float, grace_s: float) -> "ShutdownSchedule":
        kill_at = now_at + patience_s + grace_s
        return cls(now_at, now_at + patience_s, kill_at, kill_at + REAP_S, kill_at + REAP_S + LAST_EXCHANGE_S)

    def hurry(self, now_at: float) -> None:
        """Patience is over: kill now."""
        self.interrupt_at = min(self.interrupt_at, now_at)
        self.kill_at = min(self.kill_at, now_at)
        self.hand_back_at = min(self.hand_back_at, now_at + REAP_S)
        self.leave_by_at = min(self.leave_by_at, now_at + REAP_S + HURRIED_EXCHANGE_S)

    def arrived(self, now_at: float) -> None:
        """Only the last exchange is left: it gets the rest of the time, at least LAST_EXCHANGE_S."""
        self.leave_by_at = max(self.leave_by_at, now_at + LAST_EXCHANGE_S)

    def in_vain(self, now_at: float, away_s: float = 0.0) -> None:
        """Redis is away, and nothing is in our hands: the last exchange gets no more than LAST_EXCHANGE_S, once it is
        tried again in at most `away_s`.
        """
        self.leave_by_at = min(self.leave_by_at, now_at + away_s + LAST_EXCHANGE_S)

    def left_s(self, now_at: float) -> float:
        """How long it takes at the most."""
        return round(max(0.0, self.leave_by_at - now_at), 1)

    def next_at(self, phase: Phase) -> float:
        """When the next step is due."""
        steps = {
            Phase.DRAINING: self.interrupt_at,
            Phase.INTERRUPTING: self.kill_at,
            Phase.KILLING: self.hand_back_at,
        }
        return min(steps.get(phase, self.leave_by_at), self.leave_by_at)


class Drain:
    """Until it has begun, the master serves. `exit`: how it is to end."""

    def __init__(
        self,
        config: Config,
        slots: Slots,
        session: Session,
        zygotes: ZygoteManager,
        dispatcher: Dispatcher,
        demand: Demand,
        settling: Settling,
        pump: RedisPump,
        events: Events,
        timers: Timers,
    ) -> None:
        self._config = config
        self._slots = slots
        self._session = session
        self._zygotes = zygotes
        self._dispatcher = dispatcher
        self._demand = demand
        self._settling = settling
        self._pump = pump
        self._events = events
        self._timers = timers
        self.phase = Phase.SERVING
        self.exit = Exit.OK
        self.schedule: ShutdownSchedule | None = None
        self._is_silent = False

    def begin(self, by: By | None, why: Exit = Exit.OK) -> ShutdownSchedule:
        """Lease no more, hand back what has not started, let the rest finish. Idempotent."""
        self.exit = self.exit or why
        if self.schedule is not None:
            return self.schedule
        config, now_at = self._config, clock.monotonic()
        self.schedule = schedule = ShutdownSchedule.of(now_at, config.drain_timeout_s, config.term_grace_s)
        self._become(Phase.DRAINING)
        # A start that has failed says its cause, and nothing of a drain in which there is nothing to wait for.
        self._is_silent = self.exit is not Exit.OK and not self._slots.busy
        self._say("master.draining", schedule, now_at, **(by.fields if by else {}))
        self._zygotes.fork_no_more()
        self._dispatcher.close()
        self._dispatcher.interrupter.tell_all("drain")
        self._demand.close()
        return schedule

    def hurry(self, by: By) -> ShutdownSchedule:
        """Kill what runs, and hand everything back."""
        schedule, now_at = self.begin(by), clock.monotonic()
        schedule.hurry(now_at)
        self._events.emit("master.hurried", **by.fields, left_s=schedule.left_s(now_at), running=self._slots.busy)
        return schedule

    def advance(self, now_at: float, served: bool) -> None:
        """Take the steps that are due. `served`: Redis has been there."""
        schedule = self.schedule
        if schedule is None:
            return
        if self.phase is Phase.DRAINING and now_at >= schedule.interrupt_at:
            self._step_down(Phase.INTERRUPTING, schedule, now_at)
            self._dispatcher.interrupter.interrupt_all("drain")
        if self.phase is Phase.INTERRUPTING and now_at >= schedule.kill_at:
            self._step_down(Phase.KILLING, schedule, now_at)
            self._dispatcher.interrupter.kill_all("drain")
        if self.phase is Phase.KILLING and now_at >= schedule.hand_back_at:
            schedule.hand_back_at = math.inf
            self._zygotes.children.abandon("drain")
        if self.phase is not Phase.DRAINING:
            self._settling.end_put_off()
        self._leave(schedule, now_at, served)
        self._timers.set(_STEP, schedule.next_at(self.phase), lambda _now_at: None)  # the turn comes here

    def _leave(self, schedule: ShutdownSchedule, now_at: float, served: bool) -> None:
        if self.phase is not Phase.LEAVING and self._demand.is_settled and not self._slots.busy:
            self._step_down(Phase.LEAVING, schedule, now_at)
            schedule.arrived(now_at)
            if not self._session.connected and not self._session.may_hold_more:
                schedule.in_vain(now_at)
        if self.phase is Phase.LEAVING:
            if not self._session.connected:
                # One more try: the good-bye was lost, or a grant, which it would hand back.
                schedule.in_vain(now_at, self._session.longest_reconnect_s)
            if self._pump.is_over or not served:
                schedule.leave_by_at = min(schedule.leave_by_at, schedule.kill_at)  # only hooks are waited for
                if not self._slots.leaving or now_at >= schedule.kill_at:
                    self._become(Phase.STOPPED)
            else:
                self._pump.leave()
        if now_at >= schedule.leave_by_at and self.phase is not Phase.STOPPED:
            self._give_up()

    def _give_up(self) -> None:
        """Redis does not answer: what we could not say, the expiry of our leases will."""
        holds = self.phase is not Phase.LEAVING
        if holds:
            self._become(Phase.LEAVING)
        if holds or self._session.may_hold_more:
            self.exit = self.exit or Exit.NOT_HANDED_BACK
        self._become(Phase.STOPPED)

    def _step_down(self, phase: Phase, schedule: ShutdownSchedule, now_at: float) -> None:
        self._become(phase)
        self._say(f"master.{phase.value}", schedule, now_at)

    def _say(self, event: str, schedule: ShutdownSchedule, now_at: float, **fields: object) -> None:
        if not self._is_silent:
            heads = [child.running.lease for child in self._slots if child.running is not None]
            jobs = [f"{lease.klass} {lease.jid}" for lease in heads[:_MOST_JOBS]]
            left_s, running = schedule.left_s(now_at), self._slots.busy
            self._events.emit(event, **fields, left_s=left_s, running=running, jobs=jobs or None)

    def _become(self, phase: Phase) -> None:
        self.phase = move(PHASE_MOVES, self.phase, phase)
