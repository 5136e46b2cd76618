"""Has the idle master wait for wake-ups, mail and pushed entries of a shard, or leave. Runs in the master. No I/O.

Owns when a wait begins and ends, and what follows from its end. Where no child could take a job the master waits for
mail alone, because a wake-up is for a master that can answer it.
"""

import math
from typing import Final

from supervisor.engine.worker.mail_reader import MailReader
from supervisor.engine.worker.push_listeners import PushListeners
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.engine.worker.wait import Wait, WaitsFor
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.door_taking import DoorTaking
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.renewing import Renewing

#: The master waits for mail once no child could take a job for this long, so that shorter jobs never pay for it.
_MAIL_AFTER_S: Final = 0.05
#: With several shards a wait goes on for this long while the jobs of others take the room. What it then leases goes
#: back if it finds no child. To end the waits of all shards for each short job would cost more.
_CROWDED_S: Final = 0.02


class Waiting:
    def __init__(
        self,
        demand: Demand,
        leasing: Leasing,
        renewing: Renewing,
        serving: ServedQueues,
        wakeups: Wait,
        listeners: PushListeners,
        doors: DoorTaking | None,
        idle_exit: IdleExit,
    ) -> None:
        """`doors`: None in a shard that has none."""
        self._demand = demand
        self._leasing = leasing
        self._renewing = renewing
        self._serving = serving
        self._wakeups = wakeups
        self._listeners = listeners
        self._doors = doors
        self._idle_exit = idle_exit
        self._mail = MailReader(serving, leasing.lease_soon, renewing.on_hint_of_loss, self._look_for_doors)
        self._full_since_at: float | None = None  # no child could take a job since then
        self._crowded_at: float | None = None  # the wait goes on until then although no child could take a job

    def prepare(self, now_at: float) -> None:
        """Before an exchange: end a wait that must not go on, and see what was pushed. Raises LinkLost."""
        if self._idle_exit.is_on:
            self._idle_exit.note(now_at)
        if self._wakeups.waiting and not self._may_go_on(now_at):
            self._wakeups.end_wait()
            if self._demand.is_divided:
                self._leasing.look_later(now_at)
        if self._listeners.take_pushed():
            self._leasing.lease_soon()
        if self._doors is not None:
            self._doors.hear()
        if self._renewing.is_hinted:  # this renewal answers all mail that has come until now
            self._wakeups.drop_mail()
            self._serving.look_for_queues()
            self._serving.look_for_requests()
            self._look_for_doors()

    def _look_for_doors(self) -> None:
        if self._doors is not None:
            self._doors.look_for_doors()

    def _may_go_on(self, now_at: float) -> bool:
        """Return whether the wait may go on: one for wake-ups takes them from other masters, and leases at its end."""
        waits_for = self._wakeups.waits_for
        if waits_for is not WaitsFor.QUEUES:
            return waits_for is WaitsFor.MAIL and self._is_of_use
        if self._demand.can_start:
            self._crowded_at = None
            return True
        if not self._demand.is_divided or not self._demand.takes_jobs or self._wakeups.is_ending:
            return False
        if self._crowded_at is None:
            self._crowded_at = now_at + _CROWDED_S
        return now_at < self._crowded_at

    @property
    def _is_of_use(self) -> bool:
        return self._demand.is_open or not self._demand.is_settled

    def begin(self, now_at: float) -> None:
        """Wait or leave, as there is nothing to say. Raises LinkLost."""
        wakeups = self._wakeups
        if self._idle_exit.is_on and now_at >= self._idle_exit.due_at:
            self._idle_exit.retire()
        elif self._demand.can_start and not self._demand.has_ready_jobs:
            self._full_since_at = None
            self._listeners.listen(self._serving.names)
            if self._doors is not None:
                self._doors.listen()
            if wakeups.waiting and wakeups.waits_for is WaitsFor.MAIL:
                wakeups.end_wait()
            if not wakeups.waiting:
                self._crowded_at = None
                self._leasing.begin_wait()
        else:
            self._begin_without_room(now_at)

    def _begin_without_room(self, now_at: float) -> None:
        """No child could take a job: wait for mail, and look at a shard of several all the same."""
        wakeups = self._wakeups
        is_listening = wakeups.waiting and wakeups.waits_for is not WaitsFor.MAIL
        if self._demand.is_divided and self._demand.takes_jobs and not is_listening:
            self._leasing.look_later(now_at)
        if wakeups.waiting or not self._is_of_use:
            self._full_since_at = None
        else:
            self._full_since_at = self._full_since_at or now_at
            if now_at >= self._full_since_at + _MAIL_AFTER_S:
                wakeups.wait_for_mail()

    def deadline_at(self) -> float:
        """Return when `begin` has something to do, if nothing happens before (monotonic s)."""
        leave_at = self._idle_exit.deadline_at() if self._idle_exit.is_on else math.inf
        if self._crowded_at is not None and self._is_crowded:
            leave_at = min(leave_at, self._crowded_at)
        if self._full_since_at is None:
            return leave_at
        return min(leave_at, self._full_since_at + _MAIL_AFTER_S)

    @property
    def _is_crowded(self) -> bool:
        wakeups = self._wakeups
        return wakeups.waiting and not wakeups.is_ending and wakeups.waits_for is WaitsFor.QUEUES

    def read_wakeup(self) -> None:
        """Read what has ended the wait. Raises LinkLost."""
        end = self._wakeups.read()
        if end is None:
            return
        for message in end.mail:
            self._mail.read(message)
        if end.timed_out:
            self._serving.look_for_queues()  # mail may be lost, too
        if self._wakeups.woken:
            self._leasing.lease_soon()
        if end.granted is not None:
            self._leasing.on_waited(end.granted)
