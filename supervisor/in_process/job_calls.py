"""The calls of a job that runs in a process of the application. Run there, in the event loop and in threads.

A thread has the loop do its work, and waits. A coroutine that blocks holds up the whole application, so its call is
made once, by a loop in a thread of its own.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from supervisor.child.context import JobCalls
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.commands import leasing, parent_results
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.leasing import GONE, LOST, Streamed
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.known_leases import started
from supervisor.in_process.book import Book
from supervisor.in_process.patience import patiently
from supervisor.messages import ProgressReport, ResultsPage

#: A thread looks so often whether the loop that works for it has been closed.
_CLOSED_S: Final = 1.0

T = TypeVar("T")


class CallsOfJob:
    """The calls of one job. `blocking` are those of threads, and of coroutines that do not await."""

    def __init__(self, lease: LeaseRecord, calls: AsyncCalls, book: Book) -> None:
        self._lease = lease
        self._calls = calls
        self._book = book
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._streamed = 0  # chunks
        self._streams = asyncio.Lock()  # one chunk after the other, so that each can be sent again under its number
        self.blocking = JobCalls(self._report, self._store, ask_results=self._ask_results, stream=self._stream)

    # in the loop

    async def store_and_wait(self, token: int, state: bytes, step: str) -> None:
        if self._is_in_loop:
            await self._book.store(token, state, step)
        else:  # in a loop that a plain handler has made
            await asyncio.to_thread(self._store, token, state, step)

    async def stream_and_wait(self, token: int, chunk: bytes) -> None:
        if not self._is_in_loop:
            await asyncio.to_thread(self._stream, token, chunk)
            return
        async with self._streams:
            self._take_streamed(await self._patiently(self._streaming(chunk, self._streamed)))

    def _streaming(self, chunk: bytes, before: int | None) -> Command[list[bool]]:
        lease = self._lease
        return leasing.stream(lease.worker, [Streamed(lease.jid, lease.token, before, [chunk])])

    def _take_streamed(self, answer: list[bool]) -> None:
        if not all(answer):
            raise _lost()
        self._streamed += 1

    async def _patiently(self, command: Command[T]) -> T:
        return await patiently(self._calls, command, self._check_held)

    def _check_held(self) -> None:
        if not self._book.holds(self._lease.token):
            raise _lost()

    # in threads, and in coroutines that block

    def _report(self, token: int, progress: ProgressReport) -> None:
        if self._is_in_loop:
            self._book.report(token, progress)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._book.report, token, progress)

    def _store(self, token: int, state: bytes, step: str = "", /) -> None:
        if not self._is_in_loop:
            self._have_done(self._book.store(token, state, step))
            return
        store = started(self._lease, state=state, step=step)
        [expires_unix] = self._run_aside(leasing.renew(self._lease.worker, [store]))
        if expires_unix in (LOST, GONE):
            raise _lost()

    def _ask_results(self, _token: int, first: int, most: int) -> ResultsPage:
        query = parent_results.read(self._lease.jid, first, most)
        answer = self._run_aside(query) if self._is_in_loop else self._have_done(self._patiently(query))
        return ResultsPage(0, *answer)

    def _stream(self, token: int, chunk: bytes) -> None:
        if self._is_in_loop:
            self._take_streamed(self._run_aside(self._streaming(chunk, None)))
        else:
            self._have_done(self.stream_and_wait(token, chunk))

    @property
    def _is_in_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def _have_done(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the loop do the work, from another thread, and block until it is done."""
        try:
            done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise _lost() from None
        while True:
            try:
                return done.result(_CLOSED_S)
            except TimeoutError:
                if done.done():
                    raise
                if self._loop.is_closed():
                    raise _lost() from None

    def _run_aside(self, command: Command[T]) -> T:
        """Run the command while the loop is blocked."""
        self._check_held()
        make: Callable[[], AsyncCalls] = self._calls.beside
        with ThreadPoolExecutor(1, "leasehold-aside") as thread:
            return thread.submit(asyncio.run, _run_once(make, command)).result()


async def _run_once(make: Callable[[], AsyncCalls], command: Command[T]) -> T:
    calls = make()
    try:
        return await calls.run(command)
    finally:
        await calls.close()


def _lost() -> LeaseLost:
    return LeaseLost("the job has ended, or its lease is not this worker's any more: end the work")
