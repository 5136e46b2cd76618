"""Decides whether the next exchange leases, and how many jobs. Runs in applications. No I/O."""

from collections.abc import Callable, Sequence

from supervisor.engine.model.bounds import MOST
from supervisor.engine.worker.exchange import Wanted
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.jobs import Jobs


class LeaseDemand:
    def __init__(
        self, jobs: Jobs, serving: ServedQueues, klasses_once: Sequence[str], on_news: Callable[[], None]
    ) -> None:
        """`klasses_once`: klasses whose jobs never start twice. `on_news` is called when a lease may be due."""
        self._jobs = jobs
        self._serving = serving
        self._klasses_once = klasses_once
        self._on_news = on_news
        self._is_due = True
        self._is_woken = False
        self.is_open = True  # the worker does not drain

    def lease_soon(self, woken: bool = False) -> None:
        """Lease with the next exchange: there may be jobs. `woken`: a wake-up key has called."""
        self._is_due, self._is_woken = True, self._is_woken or woken
        self._on_news()

    def close(self) -> None:
        """Lease nothing more."""
        self.is_open = False

    @property
    def wants_jobs(self) -> bool:
        """True if the worker is to lease, and could run a job more."""
        return self._is_due and self.is_open and self._jobs.room > 0

    @property
    def is_due(self) -> bool:
        """True if the next exchange leases. While globs match nothing there is no queue to lease from."""
        return self.wants_jobs and bool(self._serving.names)

    def take(self) -> Wanted | None:
        """Return what the exchange that begins leases."""
        if not self.is_due:
            return None
        count = min(self._jobs.room, MOST)
        wanted = Wanted(count, count, self._is_woken, self._klasses_once)
        self._is_due = self._is_woken = False
        return wanted
