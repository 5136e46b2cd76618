"""Answers what operators ask of a worker inside of an application. Runs in applications. No I/O."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.in_process.book import Book
from supervisor.in_process.jobs import Jobs

if TYPE_CHECKING:
    from supervisor.in_process.exchanges import Exchanges

_REFUSAL: Final = "it is a worker inside of an application, which has no processes to command; end the application"


class StatusAnswers:
    def __init__(self, jobs: Jobs, book: Book, exchanges: "Callable[[], Exchanges]") -> None:
        self._jobs = jobs
        self._book = book
        self._exchanges = exchanges
        self._began_at = clock.monotonic()

    def answer_to(self, request: OperatorRequest) -> dict[str, Any]:
        """Return plain JSON. An object with "error" is a refusal, and says why."""
        return self._status() if request.what == "status" else {"error": _REFUSAL}

    def _status(self) -> dict[str, Any]:
        """Return the status in the form of a supervisor's, whose children are this worker's places for jobs."""
        exchanges, jobs = self._exchanges(), self._jobs
        return {
            "worker": exchanges.identity.name,
            "state": "serving" if exchanges.is_leasing else "draining",
            "uptime_s": round(clock.monotonic() - self._began_at, 3),
            "processes": {"now": jobs.concurrency, "fewest": jobs.concurrency, "most": jobs.concurrency},
            "busy": jobs.running,
            "idle": max(0, jobs.room),
            "children": [],
            "zygotes": [],
            "queues": list(exchanges.serving.patterns),
            "order": exchanges.serving.order,
            "redis": {"connected": exchanges.is_connected},
            "counts": {"completed": 0, "retried": 0, "failed": 0, **self._book.counts},
        }
