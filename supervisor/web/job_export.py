"""Writes all jobs of a choice as a table or as lines of JSON, step by step. Runs in the web server's process.

A step is two calls to Redis of some milliseconds, so that pages and jobs go on meanwhile. Must not keep the rows.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from supervisor import clock
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import choices, job_queries
from supervisor.web.export import csv_lines
from supervisor.web.packing import packed
from supervisor.web.pages.jobs import COLUMNS, row

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.web.hiding import Hiding

#: The formats, with their media types.
FORMATS: Final = {"csv": "text/csv", "jsonl": "application/jsonl"}
#: Exports that may be under way at once.
MOST_AT_ONCE: Final = 4
#: Jobs of a step. Other answers wait while their rows are written.
_STEP: Final = 200
#: A visitor takes each step within this time, or makes room for others.
_SEND_S: Final = 60.0


class Forbidden(Exception):
    """The visitor may no longer look."""


class ExportResponse(StreamingResponse):
    """Streams an export. A visitor who takes no more of it loses the connection."""

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        """Send all chunks. Raises TimeoutError if one is not taken in time, and Forbidden after a logout."""

        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(_SEND_S):
                await send(message)

        try:
            await super().stream_response(send_soon)
        finally:
            await self.body_iterator.aclose()


class JobExports:
    """The exports of one server."""

    def __init__(self, client: "AsyncClient", hiding: "Hiding") -> None:
        self._client = client
        self._hiding = hiding
        self._under_way = 0

    @property
    def is_full(self) -> bool:
        """Return True if no further export may begin."""
        return self._under_way >= MOST_AT_ONCE

    async def chunks(self, choice: choices.Choice, form: str, may_look: Callable[[], bool]) -> AsyncGenerator[bytes]:
        """Yield an export, the headings of a table first. It has no job that is put after it has begun.

        Jobs come in the order in which they move on, so that one that moves on meanwhile is not left out, but may come
        twice. One that goes back, or begins a new stage, may be left out. Raises LeaseholdError if Redis is away, and
        Forbidden once the visitor may no longer look.
        """
        latest_unix = min(clock.unix(), choice.last_put_unix or clock.unix())
        choice, cursor = replace(choice, last_put_unix=latest_unix), None
        head = csv_lines(COLUMNS, [dict(zip(COLUMNS, COLUMNS, strict=True))]).encode() if form == "csv" else b""
        self._under_way += 1
        try:
            while True:
                if not may_look():
                    raise Forbidden
                step = await calls_of(self._client).call(choices.find, choice, cursor, _STEP)
                yield head + self._written(await self._rows(list(step.states)), form)
                cursor, head = step.cursor, b""
                if cursor is None:
                    return
        finally:
            self._under_way -= 1

    async def _rows(self, jids: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        jobs = await calls_of(self._client).call(job_queries.jobs, jids) if jids else []
        rows: Sequence[Mapping[str, Any]] = self._hiding.hide([row(job) for job in jobs if job is not None])
        return rows

    def _written(self, rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
        if form == "csv":
            return csv_lines(COLUMNS, rows).encode()
        return b"".join(packed(each) + b"\n" for each in rows)
