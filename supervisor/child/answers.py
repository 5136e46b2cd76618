"""Says how a handler ended, as a child answers it: a verb and the parts of its body. Runs in children.

Owns the meaning of a result and of an exception. Must not run handlers, nor know where answers go.
"""

import sys
import traceback
from typing import Any, Final

import orjson

from supervisor import messages
from supervisor.child import explanations
from supervisor.child.context import JobContext
from supervisor.child.handler import Handler
from supervisor.child.loading import foreign_frames
from supervisor.child.orders import Fail, Retry
from supervisor.child.parameters import WrongShape
from supervisor.child.starts_before import Suspend
from supervisor.messages import Trouble, Verb

Answer = tuple[Verb, list[bytes]]

#: Outcomes as applications get them. Only the queue knows whether a misfit is another release's job, or `broken`.
OUTCOMES: Final = {
    Verb.COMPLETED: "completed", Verb.FOLLOWED: "completed", Verb.RETRIED: "retried", Verb.FAILED: "failed",
    Verb.INTERRUPTED: "interrupted", Verb.OVERFLOWED: "failed", Verb.MISFIT: "misfit", Verb.SUSPENDED: "suspended",
}  # fmt: skip


def broken(error: ValueError) -> Answer:
    """The payload is not JSON. The handler was not called."""
    return Verb.FAILED, [messages.pack_trouble(Trouble("broken", f"the payload is not JSON: {error}"))]


def misfit(error: WrongShape) -> Answer:
    """The data do not fit the parameters. The handler was not called."""
    return Verb.MISFIT, [messages.pack_trouble(Trouble("broken", str(error)))]


def interrupted(reason: str) -> Answer:
    return Verb.INTERRUPTED, [messages.pack_trouble(Trouble(None, reason))]


def overflowed(error: MemoryError) -> Answer:
    return Verb.OVERFLOWED, [messages.pack_trouble(_describe(error))]


def returned(job: JobContext, handler: Handler[..., Any], result: Any) -> Answer:
    encoded = _encode_result(result, handler)
    completion = job.completion(encoded)
    if completion is None:
        return Verb.COMPLETED, [encoded]
    return Verb.FOLLOWED, messages.pack_completion(completion)


def raised(
    job: JobContext, handler: Handler[..., Any], error: BaseException, on_error: str, group: str | None = None
) -> Answer:
    """`on_error`: the run's choice. `group`: in place of the name of the exception's class."""
    if isinstance(error, Suspend):
        return Verb.SUSPENDED, [messages.pack_suspension(messages.Suspension(error.name, error.timeout_s))]
    if isinstance(error, Retry):
        delay_s = _backoff_s(handler, job) if error.delay is None else error.delay
        return Verb.RETRIED, [messages.pack_trouble(Trouble(None, str(error), None, delay_s))]
    if isinstance(error, Fail):
        return Verb.FAILED, [messages.pack_trouble(Trouble(error.group, str(error)))]
    trouble = _describe(error)
    trouble = trouble._replace(group=group or trouble.group)
    if handler.gives_up(error, on_error):
        return Verb.FAILED, [messages.pack_trouble(trouble)]
    return Verb.RETRIED, [messages.pack_trouble(trouble._replace(delay_s=_backoff_s(handler, job)))]


def trouble_of(answer: Answer) -> Trouble | None:
    verb, parts = answer
    if verb in (Verb.COMPLETED, Verb.FOLLOWED, Verb.SUSPENDED):
        return None
    trouble = messages.unpack_trouble(parts[0])
    return trouble._replace(group=None) if verb == Verb.MISFIT else trouble


def _describe(error: BaseException) -> Trouble:
    """Describe an exception as a failure. Its class is the group. The traceback leaves out our own frames."""
    text = "".join(traceback.format_exception(type(error), error, foreign_frames(error.__traceback__)))
    return Trouble(type(error).__name__, explanations.hinted(error, text_of(error)), text)


def text_of(error: BaseException) -> str:
    """Return the text of a foreign exception; the name of its class if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception as second:  # noqa: BLE001  foreign __str__ may raise anything
        return f"{type(error).__name__}, whose text cannot be had ({type(second).__name__})"


def _backoff_s(handler: Handler[..., Any], job: JobContext) -> float | None:
    """Return the delay of the handler's own `backoff`. None: the default applies."""
    try:
        return handler.backoff_s(job.failures)
    except BaseException as error:  # noqa: BLE001  a foreign function may raise anything
        print_line(f"backoff= of {job.klass} is not used: {type(error).__name__}: {text_of(error)}")
        return None


def _encode_result(result: Any, handler: Handler[..., Any]) -> bytes:
    """Return the result as JSON. If it cannot be kept, write so to the job's output and return nothing."""
    if result is None:
        return b""
    try:
        adapter = handler.result_adapter
        body = orjson.dumps(result) if adapter is None else adapter.dump_json(result, by_alias=True, warnings=False)
    except Exception as error:  # noqa: BLE001  types of a handler may have serializers of their own
        print_line(f"the result is not kept: {text_of(error)}")
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
    except Exception:  # noqa: BLE001  a handler may have closed stderr, or have put anything in its place
        return
