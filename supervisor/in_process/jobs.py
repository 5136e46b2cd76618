"""Runs leased jobs in a process of the application: async handlers as tasks of its loop, others in threads. Runs there.

Owns the runs and their threads. Must not speak to Redis: an outcome goes into the book.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from supervisor.child import around
from supervisor.child.answers import Answer
from supervisor.child.handler import Handler
from supervisor.child.runner import NoNotices, Runner
from supervisor.child.shared_run import SharedContext, SharedRun
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LONGEST_UNKNOWN_S, Failed, Outcome, Released, Unknown
from supervisor.in_process.book import Book
from supervisor.in_process.job_calls import CallsOfJob
from supervisor.in_process.outcomes import RunEnd, end_of, end_of_exit, message_of, outcome_of
from supervisor.in_process.threads import NoThread, in_thread
from supervisor.messages import TIMEOUT, HandlerSettings, Notice, Verb

#: A job for which no thread can be started goes back after this time.
_NO_THREAD_S: Final = 1.0

log = logging.getLogger("leasehold")


@dataclass(frozen=True, slots=True)
class RunRules:
    """The rules for handlers without settings of their own. `timeout_s`: 0: none."""

    on_error: str
    timeout_s: float


class Jobs:
    def __init__(
        self,
        handlers: Mapping[str, Handler[..., Any]],
        rules: RunRules,
        concurrency: int,
        workdir: str,
        calls: AsyncCalls,
        book: Book,
        on_room: Callable[[], None],
    ) -> None:
        """`concurrency`: most jobs at once. `workdir`: jobs have their directories in it. `on_room` is called when a
        job has ended.
        """
        self.concurrency = concurrency
        self._handlers = handlers
        self._rules = rules
        self._workdir = workdir
        self._calls = calls
        self._book = book
        self._on_room = on_room
        self._runs: dict[int, SharedRun] = {}  # by token
        self._limits: dict[int, asyncio.TimerHandle] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def running(self) -> int:
        return len(self._runs)

    @property
    def room(self) -> int:
        return self.concurrency - len(self._runs)

    # one job

    def begin(self, lease: LeaseRecord) -> None:
        self._book.add(lease)
        handler = self._handlers.get(lease.klass)
        if handler is None:
            self._book.end(Unknown(lease, LONGEST_UNKNOWN_S))
            return
        calls = CallsOfJob(lease, self._calls, self._book)
        job = SharedContext(
            message_of(lease), self._workdir, calls.blocking, calls.store_and_wait, calls.stream_and_wait
        )
        run = self._runs[lease.token] = SharedRun(job, handler)
        self._is_empty.clear()
        run.task = asyncio.create_task(self._run(run, lease), name=f"leasehold {lease.klass} {lease.jid}")
        if limit_s := handler.settings.limit_s(lease, self._rules.timeout_s):
            loop = asyncio.get_running_loop()
            self._limits[lease.token] = loop.call_later(limit_s, self._time_is_over, run, limit_s)

    async def _run(self, run: SharedRun, lease: LeaseRecord) -> None:
        run.has_begun = True
        try:
            if run.handler.is_async:
                answer = await run.perform(self._rules.on_error)
                run.end_around(answer)
            else:
                answer = await in_thread(f"leasehold-job {lease.jid}", self._perform, run)
            end = end_of(answer)
        except NoThread as error:
            await self._give_back(run, lease, error)
            return
        except SystemExit as leaving:  # it would end the application
            end = end_of_exit(leaving)
        except asyncio.CancelledError:
            # A thread that is left behind goes on, and the application cancels all its tasks.
            self._remove(run)
            raise
        self._end(run, lease, end)

    async def _give_back(self, run: SharedRun, lease: LeaseRecord, error: NoThread) -> None:
        """Hand the job back after a second, so that leases do not follow each other without a pause."""
        run.is_void = True  # nothing of it is to be stopped, or to count as started
        log.warning("%s %s was not started: %s", lease.klass, lease.jid, error)
        try:
            await asyncio.sleep(_NO_THREAD_S)
        finally:  # also if the application cancels all its tasks
            self._remove(run)
            if self._book.holds(lease.token):
                self._book.end(Released(lease, started=False))

    def _perform(self, run: SharedRun) -> Answer:
        """Run the handler. Blocks, in a thread of its own."""
        if run.is_void:
            return Verb.INTERRUPTED, []  # its lease is over, and its answer is not read
        runner = Runner(NoNotices(), self._rules.on_error, 0, lambda _bytes: None)
        try:
            ends = around.begin(run.job) if around.registered else ()
            answer = runner.perform(run.job, run.handler)
            if ends:
                runner.end_around(ends, answer)
        finally:
            runner.close()
        return answer

    def _end(self, run: SharedRun, lease: LeaseRecord, end: RunEnd) -> None:
        run.job.report_progress()
        self._remove(run)
        run.job.remove_workdir()
        if run.is_void:
            return
        outcome = _outcome(lease, end, run.handler.settings)
        self._book.end(outcome)

    def _remove(self, run: SharedRun) -> None:
        token = run.job.token
        if (limit := self._limits.pop(token, None)) is not None:
            limit.cancel()
        if self._runs.pop(token, None) is not None and not self._runs:
            self._is_empty.set()
        self._on_room()

    # how jobs are stopped

    def _time_is_over(self, run: SharedRun, limit_s: float) -> None:
        job = run.job
        job.tell_to_stop()
        if run.handler.is_async:
            run.cancel(Notice(job.token, TIMEOUT, f"its time limit of {limit_s:g} s is over"))
        else:
            log.warning(
                "%s %s: its time limit of %g s is over; a thread cannot be stopped", job.klass, job.jid, limit_s
            )

    def lose(self, lease: LeaseRecord, reason: str) -> None:
        """The lease is over: the job was cancelled, or is another worker's."""
        self._book.forget(lease.token)
        run = self._runs.get(lease.token)
        if run is not None and not run.is_void:
            run.is_void = True
            log.warning("%s %s is stopped: %s", lease.klass, lease.jid, reason)
            self._stop(run, reason)

    def lose_all(self) -> None:
        """The leases are over, or nothing renews them any more."""
        for lease in self._book.leases:
            self.lose(lease, "lease-lost")

    def tell_to_stop(self, reason: str) -> None:
        """Have handlers see `should_stop`, and interrupt those without an end."""
        for lease in self._book.leases:
            if (run := self._runs.get(lease.token)) is not None:
                run.job.tell_to_stop()
                if lease.persistent:
                    self._stop(run, reason)

    def stop_all(self, reason: str) -> None:
        """Interrupt all handlers that can be interrupted."""
        for run in tuple(self._runs.values()):
            self._stop(run, reason)

    def _stop(self, run: SharedRun, reason: str) -> None:
        run.job.tell_to_stop()
        if run.handler.is_async and run.cause is None:
            run.cancel(Notice(run.job.token, reason))
        elif run.cause is not None and run.cause.reason == TIMEOUT and run.task is not None and run.has_begun:
            run.task.cancel()  # it has gone on after its time limit

    async def until_none(self, longest_s: float) -> bool:
        """Wait until no job runs, at most `longest_s`. Return whether none does."""
        try:
            async with asyncio.timeout(longest_s):
                await self._is_empty.wait()
        except TimeoutError:
            pass
        return not self._runs

    def abandon(self, reason: str) -> None:
        """Hand back the jobs whose handlers go on in spite of all."""
        for lease in self._book.leases:
            run = self._runs.get(lease.token)
            if run is None or run.is_void:
                continue
            log.warning("%s %s goes on after its job was handed back", lease.klass, lease.jid)
            run.is_void = True
            self._book.end(Released(lease, started=True, reason=reason))
            if run.task is not None and not run.handler.is_async:
                run.task.cancel()  # it only waits for the thread


def _outcome(lease: LeaseRecord, end: RunEnd, settings: HandlerSettings) -> Outcome:
    try:
        return outcome_of(lease, end, settings)
    except (TypeError, ValueError) as error:
        return Failed(lease, type(error).__name__, f"the end of the job cannot be told: {error}")
