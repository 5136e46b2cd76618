"""Runs the tasks of a Celery application as handlers (extra `celery`). Runs in zygote and children.

Their messages come by a door of the format `celery`. Decides how a task that retries or rejects itself ends. Must not
connect to a broker: children may not know its address.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from supervisor import clock
from supervisor.child.handlers import handler
from supervisor.child.orders import Fail, Retry
from supervisor.engine.model.outcomes import RESULT_BYTES

try:
    from celery import Task
    from celery.exceptions import Ignore, Reject
    from celery.exceptions import Retry as Again
    from kombu.utils.json import dumps, loads
except ImportError as missing:
    raise ImportError("adopt needs the package celery: pip install 'leasehold[celery]'") from missing

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.child.context import JobContext

#: The task itself counts its retries, so that `max_retries` of a call may be larger than that of the task.
_RETRIES: Final = 1_000_000
#: Tasks of Celery itself, such as `celery.chord_unlock`, have bodies that only its own worker can run.
_CELERYS_OWN: Final = "celery."
_HOOKS: Final = ("before_start", "on_success", "on_retry", "on_failure", "after_return")
#: The attribute of a request that keeps a retry until the task returns.
_ORDERED: Final = "ordered_retry"
_NAMES: Final = ("__module__", "__name__", "__qualname__", "__doc__")


def adopt(app: "Celery") -> None:
    """Register each task of an application as a handler of the task's name. Call it once, in the handlers' package.

    Imports the modules that the application names. Writes a line to stderr for each task that uses what is not
    supported, and for each that cannot be adopted.
    """
    app.loader.import_default_modules()
    app.finalize()
    for name, task in sorted(app.tasks.items()):
        if name.startswith(_CELERYS_OWN):
            continue
        if len(name.encode()) > 64:
            _say(f"task {name} is not adopted: its name has more than 64 bytes")
            continue
        if lacks := "; ".join(_lacks(app, task)):
            _say(f"task {name}: {lacks}")
        task.retry = functools.partial(_retry, task)  # Celery's own one sends a message to the broker
        handler(name=name, retries=_RETRIES, on_error="fail", timeout=task.time_limit)(_body_of(task))


def _say(text: str) -> None:
    sys.stderr.write(f"leasehold: {text}\n")


def _lacks(app: "Celery", task: Any) -> Iterator[str]:
    """Yield in words each feature that a task uses and that does not work here."""
    serializer = task.serializer or app.conf.task_serializer
    if serializer != "json":
        yield f"its messages are {serializer}, so they will be `broken`"
    if getattr(task, "compression", None) or app.conf.task_compression:
        yield "its messages are compressed, so they will be `broken`"
    if task.rate_limit:
        yield "rate_limit is not followed"
    if task.soft_time_limit:
        yield "soft_time_limit is not followed"
    own = [name for name in (*_HOOKS, "__call__") if getattr(type(task), name) is not getattr(Task, name)]
    if own:
        yield f"{', '.join(own)} of its class will not be called"


def _body_of(task: Any) -> Callable[["JobContext"], Any]:
    def run(job: "JobContext") -> Any:
        args, kwargs = loads(json.dumps(job.saved)) if job.saved else _arguments_of(job)
        task.push_request(
            id=job.jid, root_id=job.jid, correlation_id=job.jid, task=task.name, args=args, kwargs=kwargs,
            retries=job.failures, called_directly=False, delivery_info={"routing_key": job.queue},
        )  # fmt: skip
        try:
            result = _result_of(task, args, kwargs)
        except Again as again:
            if again.sig is not None:
                job.checkpoint(json.loads(dumps([again.sig.args, again.sig.kwargs])))
            raise Retry(_delay_s(again.when), str(again)) from again.exc
        except Ignore:
            return None
        except Reject as rejected:
            if rejected.requeue:
                raise Retry(0, str(rejected.reason)) from rejected
            raise Fail("rejected", str(rejected.reason)) from rejected
        finally:
            task.pop_request()
            vars(task).pop("override_max_retries", None)
        return None if task.ignore_result else _kept(result)

    for name in _NAMES:
        setattr(run, name, getattr(task.run, name))
    return run


def _result_of(task: Any, args: Any, kwargs: Any) -> Any:
    """Run a task. Raises the retry that it has ordered with `throw=False`, however it then ends.

    Another retry that it throws, and an interruption, go before.
    """
    try:
        result = task.run(*args, **kwargs)
    except Again:
        raise
    except Exception as error:
        if again := _ordered_by(task):
            raise again from error
        raise
    if again := _ordered_by(task):
        raise again
    return result


def _kept(result: Any) -> Any:
    """Return a result as JSON has it. Raises Fail if it would not be kept: the caller would get None in its place."""
    value = json.loads(dumps(result))
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:
        raise Fail("result", f"the result cannot be kept: {error}") from error
    if size > RESULT_BYTES:
        raise Fail("result", f"the result has {size} bytes as JSON, of at most {RESULT_BYTES}: leave it elsewhere")
    return value


def _ordered_by(task: Any) -> Again | None:
    return getattr(task.request, _ORDERED, None)


def _arguments_of(job: "JobContext") -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments as Celery's own worker would have them: it writes dates, decimals and UUIDs as objects."""
    data = loads(job.raw.decode())
    if job.call is None:
        return [], data or {}
    return (data, {}) if isinstance(data, list) else (data["args"], data["kwargs"])


def _retry(
    task: Any, args: Any = None, kwargs: Any = None, exc: BaseException | None = None, throw: bool = True,
    eta: datetime | None = None, countdown: float | None = None, max_retries: int | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Do what `Task.retry` does. The next try is the supervisor's, so `options` of a message have no meaning."""
    request = task.request
    if request.called_directly or request.is_eager:  # by another task, which is the job
        return type(task).retry(task, args, kwargs, exc, throw, eta, countdown, max_retries, **options)
    if options:
        _say(f"retry of {task.name}: {', '.join(options)} is not followed")
    if max_retries is not None:
        task.override_max_retries = max_retries  # Celery's autoretry reads it
    most = task.max_retries if max_retries is None else max_retries
    if most is not None and request.retries >= most:
        raise exc or task.MaxRetriesExceededError(f"{task.name} has been tried {most} times again")
    changed = None
    if args is not None or kwargs is not None:
        changed = task.signature(request.args if args is None else args, request.kwargs if kwargs is None else kwargs)
    default = task.default_retry_delay if countdown is None else countdown
    again = Again(exc=exc, when=eta or default, sig=changed)
    if throw:
        raise again
    setattr(request, _ORDERED, again)  # Celery's own one has sent the message by now
    return again


def _delay_s(when: datetime | float) -> float:
    """Return in how many seconds a task is tried again. Celery reads a time without a zone as one of UTC."""
    if not isinstance(when, datetime):
        return when
    return max((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - clock.unix(), 0)
