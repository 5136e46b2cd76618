"""One job of a shared child: its context, its tasks, and why it was interrupted. Runs in shared children.

Must not speak to the master: `SharedChild` does.
"""

import asyncio
import contextvars
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.child import around
from supervisor.child.chunk_window import ChunkWindow
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.handler import Handler
from supervisor.engine.model.chunks import to_chunk
from supervisor.engine.model.validation import to_state
from supervisor.messages import JobMessage, Notice

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
