"""Polls Redis and the supervisors once for all tabs. Runs in the web server's process.

Must not poll while nobody looks, nor change anything.
"""

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.cli.lib.served import is_present, is_status
from supervisor.cli.top.model import Model, Snapshot, Status
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import course, recent
from supervisor.engine.model.errors import ReadOnlyReplica

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.commands.audit import Act
    from supervisor.engine.commands.concerns import Concerns
    from supervisor.engine.commands.course import CourseStep
    from supervisor.engine.commands.recent import Slices

#: A snapshot of this age is shown without another look. A tab looks again after three seconds.
_FRESH_S: Final = 2.0
#: A snapshot of this age is shown while the next one is taken. Older ones are not shown.
_SHOWN_S: Final = 15.0
#: Percentiles and the course of a period are shown for so long without another look. They change slowly.
_RECENT_S: Final = 30.0
_CONCERNS_S: Final = 10.0
#: Supervisors may answer within this time. One that is stopped never does.
_PATIENCE_S: Final = 1.0
#: A page waits for their answers at most so long. Later ones are on the next page.
_SOON_S: Final = 0.03
#: Queues whose statistics are read, one call each.
MOST_STATS: Final = 60
#: Acts of the record that are looked through for those on supervisors.
_MOST_ACTS: Final = 1000


class SharedModel:
    """The model of `leasehold top`, for every page that wants it."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self._model = Model()
        self._polling: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._answers: dict[str, Any] = {}  # of the supervisors that are asked, None of those that have not answered
        self._concerns: Concerns | None = None
        self._concerns_at = -math.inf
        self._slices: dict[str, tuple[float, Slices]] = {}  # by queue, with when they were read
        self._courses: dict[str, tuple[float, list[CourseStep]]] = {}  # by period, likewise
        self._acts: tuple[float, list[Act]] = (-math.inf, [])

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

    async def slices(self, queues: Sequence[str]) -> "list[Slices]":
        """Return the counters of waits and runs of these queues, at most 30 s old."""
        now_at = clock.monotonic()
        known = {name: each for name, each in self._slices.items() if now_at - each[0] < _RECENT_S}
        missing = [name for name in queues if name not in known]
        calls = calls_of(self._client)
        for each in await asyncio.gather(*(calls.call(recent.read_slices, name) for name in missing)):
            known[each.queue] = now_at, each
        self._slices = known
        return [known[name][1] for name in queues]

    async def course(self, period: str) -> "list[CourseStep]":
        """Return what all queues together have gone through in a period, at most 30 s old."""
        read_at, steps = self._courses.get(period, (-math.inf, []))
        if clock.monotonic() - read_at >= _RECENT_S:
            steps = await calls_of(self._client).call(course.read, period)
            self._courses[period] = clock.monotonic(), steps
        return steps

    async def acts(self) -> "list[Act]":
        """Return the last acts on supervisors, at most 30 s old, the newest first."""
        read_at, acts = self._acts
        if clock.monotonic() - read_at >= _RECENT_S:
            acts = [act for act in await self._client.audit(count=_MOST_ACTS) if act.kind == "worker"]
            self._acts = clock.monotonic(), acts
        return acts

    async def close(self) -> None:
        """End a poll that is under way."""
        tasks = [task for task in (self._polling, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _age_s(self) -> float:
        snapshot = self._model.snapshot
        return clock.monotonic() - snapshot.at if snapshot else _SHOWN_S

    async def _poll(self) -> None:
        """Take a snapshot. Supervisors that do not answer at once hold up no page, and are heard when they do."""
        client = self._client
        if self._asking is None or self._asking.done():
            self._answers = {}
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        asking = self._asking
        queues, failed, workers, concerns = await asyncio.gather(
            client.queues(), client.failed(), client.workers(), self._current_concerns()
        )
        asked: list[Awaitable[object]] = [client.queue(name).stats() for name in list(queues)[:MOST_STATS]]
        stats: Mapping[str, Any] = dict(zip(queues, await asyncio.gather(*asked), strict=False))
        await asyncio.wait((asking,), timeout=_SOON_S)
        if asking.done():
            try:
                await asking
            except ReadOnlyReplica:  # a replica passes no question on
                self._answers = {worker.name: None for worker in workers if is_present(worker)}
        status = {name: _known(answer) for name, answer in self._answers.items() if asking.done() or answer is not None}
        snapshot = Snapshot(
            clock.monotonic(), clock.unix(), queues, stats, failed, workers, status,
            concerns=concerns, asked=tuple(self._answers),
        )  # fmt: skip
        self._model.take(snapshot)
        if not asking.done():
            asking.add_done_callback(lambda _: self._hear_rest(status))

    def _hear_rest(self, heard: Mapping[str, Status | None]) -> None:
        """The supervisors have answered, or had time enough."""
        rest = {name: _known(answer) for name, answer in self._answers.items() if name not in heard}
        self._model.hear(clock.monotonic(), rest)

    async def _ask(self) -> None:
        def told(answers: dict[str, Any]) -> None:
            self._answers = answers

        await calls_of(self._client).ask(None, "status", _PATIENCE_S, told=told)

    async def _current_concerns(self) -> "Concerns":
        if self._concerns is None or clock.monotonic() - self._concerns_at >= _CONCERNS_S:
            self._concerns, self._concerns_at = await self._client.concerns(), clock.monotonic()
        return self._concerns


def _known(answer: Any) -> Status | None:
    return answer if is_status(answer) else None
