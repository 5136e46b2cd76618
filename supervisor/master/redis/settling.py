"""Sends the outcomes of jobs to their shard and says what became of them. Runs in the master. Does no I/O."""

import math
from collections.abc import Sequence

from supervisor import clock
from supervisor.engine.commands import settling
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST_ENDS
from supervisor.engine.model.outcomes import LATER, Answer
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.master.model import outcome_log, outcome_rules
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.ledger import MOST_BYTES, MOST_WAITING
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.speaker import TimedSpeaker
from supervisor.ops.events import Events


class Settling(TimedSpeaker):
    def __init__(
        self,
        identity: Identity,
        ledgers: Ledgers,
        leasing: Leasing,
        backlog: Backlog,
        failures: RecentFailures,
        events: Events,
        counts: MasterCounts,
        shard: int = 0,
    ) -> None:
        self._identity = identity
        self._ledgers = ledgers
        self._ledger = ledgers.by_shard[shard]
        self._leasing = leasing
        self._backlog = backlog
        self._failures = failures
        self._events = events
        self._counts = counts
        self._shard = shard
        self._completed: list[HeldLease] = []  # settled, and neither logged nor counted

    def deadline_at(self) -> float:
        return -math.inf if self._ledger.has_ended else self._ledger.settle_at

    def parts(self, now_at: float) -> Sequence[Part]:
        """Return the outcomes that go with the exchange that begins: as many as one call may end."""
        if not self._ledger.has_ended and now_at < self._ledger.settle_at:
            return ()
        outcomes = self._ledger.settle_next(MOST_ENDS, now_at)
        settle = settling.settle(self._identity.name, outcomes, number=self._identity.next_number)
        # Redis refuses only the other script, which needs memory, for a lack of it, and then does nothing.
        refused = {} if settle.script is scripts.SETTLE else {"OOM": self._on_full}
        return [Part(settle, self._on_settled, refused, must=True, again=True)]

    def _on_settled(self, answers: Sequence[Answer]) -> None:
        self._backlog.move(self._shard)
        if self._ledgers.are_laden or self._ledgers.hold_back(self._ledger):
            self._leasing.lease_soon()  # nothing was leased meanwhile
        for held, verdict in zip(self._ledger.settled(), answers, strict=True):
            if verdict is True and outcome_log.is_over(held):
                self._completed.append(held)
            elif verdict == LATER:
                self._ledger.settle_again(held)
            elif (instead := outcome_rules.of_verdict(held.lease, verdict)) is not None:
                self._ledger.end_again(held, instead)
            else:  # at once, because the job may begin again with this very answer
                self._failures.remember(held, outcome_log.say(self._events, self._counts, held, verdict))
                held.outcome = None  # its child is remembered with it, and it may hold what followed

    def log_completed(self) -> None:
        """Log and count what has completed. The next exchange may begin first, to give Redis its work meanwhile."""
        if self._completed:
            outcome_log.say_completed(self._events, self._counts, self._completed)
            for held in self._completed:
                held.outcome = None
            self._completed.clear()

    def _on_full(self, _message: str) -> None:
        waiting = self._ledger.refused_for_memory(clock.monotonic())
        share, what = (2, "job of this shard is leased") if self._ledgers.is_divided else (1, "job starts")
        self._events.emit_throttled(
            "redis.failed",
            "the memory of Redis is full: completions with jobs to put or large data wait, and are tried again until"
            " they get in; their leases go on;"
            f" above {MOST_WAITING // share} of them, or {(MOST_BYTES >> 20) // share} MB, no further {what}",
            waiting=waiting,
        )

    def end_put_off(self) -> None:
        """Wait no longer for memory in Redis: jobs whose completions it has refused run again, or have failed."""
        self._ledger.end_put_off(outcome_rules.of_put_off)
