"""Runs one handler and says how it ended. Runs in children, and in tests of applications.

Owns the meaning of a result and of an exception. Must not know where jobs come from and where outcomes go.
"""

import functools
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from supervisor import messages
from supervisor.child import around, explanations
from supervisor.child.around import Ending
from supervisor.child.context import JobContext
from supervisor.child.handler import Handler
from supervisor.child.handlers import Fail, Interrupted, Retry, SoftTimeout, foreign_frames
from supervisor.child.parameters import WrongShape
from supervisor.messages import Trouble, Verb

if TYPE_CHECKING:
    import asyncio

    from supervisor.child.event_loop import Loops

#: Outcomes as applications get them.
OUTCOMES: Final = {
    Verb.COMPLETED: "completed", Verb.FOLLOWED: "completed", Verb.RETRIED: "retried", Verb.FAILED: "failed",
    Verb.INTERRUPTED: "interrupted", Verb.OVERFLOWED: "failed", Verb.MISFIT: "failed",
}  # fmt: skip


class Notices(Protocol):
    """Raises in the handler what the master wants of it."""

    def may_interrupt(self, token: int) -> None: ...
    def must_not_interrupt(self) -> None: ...
    def may_cancel(self, task: "asyncio.Task[Any] | None") -> None: ...
    def cause_of_cancel(self, token: int) -> BaseException | None: ...


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

    def end_around(self, ends: Sequence[around.End], verb: Verb, parts: Sequence[bytes]) -> None:
        """Tell the functions of `around_job` how the job ended."""
        trouble = None if verb in (Verb.COMPLETED, Verb.FOLLOWED) else messages.unpack_trouble(parts[0])
        around.end(ends, Ending(OUTCOMES[verb], trouble, self.raised))
        self.raised = None

    def perform(self, job: JobContext, handler: Handler[..., Any]) -> tuple[Verb, list[bytes]]:
        """Run the handler, and return its outcome.

        A notice may be raised at any instruction of the handler, and while a SoftTimeout is being described.
        """
        try:
            try:
                return self._run(job, handler)
            except SoftTimeout as error:
                self._notices.must_not_interrupt()
                return self._failed(job, handler, error, "timeout")
        except Interrupted as interrupted:
            return Verb.INTERRUPTED, [messages.pack_trouble(Trouble(None, interrupted.reason))]
        finally:
            self._notices.must_not_interrupt()

    def _run(self, job: JobContext, handler: Handler[..., Any]) -> tuple[Verb, list[bytes]]:
        try:
            job.data  # noqa: B018  decoded here, so that a broken payload does not look like the handler's mistake
        except ValueError as error:
            return Verb.FAILED, [messages.pack_trouble(Trouble("broken", f"the payload is not JSON: {error}"))]
        try:
            self._notices.may_interrupt(job.token)
            self._limit_data(self._memory_limit_of(handler))
            try:
                arguments = handler.arguments_of(job)
            except WrongShape as error:
                self._notices.must_not_interrupt()
                self._keep(error)
                return Verb.MISFIT, [messages.pack_trouble(Trouble("broken", str(error)))]
            result = self._call(handler, job, arguments)
            self._notices.must_not_interrupt()
        except (Interrupted, SoftTimeout, SystemExit):
            raise
        except Retry as retry:
            self._notices.must_not_interrupt()
            delay_s = _backoff_s(handler, job) if retry.delay is None else retry.delay
            return Verb.RETRIED, [messages.pack_trouble(Trouble(None, str(retry), None, delay_s))]
        except Fail as fail:
            return Verb.FAILED, [messages.pack_trouble(Trouble(fail.group, str(fail)))]
        except BaseException as error:  # noqa: BLE001  the child's boundary: a handler may raise anything
            self._notices.must_not_interrupt()
            if isinstance(error, MemoryError) and self._memory_limit_of(handler):
                return Verb.OVERFLOWED, [messages.pack_trouble(_describe(error))]
            return self._failed(job, handler, error)
        encoded = _encode_result(result, handler)
        completion = job.completion(encoded)
        if completion is None:
            return Verb.COMPLETED, [encoded]
        return Verb.FOLLOWED, messages.pack_completion(completion)

    def _failed(
        self, job: JobContext, handler: Handler[..., Any], error: BaseException, group: str | None = None
    ) -> tuple[Verb, list[bytes]]:
        trouble = _describe(error)
        trouble = trouble._replace(group=group or trouble.group)
        if handler.gives_up(error, self._on_error):
            return Verb.FAILED, [messages.pack_trouble(trouble)]
        return Verb.RETRIED, [messages.pack_trouble(trouble._replace(delay_s=_backoff_s(handler, job)))]

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
        if around.registered or self._keeps_errors:
            self.raised = error

    def _run_in_loop(self, work: Coroutine[Any, Any, Any], job: JobContext) -> Any:
        if self._loops is None:
            from supervisor.child.event_loop import Loops

            self._loops = Loops()
        cause_of_cancel = functools.partial(self._notices.cause_of_cancel, job.token)
        return self._loops.run(work, self._notices.may_cancel, cause_of_cancel)


def _describe(error: BaseException) -> Trouble:
    """Describe an exception as a failure. Its class is the group. The traceback leaves out our own frames."""
    text = "".join(traceback.format_exception(type(error), error, foreign_frames(error.__traceback__)))
    return Trouble(type(error).__name__, explanations.hinted(error, _message_of(error)), text)


def _message_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as second:  # noqa: BLE001  foreign __str__ may raise anything
        return f"{type(error).__name__}, whose text cannot be had ({type(second).__name__})"


def _backoff_s(handler: Handler[..., Any], job: JobContext) -> float | None:
    """Return the delay of the handler's own `backoff`. None: the default applies."""
    try:
        return handler.backoff_s(job.failures)
    except BaseException as error:  # noqa: BLE001  a foreign function may raise anything
        print_line(f"backoff= of {job.klass} is not used: {type(error).__name__}: {_message_of(error)}")
        return None


def _encode_result(result: Any, handler: Handler[..., Any]) -> bytes:
    """Return the result as JSON. If it cannot be kept, write so to the job's output and return nothing."""
    if result is None:
        return b""
    try:
        adapter = handler.result_adapter
        body = orjson.dumps(result) if adapter is None else adapter.dump_json(result, warnings=False)
    except Exception as error:  # noqa: BLE001  types of a handler may have serializers of their own
        print_line(f"the result is not kept: {error}")
        return b""
    if len(body) > messages.MAX_RESULT_BYTES:
        most = messages.MAX_RESULT_BYTES
        print_line(f"the result is not kept: {len(body)} bytes, the limit is {most}")
        return b""
    return body


def print_line(text: str) -> None:
    """Write a line to the job's output."""
    try:
        sys.stderr.write(f"leasehold: {text}\n")
    except (OSError, ValueError):
        return  # a handler has closed stderr
