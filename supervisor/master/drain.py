"""Takes the master down: lets jobs finish, then interrupts them, kills them, and leaves Redis. Runs in the master.

Owns the phase of the master's life, the schedule of a drain, and the exit code. `outcome_rules` says what an end means
for a job.

A drain, from top to bottom: `begin` stops leases and forks, and `advance` takes each further step when it is due.
"""

import math
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.exit_codes import Exit
from supervisor.master.jobs.job_shutdown import JobShutdown
from supervisor.master.model.shutdown_schedule import ShutdownSchedule
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import PHASE_MOVES, Phase, move
from supervisor.master.processes.process_manager import ProcessManager
from supervisor.master.redis.departure import Departure
from supervisor.ops.events import Events

#: An event names at most this many of the jobs that a drain waits for.
_MOST_JOBS: Final = 10


class Drain:
    """`phase` is SERVING until a drain begins. `exit` is the exit code if nothing else happens."""

    def __init__(
        self,
        config: RunConfig,
        slots: Slots,
        processes: ProcessManager,
        jobs: JobShutdown,
        departure: Departure,
        events: Events,
    ) -> None:
        self._config = config
        self._slots = slots
        self._processes = processes
        self._jobs = jobs
        self._departure = departure
        self._events = events
        self.phase = Phase.SERVING
        self.exit = Exit.OK
        self.schedule: ShutdownSchedule | None = None
        self._is_silent = False

    @property
    def has_begun(self) -> bool:
        return self.schedule is not None

    @property
    def left_s(self) -> float | None:
        """How long the drain takes at most (s); None: there is none."""
        return None if self.schedule is None else self.schedule.left_s(clock.monotonic())

    def begin(self, by: By | None, why: Exit = Exit.OK) -> ShutdownSchedule:
        """Lease no more, hand back what has not started, let the rest finish. Idempotent."""
        self.exit = self.exit or why
        if self.schedule is not None:
            return self.schedule
        config, now_at = self._config, clock.monotonic()
        self.schedule = schedule = ShutdownSchedule.of(now_at, config.drain_timeout_s, config.term_grace_s)
        self._become(Phase.DRAINING)
        # A start that has failed reports its cause. Its drain has nothing to wait for, and reports nothing.
        self._is_silent = self.exit is not Exit.OK and not self._slots.busy
        self._say("master.draining", schedule, now_at, **(by.fields if by else {}))
        self._processes.fork_no_more()
        self._jobs.begin()
        return schedule

    def hurry(self, by: By) -> ShutdownSchedule:
        """Kill what runs, and hand everything back. Begins the drain if there is none."""
        schedule, now_at = self.begin(by), clock.monotonic()
        schedule.hurry(now_at)
        self._events.emit("master.hurried", **by.fields, left_s=schedule.left_s(now_at), running=self._slots.busy)
        return schedule

    def advance(self, now_at: float) -> float:
        """Take the steps of a drain that are due. Return when the next one is (monotonic s)."""
        schedule = self.schedule
        assert schedule is not None
        if self.phase is Phase.DRAINING and now_at >= schedule.interrupt_at:
            self._step_down(Phase.INTERRUPTING, schedule, now_at)
            self._jobs.interrupt()
        if self.phase is Phase.INTERRUPTING and now_at >= schedule.kill_at:
            self._step_down(Phase.KILLING, schedule, now_at)
            self._jobs.kill()
        if self.phase is Phase.KILLING and now_at >= schedule.hand_back_at:
            schedule.hand_back_at = math.inf
            self._processes.abandon("drain")
        if self.phase is not Phase.DRAINING:
            self._departure.settle_without_memory()
        if self.phase is not Phase.LEAVING and self._departure.is_settled and not self._slots.busy:
            self._step_down(Phase.LEAVING, schedule, now_at)
            self._departure.start_leaving(schedule, now_at)
        if self.phase is Phase.LEAVING and self._departure.leave(schedule, now_at):
            schedule.leave_by_at = min(schedule.leave_by_at, schedule.kill_at)  # only children's exit hooks still run
            if not self._slots.leaving or now_at >= schedule.kill_at:
                self._become(Phase.STOPPED)
        if now_at >= schedule.leave_by_at and self.phase is not Phase.STOPPED:
            self._give_up()
        return schedule.next_at(self.phase)

    def _give_up(self) -> None:
        """Redis does not answer: exit, and let the leases expire."""
        holds = self.phase is not Phase.LEAVING
        if holds:
            self._become(Phase.LEAVING)
        if holds or self._departure.may_hold_more:
            self.exit = self.exit or Exit.NOT_HANDED_BACK
        self._become(Phase.STOPPED)

    def _step_down(self, phase: Phase, schedule: ShutdownSchedule, now_at: float) -> None:
        self._become(phase)
        self._say(f"master.{phase.value}", schedule, now_at)

    def _say(self, event: str, schedule: ShutdownSchedule, now_at: float, **fields: object) -> None:
        if not self._is_silent:
            running = [run.held.lease for child in self._slots for run in child.runs]
            jobs = [f"{lease.klass} {lease.jid}" for lease in running[:_MOST_JOBS]]
            self._events.emit(
                event, **fields, left_s=schedule.left_s(now_at), running=self._slots.busy, jobs=jobs or None
            )  # fmt: skip

    def _become(self, phase: Phase) -> None:
        self.phase = move(PHASE_MOVES, self.phase, phase)
