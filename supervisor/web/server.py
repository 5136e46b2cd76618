"""Serves the page by HTTP until a signal ends it. Runs in the process of `leasehold web`."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import uvicorn

from supervisor.web.composition import WebApp

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient

#: Requests that are under way at the end have this time.
_LAST_S: Final = 1
_MOST_CONNECTIONS: Final = 500


Make = Callable[[], "AsyncClient"]
Compose = Callable[["AsyncClient"], WebApp]


def serve(make: Make, compose: Compose, at: socket.socket) -> None:
    """Serve at a listening socket until SIGTERM or SIGINT."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server ends in order, and then raises it again
    with contextlib.suppress(KeyboardInterrupt):  # the regular end
        asyncio.run(_serve(make, compose, at))


async def _serve(make: Make, compose: Compose, at: socket.socket) -> None:
    async with make() as client:
        application = compose(client)
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_LAST_S,
        )
        await _Uvicorn(config, application).serve(sockets=[at])


class _Uvicorn(uvicorn.Server):
    """Ends the streams of events before it waits for its connections."""

    def __init__(self, config: uvicorn.Config, application: WebApp) -> None:
        super().__init__(config)
        self._application = application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._application.end_streams()
        await super().shutdown(sockets)
