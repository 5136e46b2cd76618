"""Takes in granted leases: what limits each job has, and whether this supervisor can run it. Runs in the master.

Accepted jobs are ready in the ledger. `Placing` sends them to children.
"""

from collections.abc import Callable, Mapping
from typing import Final

from supervisor.config import RunConfig
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LONGEST_UNKNOWN_S, Released, Unknown
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.suspects import Suspects
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.pace import Pace
from supervisor.messages import HandlerSettings

#: A job that must not start twice is offered again after this time, if too few replicas have its lease.
_UNACKNOWLEDGED_S: Final = 1.0
_NO_SETTINGS: Final = HandlerSettings()


class Intake:
    def __init__(
        self,
        config: RunConfig,
        ledgers: Ledgers,
        pace: Pace,
        admission: Admission,
        suspects: Suspects,
        look_at_code: Callable[[], None] | None = None,
    ) -> None:
        """`look_at_code()` is called before jobs are judged: edited code may have other handlers. None: never."""
        self._config = config
        self._ledgers = ledgers
        self._pace = pace
        self._admission = admission
        self._suspects = suspects
        self._look_at_code = look_at_code

    @property
    def ready_count(self) -> int:
        return len(self._ledgers.ready)

    def accept(
        self, grant: Grant, handlers: Mapping[str, HandlerSettings], are_first: bool = False, shard: int = 0
    ) -> None:
        """Enter leases that a shard has granted in its ledger. `Placing.place` is to follow.

        `are_first`: the jobs go before those that are ready already.
        """
        before = self.ready_count
        ledger, is_divided = self._ledgers.by_shard[shard], self._ledgers.is_divided
        self._admission.granted(grant.leases, handlers)
        if self._look_at_code is not None:
            self._look_at_code()
        for index, lease in enumerate(grant.leases):
            settings = handlers.get(lease.klass)
            held = HeldLease(
                lease,
                settings or _NO_SETTINGS,
                self._limit_s(lease, settings),
                None if lease.persistent else self._pace.of(lease.klass),
                index < grant.starting,
                self._memory_limit_bytes(settings),
                shard,
                is_divided,
            )
            if held.settings.shares_child:
                held.suspects_at_once = self._suspects.at_once(lease)
            ledger.add(held)
            if lease.at_most_once and not grant.acknowledged:
                ledger.end(held, Released(lease, started=False, delay=_UNACKNOWLEDGED_S))
            else:
                self._judge(held, settings)
        if are_first:
            self._ledgers.ready.rotate(self.ready_count - before)

    def judge_again(self, handlers: Mapping[str, HandlerSettings]) -> None:
        """Give all ready jobs the settings of new code."""
        ready = self._ledgers.ready
        for held in [ready.popleft() for _ in range(len(ready))]:
            settings = handlers.get(held.lease.klass)
            if settings is not None:
                held.change(settings, self._limit_s(held.lease, settings), self._memory_limit_bytes(settings))
            self._judge(held, settings)

    def _judge(self, held: HeldLease, settings: HandlerSettings | None) -> None:
        """Make the job ready, or end the lease. `settings`: those of its handler; None: the klass has no handler."""
        lease, ledger = held.lease, self._ledgers.by_shard[held.shard]
        if settings is None and self._admission.awaits_reload:
            ledger.end(held, Released(lease, started=False))  # the new code may have a handler
        elif settings is None and self._admission.is_open:
            ledger.end(held, Unknown(lease, LONGEST_UNKNOWN_S))
        elif settings is not None and settings.misses_mark(lease):
            ledger.end(held, Released(lease, started=False))
        else:
            self._ledgers.ready.append(held)

    def _limit_s(self, lease: LeaseRecord, settings: HandlerSettings | None) -> float:
        if self._config.debug:
            return 0.0
        return (settings or _NO_SETTINGS).limit_s(lease, self._config.job_timeout_s)

    def _memory_limit_bytes(self, settings: HandlerSettings | None) -> int:
        own = settings.memory_bytes if settings is not None else None
        return self._config.memory_limit_bytes if own is None else own
