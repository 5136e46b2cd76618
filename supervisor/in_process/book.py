"""Keeps the leases of a worker inside of an application, and its news for Redis. Runs in applications. No I/O.

A lease stays in the book until Redis has accepted the job's outcome, so that it is renewed until then.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Answer, Outcome
from supervisor.engine.worker.known_leases import started
from supervisor.messages import ProgressReport

_LOST: Final = "the job has ended, or its lease is not this worker's any more: nothing is stored; end the work"


#: The outcomes that are logged, with their levels.
_LOGGED: Final = {"retried": logging.WARNING, "failed": logging.ERROR, "died": logging.ERROR, "misfit": logging.ERROR}

log = logging.getLogger("leasehold")


@dataclass(slots=True)
class PendingStore:
    """A checkpoint, or the result of a `step`, and the job that waits until it is stored."""

    lease: LeaseRecord
    state: bytes
    step: str
    stored: asyncio.Future[None]

    @property
    def renewal(self) -> Renewal:
        return started(self.lease, state=self.state, step=self.step)


class Book:
    def __init__(self, on_news: Callable[[], None]) -> None:
        """`on_news` is called when there is something to tell."""
        self._on_news = on_news
        self._leases: dict[int, LeaseRecord] = {}  # by token
        self._ended: deque[Outcome] = deque()
        self._stores: deque[PendingStore] = deque()
        self._progress: dict[int, ProgressReport] = {}
        self.counts: Counter[str] = Counter()  # of outcomes, as `leasehold status` names them

    @property
    def leases(self) -> list[LeaseRecord]:
        return list(self._leases.values())

    @property
    def has_outcomes(self) -> bool:
        return bool(self._ended)

    @property
    def has_reports(self) -> bool:
        return bool(self._stores or self._progress)

    @property
    def has_news(self) -> bool:
        """True if there is anything to tell Redis."""
        return self.has_outcomes or self.has_reports

    def add(self, lease: LeaseRecord) -> None:
        self._leases[lease.token] = lease

    def holds(self, token: int) -> bool:
        return token in self._leases

    # outcomes

    def end(self, outcome: Outcome) -> None:
        """The job has ended so."""
        self._ended.append(outcome)
        self._on_news()

    def take_outcomes(self) -> list[Outcome]:
        """Return outcomes that are to be settled, at most as many as one call settles."""
        return [self._ended.popleft() for _ in range(min(MOST, len(self._ended)))]

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Redis has not got these outcomes, and has changed nothing."""
        self._ended.extendleft(reversed(outcomes))
        self._on_news()

    def drop_outcomes(self) -> None:
        self._ended.clear()

    def told(self, outcome: Outcome, answer: Answer) -> None:
        """Count and log an outcome that Redis has answered."""
        is_stale = answer is False or answer is None
        what = "stale" if is_stale else type(outcome).__name__.lower()
        self.counts[what] += 1
        if what in _LOGGED:
            lease = outcome.lease
            message = getattr(outcome, "message", None) or ""
            log.log(_LOGGED[what], "%s of queue %s has %s: %s", lease.jid, lease.queue, what, message)

    def forget(self, token: int) -> None:
        """The lease is over: Redis has accepted its outcome, or has given it to another worker."""
        self._leases.pop(token, None)
        self._progress.pop(token, None)
        for store in [store for store in self._stores if store.lease.token == token]:
            self._stores.remove(store)
            refuse(store)

    # reports

    def report(self, token: int, progress: ProgressReport) -> None:
        if token in self._leases:
            self._progress[token] = progress
            self._on_news()

    async def store(self, token: int, state: bytes, step: str) -> None:
        """Have a checkpoint or the result of a step stored, and wait until it is. Raises LeaseLost."""
        if token not in self._leases:
            raise LeaseLost(_LOST)
        store = PendingStore(self._leases[token], state, step, asyncio.get_running_loop().create_future())
        self._stores.append(store)
        self._on_news()
        await store.stored

    def take_progress(self) -> list[tuple[LeaseRecord, Renewal]]:
        progress, self._progress = self._progress, {}
        return [
            (lease, started(lease, progress=report))
            for lease, report in ((self._leases[token], report) for token, report in progress.items())
        ]

    def take_stores(self) -> list[PendingStore]:
        """Return what is to be stored: at most one store of each job, so that they keep their order."""
        by_token: dict[int, PendingStore] = {}
        for store in self._stores:
            if len(by_token) < MOST:
                by_token.setdefault(store.lease.token, store)
        for store in by_token.values():
            self._stores.remove(store)
        return list(by_token.values())

    def store_again(self, stores: Sequence[PendingStore]) -> None:
        """Redis may not have got these."""
        self._stores.extendleft(reversed(stores))


def accept(store: PendingStore) -> None:
    if not store.stored.done():
        store.stored.set_result(None)


def refuse(store: PendingStore) -> None:
    if not store.stored.done():
        store.stored.set_exception(LeaseLost(_LOST))
