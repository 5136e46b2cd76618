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
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import HandlerSettings

#: A lease behind a wait takes at most this many jobs, or one for each idle child. If the master dies meanwhile, no more
#: jobs than these wait for their leases to expire.
MOST_BEHIND_WAIT: Final = 16


class Demand:
    def __init__(self, ledgers: Ledgers, admission: Admission, capacity: Capacity, zygotes: Zygotes) -> None:
        self._ledgers = ledgers
        self._admission = admission
        self._capacity = capacity
        self._zygotes = zygotes
        #: How many jobs the exchanges under way ask for, each of its own shard. They share the room.
        self.asked = 0

    # what is held

    @property
    def is_settled(self) -> bool:
        """True if Redis has accepted the end of every lease."""
        return self._ledgers.are_empty

    @property
    def is_divided(self) -> bool:
        """True if the namespace has several shards."""
        return self._ledgers.is_divided

    @property
    def is_at_rest(self) -> bool:
        """True if the master holds nothing, although it takes jobs."""
        return self.takes_jobs and self._ledgers.are_empty and not self._zygotes.reloading

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
        """True if a job leased now would start at once, beside those that are asked for."""
        asked = self.asked
        return self.takes_jobs and (self._capacity.startable() > asked or self._capacity.shared_room() > asked)

    @property
    def has_ready_jobs(self) -> bool:
        return bool(self._ledgers.ready)

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

    def now(self, ledger: Ledger, woken: bool, coming: int) -> Wanted | None:
        """Return what to lease now from the shard of `ledger` beside the `coming` jobs.

        These are granted and not placed yet. After a wake-up (`woken`) the answer may be a lease of no job, which
        passes the wake-up on.
        """
        is_able = self.takes_jobs and len(self._ledgers.ready) == coming and not self._ledgers.hold_back(ledger)
        count, starting = self._capacity.to_lease(coming + self.asked) if is_able else (0, 0)
        return Wanted(min(count, MOST), starting, woken, self._zygotes.once) if count or woken else None

    def for_freed_slots(self, ledger: Ledger) -> Wanted | None:
        """Return what to lease for the slots of limits that the next exchange of this shard frees.

        Other jobs are ready, so nothing else is leased yet: a limit would start one job for each batch of the others.
        """
        count = ledger.slots_freed if self._ledgers.ready and self.takes_jobs else 0
        return Wanted(min(count, MOST), 0, once=self._zygotes.once, ahead=True) if count else None

    def behind_wait(self) -> Wanted:
        """Return what to lease at the end of a wait. Several shards wait at once: each asks for a part of the room."""
        count, starting = self._capacity.to_lease(self.asked)
        count = min(count, max(starting, MOST_BEHIND_WAIT), MOST)
        if count and self.is_divided:
            count = max(1, count // len(self._ledgers.by_shard))
        return Wanted(count, 0, woken=True, once=self._zygotes.once)
