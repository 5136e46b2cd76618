"""Says whether a job may start now, and why not. Runs in the master.

A job starts if all of this allows it:

1. `why_not` names no stop that holds for all jobs: a drain, a pause, outcomes that wait for Redis, a reload.
2. Fewer than `at_once` jobs run. After losses of zygotes jobs run one at a time.
3. The memory budget has room for the job (`fits`).
4. A child may have the job (`ChildChoice`). With several trust domains a child takes jobs of one domain only.

Nothing is leased while a stop holds, or while leased jobs wait for room (`waits_for_room`).
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final

from supervisor import clock
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.master.timers import Timers
from supervisor.messages import HandlerSettings

#: Jobs that do not fit are tried again after this time, if no job ends before.
_RETRY_S: Final = 1.0
#: The first pause of leases for shared children, after jobs that found no place there.
_FIRST_PAUSE_S: Final = 0.05
#: Further leased jobs are not named in the status, because an answer has its limits.
_MOST_WAITING: Final = 100
#: The key of the timer for that.
FIND_ROOM: Final = "admission.find-room"


class Stop(Enum):
    """Why no job may start."""

    DRAINING = "the supervisor drains"
    PAUSED = "an operator has paused the supervisor"
    UNSETTLED = "too many outcomes wait for Redis: those of further jobs would find no room"
    EDITED = "files of the handlers were edited: jobs wait for the reload"


def may_go_ahead(lease: LeaseRecord) -> bool:
    """Return whether a job may wait at a busy child.

    Jobs without an end, or without a second try, wait for an idle child. So does a job whose child or worker has died,
    because it may have killed it, and one that was interrupted: its start is reported before it is sent.
    """
    is_alone = lease.persistent or lease.at_most_once
    return not (is_alone or lease.deaths or lease.interruptions or lease.was_lost)


class Admission:
    """The other parts read the flags. Only the methods set them."""

    def __init__(self, slots: Slots, ledgers: Ledgers, budget: Budget, timers: Timers) -> None:
        self._slots = slots
        self._ledgers = ledgers
        self._budget = budget
        self._timers = timers
        self.is_open = True  # False once a drain has begun, for good
        self.paused = False
        self.awaits_reload = False
        self.waits_for_room = False  # leased jobs fit into no child or not into the memory budget
        self.leases_for_idle_only = False  # jobs like those at hand may not be sent ahead
        self.separates_domains = False  # a child takes only jobs of the trust domain of its first job
        self.largest_concurrency = 1  # of all handlers
        self.jobs_ended = 0
        self._handlers: Mapping[str, HandlerSettings] = {}  # as of the last grant
        self._beside_pause_s = self._beside_at = 0.0
        self._serial_jobs = 0  # this many jobs must end before more than one runs at once
        self._serial_until_at = 0.0

    # stops for all jobs

    def close(self) -> None:
        """A drain has begun: no job starts any more."""
        self.is_open = False

    def pause(self) -> bool:
        """Start no job until `resume`. Return False if the supervisor was paused before."""
        was_paused, self.paused = self.paused, True
        return not was_paused

    def resume(self) -> bool:
        """Return False if the supervisor was not paused."""
        was_paused, self.paused = self.paused, False
        return was_paused

    def await_reload(self) -> None:
        """Files of the handlers were edited: start no job until `reload_ended`."""
        self.awaits_reload = True

    def reload_ended(self) -> None:
        """The code that runs is the newest one, or the newer code has failed."""
        self.awaits_reload = False

    def why_not(self) -> Stop | None:
        """Return why no job may start now, or None if jobs may start."""
        if not self.is_open:
            return Stop.DRAINING
        if self.paused:
            return Stop.PAUSED
        if self._ledgers.are_laden:
            return Stop.UNSETTLED
        return Stop.EDITED if self.awaits_reload else None

    def status(self) -> dict[str, Any]:
        """Return plain JSON: why no job starts, and up to 100 leased jobs that wait here."""
        stop, budget = self.why_not(), self._budget
        memory = {"limit_bytes": budget.limit_bytes, "used_bytes": budget.used_bytes()} if budget.limit_bytes else None
        return {
            "stop": stop and stop.value,
            "waits_for_room": self.waits_for_room,
            "memory": memory,
            "waiting": [held.lease.jid for held in islice(self._ledgers.ready, _MOST_WAITING)],
        }

    # what is granted

    def granted(self, leases: Sequence[LeaseRecord], handlers: Mapping[str, HandlerSettings]) -> None:
        """Note whether children separate trust domains, and whether jobs like these may be sent ahead.

        Jobs are sent ahead only while these jobs and all children are of one domain.
        """
        if handlers is not self._handlers:
            self._handlers = handlers
            trust_domains = {settings.trust_domain(klass) for klass, settings in handlers.items()}
            is_reused = self._slots.reuses_children or any(each.shares_child for each in handlers.values())
            self.separates_domains = is_reused and len(trust_domains) > 1
            self.largest_concurrency = max((each.concurrency for each in handlers.values()), default=1)
        self.leases_for_idle_only = not all(map(may_go_ahead, leases))
        if self.separates_domains and not self.leases_for_idle_only:
            at_hand = {handlers[lease.klass].trust_domain(lease.klass) for lease in leases if lease.klass in handlers}
            of_children = {child.trust_domain for child in self._slots if child.trust_domain is not None}
            self.leases_for_idle_only = len(of_children | at_hand) > 1

    # how many jobs at once

    @property
    def at_once(self) -> int:
        """How many jobs may run at once now."""
        return 1 if self.is_serial else self._slots.processes

    @property
    def is_serial(self) -> bool:
        """True if jobs run one at a time, because one of them may kill zygotes."""
        if self._serial_jobs and clock.monotonic() >= self._serial_until_at:
            self._serial_jobs = 0
        return self._serial_jobs > 0

    def run_serially(self, until_at: float) -> None:
        """Let jobs run one at a time until each that ran has had its turn, at most until then (monotonic s)."""
        self._serial_jobs, self._serial_until_at = self._slots.processes + 1, until_at

    def job_ended(self) -> None:
        """A job has ended, and its zygote lives: others may have room now."""
        self.jobs_ended += 1
        self.waits_for_room = False
        if self._serial_jobs:
            self._serial_jobs -= 1

    # room

    def fits(self, held: HeldLease, child: ChildHandle) -> bool:
        """Return whether the memory budget has room for the job, behind the jobs that `child` has."""
        budget, lease = self._budget, held.lease
        return not budget.limit_bytes or budget.fits(lease.klass, lease.jid, child.number)

    def given(self, held: HeldLease, child: ChildHandle) -> None:
        """The child has the job: reserve memory for it, and bind the child to its trust domain."""
        if self.separates_domains:
            child.trust_domain = held.trust_domain
        if self._budget.limit_bytes:
            lease = held.lease
            name = lease.jid if child.shared is None else child.shared.name
            self._budget.hold(child.number, lease.klass, name, ends=not lease.persistent)

    def child_gone(self, child: ChildHandle) -> None:
        """The child has ended, and its memory is free."""
        self._budget.gone(child.number)
        self.waits_for_room = False

    def wait_beside(self) -> None:
        """Jobs found no place beside others: lease none for shared children for a while, each time a longer one."""
        now_at = clock.monotonic()
        if now_at < self._beside_at:
            return
        self._beside_pause_s = min(_RETRY_S, max(_FIRST_PAUSE_S, 2 * self._beside_pause_s))
        self._beside_at = now_at + self._beside_pause_s
        self._timers.set(FIND_ROOM, self._beside_at, lambda _now_at: self.try_again())

    def found_place(self) -> None:
        """All jobs at hand have found a place."""
        self._beside_pause_s = self._beside_at = 0.0

    @property
    def may_lease_beside(self) -> bool:
        """True if jobs may be leased for shared children."""
        is_blocked = self.waits_for_room or self.awaits_reload or self.is_serial
        return not is_blocked and (not self._beside_at or clock.monotonic() >= self._beside_at)

    def wait_for_room(self) -> None:
        """Lease nothing until a job or child ends, or a second has passed: the jobs at hand do not fit."""
        self.waits_for_room = True
        self._timers.set(FIND_ROOM, clock.monotonic() + _RETRY_S, lambda _now_at: self.try_again())

    def try_again(self) -> None:
        """There may be room by now."""
        self.waits_for_room = False

    @property
    def may_lease_ahead(self) -> bool:
        """True if more jobs may be leased than idle children would start at once."""
        is_blocked = self.leases_for_idle_only or self.waits_for_room or self.awaits_reload
        return not is_blocked and not self.is_serial
