"""Shares one subscription to events among all tabs. Runs in the web server's process.

Must not keep events: the jobs' histories have the earlier ones.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from supervisor.engine.model.errors import LeaseholdError
from supervisor.web.hiding import Hiding
from supervisor.web.packing import packed

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient

#: Events that a slow tab may be behind. It is told how many it has missed.
_MOST_BEHIND: Final = 1000
#: Tabs that may listen at once.
MOST_LISTENERS: Final = 200
#: A comment is sent after this silence, so that a tab which is gone is noticed.
_SILENCE_S: Final = 15.0


class _Subscriber:
    """The events that one tab has not been sent yet."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_BEHIND)
        self.missed = 0

    def tell(self, chunk: bytes | None) -> None:
        try:
            self.waiting.put_nowait(chunk)
        except asyncio.QueueFull:
            self.missed += 1


class EventHub:
    """Reads the stream of events while a page listens."""

    def __init__(self, client: "AsyncClient", hiding: Hiding) -> None:
        self._client = client
        self._hiding = hiding
        self._listeners: set[_Subscriber] = set()
        self._reading: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Return True if no further tab may listen."""
        return len(self._listeners) >= MOST_LISTENERS

    async def stream(self, may_look: Callable[[], bool]) -> AsyncGenerator[bytes]:
        """Yield events in the format of server-sent events, until the hub is closed or Redis is away.

        It ends as well once the visitor may no longer look: before the next event, or within 15 s. All that happens
        after the first chunk is among them.
        """
        listener = _Subscriber()
        self._listeners.add(listener)
        if self._reading is None or self._reading.done():
            self._begun = asyncio.Event()
            self._reading = asyncio.create_task(self._read(self._begun))
        try:
            await self._begun.wait()
            yield b"retry: 3000\n\n"
            while True:
                try:
                    chunk = await asyncio.wait_for(listener.waiting.get(), _SILENCE_S)
                except TimeoutError:
                    if self._reading is None or self._reading.done() or not may_look():
                        return  # there was no room to be told of the end
                    yield b": still there\n\n"
                    continue
                if chunk is None or not may_look():
                    return
                if listener.missed:
                    missed, listener.missed = listener.missed, 0
                    yield b"event: missed\ndata: %d\n\n" % missed
                yield b"data: " + chunk + b"\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                await self.close()

    async def close(self) -> None:
        """End the subscription."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
            self._end(self._begun)

    async def _read(self, begun: asyncio.Event) -> None:
        try:
            async with self._client.events() as events:
                begun.set()
                async for event in events:
                    chunk = packed(self._hidden(event))
                    for listener in self._listeners:
                        listener.tell(chunk)
        except LeaseholdError:
            pass  # a tab that loses its stream connects again, and shows why it cannot
        finally:
            self._end(begun)

    def _hidden(self, event: Any) -> dict[str, Any]:
        """Return what a tab is told of an event. Any program may publish any fields."""
        shown = {name: value for name, value in asdict(event).items() if value not in (None, {}, False)}
        hidden: dict[str, Any] = self._hiding.hide(shown)
        return {**hidden, "fields": self._hiding.hide(event.fields, is_foreign=True)} if event.fields else hidden

    def _end(self, begun: asyncio.Event) -> None:
        """End all streams, also those that wait for the subscription."""
        begun.set()
        for listener in self._listeners:
            listener.tell(None)
