"""Sends the outcomes of jobs to Redis. Runs in applications."""

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from supervisor.engine.commands import settling
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LATER, Answer, Outcome, needs_memory
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.in_process.book import Book
from supervisor.master.model import outcome_rules

#: Outcomes that Redis refuses for want of memory are sent again after this time.
_FULL_S: Final = 1.0

log = logging.getLogger("leasehold")


class Settlements:
    def __init__(self, identity: Identity, book: Book) -> None:
        self._identity = identity
        self._book = book

    def due_at(self) -> float:
        return -math.inf if self._book.has_outcomes else math.inf

    def parts(self, _now_at: float) -> list[Part]:
        if not self._book.has_outcomes:
            return []
        outcomes = self._book.take_outcomes()
        command = settling.settle(self._identity.name, outcomes, number=self._identity.next_number)
        put_back = partial(self._book.put_back, outcomes)
        refused = {"OOM": partial(self._on_full, outcomes)}
        return [Part(command, partial(self._on_settled, outcomes), refused, again=True, lost=put_back)]

    def _on_settled(self, outcomes: Sequence[Outcome], answers: Sequence[Answer]) -> None:
        for outcome, answer in zip(outcomes, answers, strict=True):
            lease = outcome.lease
            assert isinstance(lease, LeaseRecord)
            if (instead := outcome if answer == LATER else outcome_rules.of_verdict(lease, answer)) is not None:
                self._book.end(instead)
                continue
            self._book.forget(lease.token)
            self._book.told(outcome, answer)

    def _on_full(self, outcomes: Sequence[Outcome], message: str) -> None:
        """The memory of Redis is full: what needs some is sent again later. When the worker leaves, it goes back."""
        log.warning("%s", message)
        laden = [outcome for outcome in outcomes if needs_memory(outcome.arguments(self._identity.name, 0.0))]
        self._book.put_back([outcome for outcome in outcomes if outcome not in laden])
        asyncio.get_running_loop().call_later(_FULL_S, self._book.put_back, laden)
