"""Polls Redis and the supervisors once for all tabs. Runs in the web server's process.

Must not poll while nobody looks, nor change anything.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from supervisor import clock
from supervisor.cli.lib.served import is_present, is_status
from supervisor.cli.top.model import Model, Snapshot, Status
from supervisor.engine.model.errors import ReadOnlyReplica

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.commands.recent import Recent
    from supervisor.engine.commands.workers import WorkerInfo

#: A snapshot of this age is shown without another look.
_FRESH_S: Final = 1.0
#: A snapshot of this age is shown while the next one is taken. Older ones are not shown.
_SHOWN_S: Final = 15.0
#: Percentiles of this age are shown without another look. They change slowly, and are of many queues.
_RECENT_S: Final = 30.0
#: How long supervisors have to answer. One that is stopped delays the first page only.
_PATIENCE_S: Final = 1.0
#: Queues whose statistics are read, one call each.
_MOST_STATS: Final = 60


class SharedModel:
    """The model of `leasehold top`, for every page that wants it."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self._model = Model()
        self._polling: asyncio.Task[None] | None = None
        self._recent: dict[str, tuple[float, Recent]] = {}  # by queue, with when it was read

    async def now(self) -> Model:
        """Return the model, at most some seconds old. Raises LeaseholdError if Redis cannot be asked."""
        age_s = self._age_s()
        if age_s >= _FRESH_S:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
            if age_s >= _SHOWN_S:
                await asyncio.shield(self._polling)
            else:  # its error, if there is one, is the next page's that has to wait
                self._polling.add_done_callback(asyncio.Task.exception)
        return self._model

    async def recent(self, queues: Sequence[str]) -> "list[Recent]":
        """Return how long the jobs of these queues have waited and run, at most 30 s old."""
        now_at = clock.monotonic()
        known = {name: each for name, each in self._recent.items() if now_at - each[0] < _RECENT_S}
        missing = [name for name in queues if name not in known]
        for each in await asyncio.gather(*(self._client.queue(name).recent() for name in missing)):
            known[each.queue] = now_at, each
        self._recent = known
        return [known[name][1] for name in queues]

    async def close(self) -> None:
        """End a poll that is under way."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _age_s(self) -> float:
        snapshot = self._model.snapshot
        return clock.monotonic() - snapshot.at if snapshot else _SHOWN_S

    async def _poll(self) -> None:
        client = self._client
        queues, failed, workers = await asyncio.gather(client.queues(), client.failed(), client.workers())
        asked: list[Awaitable[object]] = [client.queue(name).stats() for name in list(queues)[:_MOST_STATS]]
        stats = dict(zip(queues, await asyncio.gather(*asked), strict=False))
        status = await self._ask(workers)
        self._model.take(Snapshot(clock.monotonic(), clock.unix(), queues, stats, failed, workers, status))  # type: ignore[arg-type]

    async def _ask(self, workers: "list[WorkerInfo]") -> dict[str, Status | None]:
        try:
            answers = await self._client.ask(None, "status", _PATIENCE_S)
        except ReadOnlyReplica:  # a replica cannot pass a question on
            return {worker.name: None for worker in workers if is_present(worker)}
        return {name: answer if is_status(answer) else None for name, answer in answers.items()}
