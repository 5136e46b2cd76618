"""Answers what operators ask of a worker inside of an application. Runs in applications. No I/O."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from supervisor import clock
from supervisor.engine.commands import mailbox
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.book import Book
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.jobs import Jobs

_REFUSAL: Final = "it is a worker inside of an application, which has no processes to command; end the application"


class StatusAnswers:
    def __init__(
        self,
        identity: Identity,
        serving: ServedQueues,
        demand: LeaseDemand,
        jobs: Jobs,
        book: Book,
    ) -> None:
        self._identity = identity
        self._serving = serving
        self._demand = demand
        self._jobs = jobs
        self._book = book
        self._answers: list[tuple[OperatorRequest, dict[str, Any]]] = []
        self._began_at = clock.monotonic()

    def on_requests(self, requests: Sequence[OperatorRequest]) -> None:
        """Answer those of the standing `requests` that were not answered before."""
        for request in self._serving.take_requests(requests):
            self._answers.append((request, self._status() if request.what == "status" else {"error": _REFUSAL}))

    def due_at(self) -> float:
        return -math.inf if self._answers else math.inf

    def parts(self, _now_at: float) -> list[Part]:
        answers, self._answers = self._answers, []
        return [
            Part(mailbox.answer(self._identity.name, request.id, answer), lost=partial(self._on_unread, request))
            for request, answer in answers
        ]

    def _on_unread(self, request: OperatorRequest) -> None:
        self._serving.forget_request(request)
        self._serving.look_for_requests()

    def _status(self) -> dict[str, Any]:
        """Return the status in the form of a supervisor's, whose children are this worker's places for jobs."""
        jobs = self._jobs
        return {
            "worker": self._identity.name,
            "state": "serving" if self._demand.is_open else "draining",
            "uptime_s": round(clock.monotonic() - self._began_at, 3),
            "processes": {"now": jobs.concurrency, "fewest": jobs.concurrency, "most": jobs.concurrency},
            "busy": jobs.running,
            "idle": max(0, jobs.room),
            "children": [],
            "zygotes": [],
            "queues": list(self._serving.patterns),
            "order": self._serving.order,
            "redis": {"connected": True},  # else no request would have come
            "counts": {"completed": 0, "retried": 0, "failed": 0, **self._book.counts},
        }
