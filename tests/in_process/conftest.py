"""The application of a test: a coroutine in an event loop of its own, which leaves no task, thread, lease or worker."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from supervisor.child import handlers
from supervisor.engine.client.async_client import AsyncClient
from tests.lengths import SOON_S

#: Keys of a living worker in Redis, by the part after the prefix.
_OF_WORKERS = ("worker:", "held:", "mail:", "skills:", "shapes:", "asks:")


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch):
    """Forget the handlers that a test defines, so that other tests do not see them."""
    monkeypatch.setattr(handlers, "_registered", [*handlers.registered()])


@pytest.fixture
def application(server, namespace) -> Callable[[Callable[[AsyncClient], Awaitable[None]]], None]:
    """Runs `work(client)`, and then shows that nothing is left."""

    async def main(work, url):
        async with AsyncClient(url, namespace) as client:
            async with asyncio.timeout(3 * SOON_S):
                await work(client)
        async with asyncio.timeout(SOON_S):
            while asyncio.all_tasks() != {asyncio.current_task()}:
                await asyncio.sleep(0.01)

    def run(work, url=server.url):
        asyncio.run(main(work, url))
        for thread in threading.enumerate():
            if thread.name.startswith("leasehold"):
                thread.join(SOON_S)
                assert not thread.is_alive()
        prefix = f"{{{namespace}}}:"
        keys = [key.decode().removeprefix(prefix) for key in server.redis.scan_iter(f"{prefix}*", count=1000)]
        assert [key for key in keys if key.startswith(_OF_WORKERS)] == []

    return run
