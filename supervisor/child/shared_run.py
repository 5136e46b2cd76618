"""One job of an async handler beside others: its context, its tasks, and why it was interrupted.

Runs in shared children, and in workers inside of applications. Must not know where answers go.
"""

import asyncio
import contextvars
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.child import answers, around
from supervisor.child.answers import OUTCOMES, Answer
from supervisor.child.around import Ending
from supervisor.child.chunk_window import ChunkWindow
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.handler import Handler
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.child.parameters import WrongShape
from supervisor.child.starts_before import Suspend
from supervisor.engine.model.chunks import to_chunk
from supervisor.engine.model.validation import to_state
from supervisor.messages import TIMEOUT, JobMessage, Notice

#: The run whose code runs now, in its tasks and in threads that have a copy of their context.
current: Final[contextvars.ContextVar["SharedRun | None"]] = contextvars.ContextVar("leasehold_run", default=None)


class SharedContext(JobContext):
    """A context beside others: its directory is below the child's, and is made when the handler asks for it."""

    def __init__(
        self,
        message: JobMessage,
        workdir: str,
        calls: JobCalls,
        store_and_wait: Callable[[int, bytes, str], Awaitable[None]],
        stream_and_wait: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        super().__init__(message, f"{workdir}/{message.token}", calls)
        self._store_and_wait = store_and_wait
        self._stream_and_wait = stream_and_wait

    @property
    def workdir(self) -> Path:
        os.makedirs(self._workdir, mode=0o700, exist_ok=True)
        return Path(self._workdir)

    def remove_workdir(self) -> None:
        if os.path.lexists(self._workdir):
            shutil.rmtree(self._workdir, ignore_errors=True)

    async def acheckpoint(self, state: Any) -> None:
        await self._store_and_wait(self.token, to_state("state", state), "")

    async def _astore_step(self, name: str, raw: bytes) -> None:
        await self._store_and_wait(self.token, raw, name)

    async def astream(self, chunk: Any) -> None:
        await self._stream_and_wait(self.token, to_chunk(chunk))


class SharedRun:
    __slots__ = (
        "cause", "checkpoint_cause", "ends", "handler", "has_begun", "is_void", "job", "raised", "room", "started_at",
        "task", "tasks", "window",
    )  # fmt: skip

    def __init__(self, job: SharedContext, handler: Handler[..., Any]) -> None:
        self.job = job
        self.handler = handler
        self.started_at = clock.monotonic()
        self.ends: Sequence[around.End] = ()
        self.raised: BaseException | None = None  # what has left the handler
        self.task: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()  # those that the handler has started
        self.has_begun = False  # before, a cancellation would end the task without its answer
        self.cause: Notice | None = None  # why its task was cancelled
        self.checkpoint_cause: Notice | None = None  # its next checkpoint is to interrupt it, for this reason
        self.is_void = False  # its lease is lost: nothing is stored for it any more
        self.window = ChunkWindow()
        self.room = asyncio.Event()  # the window may have room, or the job is over

    async def perform(self, on_error: str) -> Answer:
        """Run the handler, and return its answer. `end_around` is to follow. Raises SystemExit.

        `on_error`: for a handler without its own.
        """
        if self.cause is not None:
            return answers.interrupted(self.cause.reason)
        job, handler = self.job, self.handler
        if around.registered:
            self.ends = around.begin(job)
        try:
            job.data  # noqa: B018  decoded here, so that a broken payload does not look like the handler's mistake
        except ValueError as error:
            return answers.broken(error)
        try:
            result = await handler.function(job, **handler.arguments_of(job))
        except SystemExit:
            raise
        except WrongShape as error:
            return answers.misfit(error)
        except BaseException as error:  # noqa: BLE001  the child's boundary: a handler may raise anything
            return self._answer_to(error, on_error)
        return answers.returned(job, handler, result)

    def _answer_to(self, error: BaseException, on_error: str) -> Answer:
        """Return the answer for an exception that has left the handler."""
        if isinstance(error, asyncio.CancelledError) and self.cause is not None:
            cause = self.cause
            stopped = SoftTimeout(cause.message) if cause.reason == TIMEOUT else Interrupted(cause.reason)
            error = stopped.with_traceback(error.__traceback__)
        self.raised = None if isinstance(error, Suspend) else error
        if isinstance(error, Interrupted):
            return answers.interrupted(error.reason)
        group = "timeout" if isinstance(error, SoftTimeout) else None
        return answers.raised(self.job, self.handler, error, on_error, group)

    def end_around(self, answer: Answer) -> None:
        """Tell the functions of `around_job` how the job ended."""
        if self.ends:
            around.end(self.ends, Ending(OUTCOMES[answer[0]], answers.trouble_of(answer), self.raised))
        self.raised = None

    def cancel(self, cause: Notice) -> None:
        """Interrupt the handler where it awaits."""
        self.cause, self.checkpoint_cause = cause, None
        if self.has_begun and self.task is not None:
            self.task.cancel()

    def cancel_tasks(self) -> None:
        """The handler has ended: its tasks end with it."""
        for task in tuple(self.tasks):
            task.cancel()


def make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
    """The task factory of a shared child's loop: what a job starts is ended with it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    run = current.get()
    if run is not None and run.task is not None:
        run.tasks.add(task)
        task.add_done_callback(run.tasks.discard)
    return task
