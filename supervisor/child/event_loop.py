"""The event loop that a child's async handlers run in. Runs in children. Must not hand on anything from job to job.

Imported where there is such a handler: asyncio is a fifth of the image that each fork copies.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

#: Of a loop, and empty in a new one: what is to be called, what has been left half done, whom signals are told.
_EMPTY: Final = ("_ready", "_asyncgens", "_signal_handlers")


class Loops:
    """One loop for many jobs, for making one takes longer than most of what they do; but a job that has failed, or has
    left anything in it, takes it along.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(
        self,
        work: Coroutine[Any, Any, Any],
        on_task: Callable[["asyncio.Task[Any] | None"], None],
        cause_of_cancel: Callable[[], BaseException | None],
    ) -> Any:
        """Run it to its end, as the task that `on_task` is told of, with None once it is over. What it has left running
        is cancelled by then. Raises what it raises; `cause_of_cancel()`, if there is one, where it was cancelled.
        """
        try:
            return self._run(work, on_task)
        except asyncio.CancelledError:
            cause = cause_of_cancel()
            if cause is not None:
                raise cause from None
            raise
        finally:
            on_task(None)

    def _run(self, work: Coroutine[Any, Any, Any], on_task: Callable[["asyncio.Task[Any] | None"], None]) -> Any:
        runner, self._runner = self._runner or asyncio.Runner(), None
        with_rest = True
        try:
            loop = runner.get_loop()
            task = loop.create_task(work)
            on_task(task)
            result = loop.run_until_complete(task)
            with_rest = not _is_as_new(loop)
        finally:
            if with_rest:
                runner.close()
        self._runner = None if with_rest else runner
        return result


def _is_as_new(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether nothing is left in it. Of one that is not asyncio's own nobody can say that."""
    return (
        not asyncio.all_tasks(loop)
        and not any(getattr(loop, name, True) for name in _EMPTY)
        and all(timer.cancelled() for timer in getattr(loop, "_scheduled", ()))
        and getattr(loop, "_default_executor", True) is None
        and len(loop._selector.get_map()) == 1  # type: ignore[attr-defined]  # its own way of being woken
        and loop.get_task_factory() is None
        and loop.get_exception_handler() is None
        and not loop.get_debug()
    )
