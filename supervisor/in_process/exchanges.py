"""The loop of a worker: exchanges with Redis when something is due. Runs in applications.

One exchange settles, renews, stores and leases in one round trip. One exchange at a time: so what a job reports keeps
its order.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from supervisor import clock
from supervisor.engine.worker.exchange import Part
from supervisor.in_process.book import Book
from supervisor.in_process.session import WorkerSession


class PartSource(Protocol):
    """A part of the worker that speaks with Redis by exchanges."""

    def due_at(self) -> float:
        """Return when an exchange is due for it, if nothing happens before (monotonic s)."""

    def parts(self, now_at: float) -> list[Part]:
        """Return what is due, to go with the exchange that begins now."""


class Exchanges:
    def __init__(self, session: WorkerSession, sources: Sequence[PartSource], book: Book, news: asyncio.Event) -> None:
        """`sources`: in the order of their parts in an exchange. `news` is set when something is to be sent."""
        self._session = session
        self._sources = sources
        self._book = book
        self._news = news
        self._is_leaving = False

    def leave(self) -> None:
        """Let `serve` end once all is told."""
        self._is_leaving = True
        self._news.set()

    async def serve(self) -> None:
        """Exchange until the worker leaves and has told all. Raises what `WorkerSession.leave` raises."""
        while not self._is_leaving or self._book.has_news:
            await self._until_due()
            now_at = clock.monotonic()
            await self._session.exchange([part for source in self._sources for part in source.parts(now_at)])
        await self._session.leave()

    async def _until_due(self) -> None:
        while not self._is_leaving and (due_at := self._due_at()) > clock.monotonic():
            self._news.clear()
            try:
                async with asyncio.timeout(None if due_at == math.inf else due_at - clock.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                return

    def _due_at(self) -> float:
        return min(source.due_at() for source in self._sources)
