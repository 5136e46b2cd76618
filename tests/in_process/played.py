"""The parts of a worker inside of an application, whose server and jobs are played by the test."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import redis

from supervisor.engine.commands.leasing import Renewals, ResumeResult
from supervisor.engine.commands.settings import Timing
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.dialer import ALONE
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.book import Book
from supervisor.in_process.renewals import LeaseRenewals
from supervisor.in_process.settlements import Settlements

TTL_S = 9.0


def refusal(reply: str) -> StoreUnavailable:
    """The error of a command that the server has refused by this reply."""
    error = StoreUnavailable(reply)
    error.__cause__ = redis.ResponseError(reply)
    return error


class PlayedCalls:
    """A server: `answers[script]` has its next replies, errors among them. By default all leases go on."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.sent: list[Any] = []
        self.answers: dict[str, list[Any]] = {}

    @property
    def names(self) -> list[str]:
        return [command.script.name for command in self.sent]

    async def run(self, command: Any) -> Any:
        self.sent.append(command)
        name = command.script.name
        if answers := self.answers.get(name):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if name == "timing":
            return Timing(TTL_S, 5.0, 5.0, 1.0, 0)
        return ResumeResult(Renewals([1.0] * len(self._book.leases), 0.0, {}), 0) if name == "resume" else [True]


class PlayedJobs:
    """Jobs that only note what is done with them."""

    def __init__(self, book: Book, concurrency: int = 3) -> None:
        self.room = concurrency
        self.lost: dict[int, str] = {}
        self._book = book

    def begin(self, lease: Any) -> None:
        self._book.add(lease)
        self.room -= 1

    def lose(self, lease: Any, reason: str) -> None:
        self._book.forget(lease.token)
        self.lost[lease.token] = reason

    def lose_all(self) -> None:
        for lease in self._book.leases:
            self.lose(lease, "lease-lost")


class PlayedParts:
    def __init__(self, *queues: str) -> None:
        self.told: Counter[str] = Counter()
        self.identity = Identity()
        self.serving = ServedQueues(Queues(queues or ["q"]))
        self.times = LeaseTimes(TTL_S, self.serving, ALONE)
        self.book = Book(lambda: None)
        self.calls: Any = PlayedCalls(self.book)
        self.jobs: Any = PlayedJobs(self.book)
        self.renewals = LeaseRenewals(self.identity, self.times, self.book, self.jobs)
        self.settlements = Settlements(self.identity, self.book)
        self.lookups: Any = SimpleNamespace(
            connected=lambda: self.told.update(["connected"]), begin_anew=lambda: self.told.update(["begin_anew"])
        )
