"""Stops jobs that a peer may have taken over, because Redis has not renewed their leases. Runs in the master.

Owns when a running job is stopped for that. `Interrupter` interrupts and kills; the engine says later whose the job is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from supervisor import clock
from supervisor.config import RunConfig
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.exchange import Confirmation, Fence
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_run import JobRun
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.master.timers import Timers
from supervisor.messages import HandlerSettings

#: A process tree is killed so long before a peer may start the job: on a starved machine killed processes end late.
_KILL_AHEAD_S: Final = 1.0
#: While such jobs run the loop turns at least this often: its own timers do not count the time of a suspended machine.
_TICK_S: Final = 1.0
#: The key of the timer.
CUT_OFF: Final = "cut-off"


class CutOff:
    """Persistent jobs have a fence, and those whose handler or supervisor says stop. All others go on."""

    def __init__(
        self, config: RunConfig, slots: Slots, ledgers: Ledgers, interrupter: Interrupter, timers: Timers
    ) -> None:
        self._by_default = config.on_cut_off == "stop"
        self._grace_s = config.term_grace_s
        self._slots = slots
        self._ledgers = ledgers
        self._interrupter = interrupter
        self._timers = timers
        self._handlers: Mapping[str, HandlerSettings] = {}
        self._some_handlers_stop = False

    def on_granted(
        self, leases: Sequence[LeaseRecord], handlers: Mapping[str, HandlerSettings], confirmation: Confirmation
    ) -> bool:
        """Redis has granted these leases. Returns whether any job has a fence."""
        if handlers is not self._handlers:
            self._handlers = handlers
            self._some_handlers_stop = any(settings.on_cut_off == "stop" for settings in handlers.values())
        if not (self._by_default or self._some_handlers_stop or any(lease.persistent for lease in leases)):
            return False
        for lease in leases:
            self.on_renewed(lease, lease.expires_unix, confirmation)
        return self._timers.at(CUT_OFF) < math.inf

    def on_renewed(self, lease: LeaseRecord, expires_unix: float, confirmation: Confirmation) -> None:
        """Redis has granted or renewed this lease."""
        held = self._ledgers.find(lease.token)
        if held is not None and self._stops(held):
            held.fence = confirmation.fence(expires_unix)
            self.look_now()

    def look_now(self) -> None:
        """A job with a fence runs since this turn, or its fence is another one."""
        self._timers.set(CUT_OFF, -math.inf, self._look)

    def _look(self, _now_at: float) -> None:
        """Stop each job whose lease was not renewed in time."""
        now_boot_at, now_at = clock.boottime(), clock.monotonic()
        left_s = []
        for run, fence in list(self._running()):
            if now_boot_at >= self._stop_at(fence):
                run.held.fence = None
                self._interrupter.cut_off(run, now_at + self._kill_at(fence) - now_boot_at)
            else:
                left_s.append(self._stop_at(fence) - now_boot_at)
        if left_s:
            self._timers.set(CUT_OFF, now_at + min(*left_s, _TICK_S), self._look)

    def _stops(self, held: HeldLease) -> bool:
        """True if the job is stopped when this supervisor is cut off from Redis for too long."""
        own = held.settings.on_cut_off
        return held.lease.persistent or (self._by_default if own is None else own == "stop")

    def _running(self) -> Iterator[tuple[JobRun, Fence]]:
        for child in self._slots:
            for run in child.runs:
                if run.held.fence is not None:
                    yield run, run.held.fence

    @staticmethod
    def _kill_at(fence: Fence) -> float:
        return max(fence.end_at, fence.taken_at - _KILL_AHEAD_S)

    def _stop_at(self, fence: Fence) -> float:
        """The handler gets the term grace before the kill, but is never interrupted before its lease has run out."""
        return max(fence.end_at, self._kill_at(fence) - self._grace_s)
