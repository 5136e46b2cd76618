"""The event loop of async handlers. Runs in children. Owns the loop; must not hand anything from job to job.

Imported only for async handlers: asyncio is a fifth of the image that each fork copies.
"""

import asyncio
import selectors
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any
from weakref import WeakSet


def is_there() -> bool:
    """Return whether this thread is inside of an event loop, in which code can await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Loops:
    """Runs each job in a loop without traces of other jobs.

    Making a loop takes longer than most jobs. So a loop serves many jobs, until one fails or leaves anything in it. The
    first job has a loop of the application's policy; only loops of asyncio's default type are then replaced by ours.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._has_default_policy = False

    def run(
        self,
        work: Coroutine[Any, Any, Any],
        on_task: Callable[["asyncio.Task[Any] | None"], None],
        cause_of_cancel: Callable[[], BaseException | None],
    ) -> Any:
        """Run `work` to its end, and cancel the tasks that it leaves running.

        `on_task` gets the task of the work, and None at the end. Raises what the work raises, or `cause_of_cancel()`,
        unless that is None, in place of CancelledError.
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
        runner, self._runner = self._runner or self._new_runner(), None
        is_reusable = False
        try:
            loop = runner.get_loop()
            if isinstance(loop, _ReusableLoop):
                loop.call_soon(loop.watch_generators)
            task = loop.create_task(work)
            on_task(task)
            result = loop.run_until_complete(task)
            self._has_default_policy |= type(loop) is asyncio.SelectorEventLoop
            is_reusable = isinstance(loop, _ReusableLoop) and loop.is_as_new()
        finally:
            if not is_reusable:
                runner.close()
        self._runner = runner if is_reusable else None
        return result

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _new_runner(self) -> asyncio.Runner:
        return asyncio.Runner(loop_factory=_ReusableLoop if self._has_default_policy else None)


class _Selector(selectors.EpollSelector):
    """A selector that can say what its loop would wait for, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._asking: asyncio.AbstractEventLoop | None = None
        self._timeout: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._asking is None:
            return super().select(timeout)
        self._timeout = timeout
        self._asking.stop()
        return []

    def timeout_of(self, loop: asyncio.AbstractEventLoop) -> float | None:
        """Run one turn of the loop. Returns 0 if a call is ready, the time until the next timer, or None."""
        self._asking = loop
        try:
            loop.run_forever()
        finally:
            self._asking = None
        return self._timeout


class _ReusableLoop(asyncio.SelectorEventLoop):
    """A loop that knows whether a job has left anything in it, by asyncio's public interface alone."""

    def __init__(self) -> None:
        self._waits = _Selector()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._is_altered = False
        super().__init__(self._waits)
        self._own_fds = len(self._waits.get_map())

    def watch_generators(self) -> None:
        """Take note of async generators. Call it inside of the loop, whose own hooks go on working."""
        theirs = sys.get_asyncgen_hooks().firstiter

        def begin(generator: AsyncGenerator[Any, Any]) -> None:
            self._generators.add(generator)
            if theirs is not None:
                theirs(generator)

        sys.set_asyncgen_hooks(firstiter=begin)

    def is_as_new(self) -> bool:
        return (
            not self._is_altered
            and not self._generators
            and len(self._waits.get_map()) == self._own_fds
            and self.get_task_factory() is None
            and self.get_exception_handler() is None
            and not self.get_debug()
            and not asyncio.all_tasks(self)
            and self._waits.timeout_of(self) is None
        )

    def add_signal_handler(self, *args: Any) -> None:  # type: ignore[override]
        self._is_altered = True
        super().add_signal_handler(*args)

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        self._is_altered = True  # the default executor keeps its threads
        return super().run_in_executor(*args)

    def set_default_executor(self, executor: Any) -> None:
        self._is_altered = True
        super().set_default_executor(executor)
