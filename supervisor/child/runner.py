"""Runs one handler to its end. Runs in children, in threads of applications, and in tests of applications.

Must not know where jobs come from and where answers go. `answers` says what a result and an exception mean.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.child import answers, around
from supervisor.child.answers import OUTCOMES, Answer
from supervisor.child.around import Ending
from supervisor.child.context import JobContext
from supervisor.child.handler import Handler
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.child.parameters import WrongShape
from supervisor.child.starts_before import Suspend

if TYPE_CHECKING:
    import asyncio

    from supervisor.child.event_loop import Loops


class Notices(Protocol):
    """Raises in the handler what the master wants of it."""

    def may_interrupt(self, token: int) -> None: ...
    def must_not_interrupt(self) -> None: ...
    def may_cancel(self, task: "asyncio.Task[Any] | None") -> None: ...
    def cause_of_cancel(self, token: int) -> BaseException | None: ...


class NoNotices:
    """Nothing is raised in the handler: it runs in a process that has no master."""

    def may_interrupt(self, token: int) -> None:
        return

    def must_not_interrupt(self) -> None:
        return

    def may_cancel(self, task: "asyncio.Task[Any] | None") -> None:
        return

    def cause_of_cancel(self, token: int) -> BaseException | None:
        return None


class Runner:
    def __init__(
        self,
        notices: Notices,
        on_error: str,
        memory_limit_bytes: int,
        limit_data: Callable[[int], None],
        keeps_errors: bool = False,
    ) -> None:
        """`on_error`, `memory_limit_bytes`: for handlers without their own. `limit_data` bounds this process's data.

        `keeps_errors`: `raised` is for the caller, too, and not only for functions of `around_job`.
        """
        self._notices = notices
        self._on_error = on_error
        self._memory_limit_bytes = memory_limit_bytes
        self._limit_data = limit_data
        self._loops: Loops | None = None  # made for the first async handler
        self._keeps_errors = keeps_errors
        self.raised: BaseException | None = None  # by the handler of this job; it holds all that the handler held

    def end_around(self, ends: Sequence[around.End], answer: Answer, told: around.Kinds = BaseException) -> None:
        """Tell the functions of `around_job` how the job ended. `told`: as for `around.end`."""
        around.end(ends, Ending(OUTCOMES[answer[0]], answers.trouble_of(answer), self.raised), told)
        self.raised = None

    def close(self) -> None:
        """Close what was made for async handlers."""
        if self._loops is not None:
            self._loops.close()

    def perform(self, job: JobContext, handler: Handler[..., Any]) -> Answer:
        """Run the handler, and return its answer.

        A notice may be raised at any instruction of the handler, and while a SoftTimeout is being described.
        """
        try:
            try:
                return self._run(job, handler)
            except SoftTimeout as error:
                self._notices.must_not_interrupt()
                return answers.raised(job, handler, error, self._on_error, "timeout")
        except Interrupted as interrupted:
            return answers.interrupted(interrupted.reason)
        finally:
            self._notices.must_not_interrupt()

    def _run(self, job: JobContext, handler: Handler[..., Any]) -> Answer:
        try:
            job.data  # noqa: B018  decoded here, so that a broken payload does not look like the handler's mistake
        except ValueError as error:
            return answers.broken(error)
        try:
            self._notices.may_interrupt(job.token)
            self._limit_data(self._memory_limit_of(handler))
            try:
                arguments = handler.arguments_of(job)
            except WrongShape as error:
                self._notices.must_not_interrupt()
                return answers.misfit(error)
            result = self._call(handler, job, arguments)
            self._notices.must_not_interrupt()
        except (Interrupted, SoftTimeout, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  the child's boundary: a handler may raise anything
            self._notices.must_not_interrupt()
            if isinstance(error, MemoryError) and self._memory_limit_of(handler):
                return answers.overflowed(error)
            return answers.raised(job, handler, error, self._on_error)
        return answers.returned(job, handler, result)

    def _memory_limit_of(self, handler: Handler[..., Any]) -> int:
        own = handler.settings.memory_bytes
        return self._memory_limit_bytes if own is None else own

    def _call(self, handler: Handler[..., Any], job: JobContext, arguments: Mapping[str, Any]) -> Any:
        try:
            result = handler.function(job, **arguments)
            # A decorator may hide that a handler is async, so the result decides, too.
            is_async = handler.is_async or type(result) is CoroutineType
            return self._run_in_loop(result, job) if is_async else result
        except BaseException as error:
            self._keep(error)
            raise

    def _keep(self, error: BaseException) -> None:
        if (around.registered or self._keeps_errors) and not isinstance(error, Suspend):
            self.raised = error

    def _run_in_loop(self, work: Coroutine[Any, Any, Any], job: JobContext) -> Any:
        if self._loops is None:
            from supervisor.child.event_loop import Loops

            self._loops = Loops()
        cause_of_cancel = functools.partial(self._notices.cause_of_cancel, job.token)
        return self._loops.run(work, self._notices.may_cancel, cause_of_cancel)
