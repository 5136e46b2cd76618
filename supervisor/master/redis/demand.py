"""Asks for leases: as many jobs as `Capacity` allows, and none while the master takes no jobs. Runs in the master.

Does no I/O.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from supervisor.engine.model.bounds import MOST
from supervisor.engine.worker.exchange import Wanted
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.capacity import Capacity
from supervisor.master.model.ledger import Ledger
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import HandlerSettings

#: A lease behind a wait takes at most this many jobs, or one for each idle child. If the master dies meanwhile, no more
#: jobs than these wait for their leases to expire.
MOST_BEHIND_WAIT: Final = 16


class Demand:
    def __init__(self, ledger: Ledger, admission: Admission, capacity: Capacity, zygotes: Zygotes) -> None:
        self._ledger = ledger
        self._admission = admission
        self._capacity = capacity
        self._zygotes = zygotes

    # what is held

    @property
    def is_settled(self) -> bool:
        """True if Redis has accepted the end of every lease."""
        return not self._ledger

    @property
    def is_at_rest(self) -> bool:
        """True if the master holds nothing, although it takes jobs."""
        return self.takes_jobs and not self._ledger and not self._zygotes.reloading

    # what can start

    @property
    def is_open(self) -> bool:
        """False once the master drains: it leases nothing any more."""
        return self._admission.is_open

    @property
    def takes_jobs(self) -> bool:
        """True if jobs leased now have, or will have, children to run them."""
        return self._zygotes.ready and self._admission.why_not() is None

    @property
    def can_start(self) -> bool:
        """True if a job leased now would start at once."""
        return self.takes_jobs and (self._capacity.startable() > 0 or self._capacity.shared_room() > 0)

    @property
    def has_ready_jobs(self) -> bool:
        return bool(self._ledger.ready)

    @property
    def handlers(self) -> Mapping[str, HandlerSettings]:
        """By klass."""
        return self._zygotes.handlers

    @property
    def klasses(self) -> Collection[str]:
        """The klasses whose jobs peers may leave to this master."""
        return self._zygotes.handlers if self._admission.is_open else ()

    @property
    def shapes(self) -> dict[str, str]:
        """The digests of the data that the handlers take, by klass."""
        handlers = self._zygotes.handlers.items() if self._admission.is_open else ()
        return {klass: settings.shape for klass, settings in handlers if settings.shape}

    @property
    def schemas(self) -> Mapping[str, str]:
        """The schemas of these data as JSON, by digest."""
        return self._zygotes.schemas if self._admission.is_open else {}

    @property
    def concurrency(self) -> int:
        """How many jobs of any handler one child runs at once: the least of all handlers."""
        return min((settings.concurrency for settings in self._zygotes.handlers.values()), default=1)

    @property
    def release(self) -> str:
        """The name of the code's release. Empty: it has none."""
        return self._zygotes.release

    @property
    def recurrences(self) -> Mapping[str, dict[str, Any]]:
        """The recurrences that the handlers declare, by klass."""
        return self._zygotes.recurrences

    # how many to lease

    def now(self, woken: bool, coming: int) -> Wanted | None:
        """Return what to lease now beside the `coming` jobs, which are granted and not placed yet.

        After a wake-up (`woken`) the answer may be a lease of no job, which passes the wake-up on.
        """
        is_able = self.takes_jobs and len(self._ledger.ready) == coming
        count, starting = self._capacity.to_lease(coming) if is_able else (0, 0)
        return Wanted(min(count, MOST), starting, woken, self._zygotes.once) if count or woken else None

    def for_freed_slots(self) -> Wanted | None:
        """Return what to lease for the slots of limits that the next exchange frees.

        Other jobs are ready, so nothing else is leased yet: a limit would start one job for each batch of the others.
        """
        count = self._ledger.slots_freed if self._ledger.ready and self.takes_jobs else 0
        return Wanted(min(count, MOST), 0, once=self._zygotes.once, ahead=True) if count else None

    def behind_wait(self) -> Wanted:
        count, starting = self._capacity.to_lease()
        count = min(count, max(starting, MOST_BEHIND_WAIT), MOST)
        return Wanted(count, 0, woken=True, once=self._zygotes.once)
