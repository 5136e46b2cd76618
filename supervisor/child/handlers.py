"""Registers handlers and hooks, and imports them. Runs in zygote and children.

Owns the registry, and the exceptions by which a handler ends its job. Must not import redis, which every child would
carry.
"""

import importlib
import inspect
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from supervisor.child.handler import Handler, HandlersError, module_of
from supervisor.config import parse_duration, parse_size
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import checked_options
from supervisor.engine.model.rhythm import checked_rhythm
from supervisor.engine.model.unique_modes import MODES, checked_mode
from supervisor.engine.model.validation import Duration, in_seconds
from supervisor.messages import MAX_DELAY_S, MOST_BESIDE, HandlerSettings

if TYPE_CHECKING:
    from supervisor.child.context import JobContext

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
ExceptionClasses = type[BaseException] | Sequence[type[BaseException]]
#: Seconds until the next try. A list gives one value per failure, and repeats the last; a function gets the failures.
Backoff = Duration | Sequence[Duration] | Callable[[int], float]


class Retry(Exception):  # no error: an order to the supervisor
    """Raise it in a handler: run this job again, after `delay` (None: the usual back-off). Spends a retry.

    `delay`: seconds, a text such as "30s" or "5m", or a timedelta.
    """

    def __init__(self, delay: Duration | None = None, message: str = "") -> None:
        super().__init__(message or "the handler asked for a retry")
        self.delay = None if delay is None else _retry_delay(delay)


def _retry_delay(delay: Duration) -> float:
    try:
        seconds = in_seconds("delay", delay)
    except ValueError as error:
        raise ValueError(f"Retry: {error}") from None
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError(f"Retry(delay={delay!r}): give seconds, 0 or more, or a duration like '30s'")
    return seconds


class Fail(Exception):
    """Raise it in a handler: this job has failed for good, in failure group `group`."""

    def __init__(self, group: str, message: str = "") -> None:
        super().__init__(message or group)
        if not isinstance(group, str) or not group:
            raise ValueError(f"Fail(group={group!r}): give the name of a failure group")
        self.group = group


class Interrupted(BaseException):  # not an Exception: `except Exception` in a handler must not catch it
    """Raised inside a handler that has to stop. The job returns to the front of its queue and keeps its retries.

    `reason`: drain, reload, scaled, cut-off, cancelled or lease-lost.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SoftTimeout(BaseException):  # not an Exception, for the same reason
    """Raised inside a handler before its time limit: a tenth of the limit before it, at most `--term-grace`.

    The handler should clean up, or return what it has. If the exception leaves the handler, the job has failed in group
    `timeout`. At the limit itself the supervisor kills the job's process tree, which is a death.
    """


_PACKAGE = Path(__file__).parents[1]
_NOT_FOREIGN = (
    *(f"{_PACKAGE / folder}{os.sep}" for folder in ("zygote", "child", "sandbox", "linux")),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)

_LARGEST = 2**53  # Redis does not store larger integers exactly

#: Exceptions that say what becomes of the job by themselves.
_ORDERS = (Retry, Fail, Interrupted)

_registered: list[Handler[..., Any]] = []


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that handlers have registered, in the order of registration."""

    before_fork: list[Callable[[], object]] = field(default_factory=list)
    after_fork: list[Callable[[], object]] = field(default_factory=list)
    on_exit: list[Callable[[], object]] = field(default_factory=list)
    confined: list[Callable[[], object]] = field(default_factory=list)


hooks = Hooks()

H = TypeVar("H", bound=Callable[[], object])


def before_fork(function: H) -> H:
    """Have `function()` called in the zygote before each fork, to let go of what children must not share.

    Keep it short: no child is forked meanwhile. If it raises, no child is forked, and the zygote tries again with a
    back-off.
    """
    return _hook("before_fork", hooks.before_fork, function)


def after_fork(function: H) -> H:
    """Have `function()` called in each child before its first job, to open what is the child's own.

    If it raises, the child ends. After several such ends in a row the supervisor exits with status 71.
    """
    return _hook("after_fork", hooks.after_fork, function)


def on_exit(function: H) -> H:
    """Have `function()` called in each child after its last job, to flush and close what is the child's own.

    It has ten seconds; a drain may leave less. It is not called in a child that dies or is killed.
    """
    return _hook("on_exit", hooks.on_exit, function)


def when_confined(function: H) -> H:
    """Have `function()` called in each child as soon as its sandbox is closed, so that threads it starts are confined.

    This is after the @after_fork functions; where handlers differ in their sandbox, it is at the first job.
    """
    return _hook("when_confined", hooks.confined, function)


def _hook(name: str, registered: list[Callable[[], object]], function: H) -> H:
    if not callable(function):
        raise TypeError(f"@{name} takes a function without arguments, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"@{name} takes a plain function, not the coroutine function {function!r}")
    registered.append(function)
    return function


@overload
def handler(function: Callable[Concatenate["JobContext", P], R], /) -> Handler[P, R]: ...
@overload
def handler(
    *,
    name: str | None = None,
    timeout: Duration | None = None,
    memory: int | str | None = None,
    retries: int | None = None,
    on_error: str | None = None,
    on_death: str | None = None,
    max_deaths: int | None = None,
    backoff: Backoff | None = None,
    at_most_once: bool = False,
    sandbox: str | None = None,
    network: bool | None = None,
    on_cut_off: str | None = None,
    concurrency: int = 1,
    retry_on: ExceptionClasses | None = None,
    fail_on: ExceptionClasses = (),
    queue: str | None = None,
    lane: str | None = None,
    priority: int | None = None,
    limit: str | Sequence[str] | None = None,
    unique: bool | str | None = None,
    debounce: Duration | None = None,
    throttle: Duration | None = None,
    collect: Duration | None = None,
    most: int | None = None,
    tags: Sequence[str] | None = None,
    expires: Duration | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: Duration | None = None,
) -> Callable[[Callable[Concatenate["JobContext", P], R]], Handler[P, R]]: ...


def handler(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    timeout: Duration | None = None,
    memory: int | str | None = None,
    retries: int | None = None,
    on_error: str | None = None,
    on_death: str | None = None,
    max_deaths: int | None = None,
    backoff: Backoff | None = None,
    at_most_once: bool = False,
    sandbox: str | None = None,
    network: bool | None = None,
    on_cut_off: str | None = None,
    concurrency: int = 1,
    retry_on: ExceptionClasses | None = None,
    fail_on: ExceptionClasses = (),
    queue: str | None = None,
    lane: str | None = None,
    priority: int | None = None,
    limit: str | Sequence[str] | None = None,
    unique: bool | str | None = None,
    debounce: Duration | None = None,
    throttle: Duration | None = None,
    collect: Duration | None = None,
    most: int | None = None,
    tags: Sequence[str] | None = None,
    expires: Duration | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: Duration | None = None,
) -> Any:
    """Register a function, or coroutine function, under its module path and name (or `name`). Returns a Handler.

    The function takes the JobContext, and may take parameters, which are the keys of the job's data.

    `timeout`: seconds or "30s", after which the supervisor kills the job's process tree; 0 for none.
    `memory`: bytes or "256M", the private memory of all processes of the job together; 0 for no limit.
    `retries`: how many exceptions a job survives. `on_error`, `on_death`: "retry" or "fail".
    `max_deaths`: how many deaths of its child a job survives; 0 for any number.
    `backoff`: delay after an exception: seconds, a list of them (the last one repeats), or a function of the number of
    failures before this one.
    `at_most_once`: a job that has started once never starts again.
    `sandbox`: "basic" or "strict", as in `--sandbox`. `network`: False denies the network; True allows it under strict.
    Where handlers differ in these two, a child enters the sandbox of its first job, after the @after_fork functions,
    and from then on runs only jobs of handlers with the same choice.
    `on_cut_off`: "go-on" or "stop": what a job does when its supervisor is cut off from Redis for so long that a peer
    may have the job.
    `concurrency`: how many jobs of a coroutine function one child runs at once, at most 10,000. They share the process:
    its death stops all of them.
    `fail_on`: exceptions after which the job has failed for good. `retry_on`: exceptions after which it runs again; any
    other then fails it, unless `on_error` says otherwise.
    `queue lane priority limit unique debounce throttle collect most tags expires`: what each job of `put`, `aput` and
    `job` has, as for `Queue.put`. With `collect` the function takes one parameter, the list of what was put; or none.
    `cron` with `tz`, or `every`: supervisors of this code put a recurring job, whose jid is the klass. Its jobs have
    these options and no data.

    None leaves the choice to the `run` flag or the default. Raises ValueError or TypeError.
    """
    _check_name(name)
    settings = HandlerSettings(
        timeout_s=None if timeout is None else _seconds("timeout", timeout),
        memory_bytes=None if memory is None else _bytes(memory),
        retries=_count("retries", retries),
        on_error=_choice("on_error", on_error, "retry", "fail"),
        on_death=_choice("on_death", on_death, "retry", "fail"),
        max_deaths=_count("max_deaths", max_deaths),
        at_most_once=_truth("at_most_once", at_most_once),
        sandbox=_choice("sandbox", sandbox, "basic", "strict"),
        network=None if network is None else _truth("network", network),
        on_cut_off=_choice("on_cut_off", on_cut_off, "go-on", "stop"),
        concurrency=_concurrency(concurrency),
    )
    steps = _backoff(backoff)
    retried, failed = _classes("retry_on", retry_on), _classes("fail_on", fail_on)
    put_options = _put_options(
        queue=queue, lane=lane, priority=priority, limit=limit, unique=unique, tags=tags, expires=expires,
        debounce=debounce, throttle=throttle, collect=collect, most=most,
    )  # fmt: skip
    rhythm = _rhythm(cron, tz, every)
    if rhythm and (moded := [name for name in MODES if name in put_options]):
        raise ValueError(f"@handler({moded[0]}={put_options[moded[0]]!r}): a recurring job has no such mode")

    def register(function: Function) -> Handler[..., Any]:
        if isinstance(function, Handler):
            function = function.function  # a function may be registered under several names
        if not callable(function):
            raise TypeError(f"@handler takes a function, not {function!r}")
        if name is None and not hasattr(function, "__name__"):
            raise TypeError(f"@handler: {function!r} has no name of its own; give it one with name=")
        is_async = inspect.iscoroutinefunction(function)
        if settings.shares_child and not is_async:
            raise TypeError(f"@handler(concurrency={concurrency}) takes a function of `async def`, not {function!r}")
        made = Handler(function, name, settings, is_async, steps, retried, failed or (), put_options, rhythm)
        _registered.append(made)
        return made

    return register if function is None else register(function)


def _check_name(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value.encode()) <= 64:
        raise ValueError(f"@handler(name={value!r}): write 1 to 64 bytes of printable text")


def _seconds(option: str, value: Duration) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError("not a number")
        if isinstance(value, timedelta):
            value = value.total_seconds()
        return parse_duration(value) if isinstance(value, str) else _not_negative(float(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"@handler({option}={value!r}): {error}; write seconds, or a duration like '30s'") from error


def _bytes(value: int | str) -> int:
    try:
        size_bytes = parse_size(value) if isinstance(value, str) else _count("memory", value)
    except ValueError as error:
        raise ValueError(f"@handler(memory={value!r}): {error}; write bytes, or a size like '256M'") from error
    assert size_bytes is not None
    return size_bytes


def _concurrency(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_BESIDE:
        raise ValueError(f"@handler(concurrency={value!r}): write a number of jobs, from 1 to {MOST_BESIDE:,}")
    return value


def _not_negative(value: float) -> float:
    if not 0 <= value < float("inf"):
        raise ValueError("not a number of seconds, 0 or more")
    return value


def _classes(option: str, value: ExceptionClasses | None) -> tuple[type[BaseException], ...] | None:
    """Return exception classes as a tuple. Raises ValueError for anything else, and for our own orders."""
    if value is None:
        return None
    classes = (value,) if isinstance(value, type) else tuple(value)
    for one in classes:
        if (
            not isinstance(one, type)
            or not issubclass(one, BaseException)
            or issubclass(one, Retry | Fail | Interrupted)
        ):
            raise ValueError(f"@handler({option}={value!r}): write exception classes, like (ConnectionError,)")
    return classes


def _put_options(**given: Any) -> dict[str, Any]:
    """Return the options of a put that were given. Raises ValueError for one that put would refuse."""
    options = {name: value for name, value in given.items() if value is not None}
    try:
        if "queue" in options:
            checked_name("queue", options["queue"])
        checked_options(options)
        checked_mode(options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"@handler: {error}") from error
    return options


def _rhythm(cron: str | None, tz: str | None, every: Duration | None) -> dict[str, Any]:
    """Return the rhythm of a recurring job. Raises ValueError for one that no recurring job could have."""
    if cron is None and every is None:
        if tz is not None:
            raise ValueError(f"@handler(tz={tz!r}) goes with cron")
        return {}
    try:
        return checked_rhythm(cron, tz, every)
    except (TypeError, ValueError) as error:
        raise ValueError(f"@handler: {error}") from error


def _count(option: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST):
        raise ValueError(f"@handler({option}={value!r}): write a whole number, 0 or more")
    return value


def _choice(option: str, value: str | None, *known: str) -> str | None:
    if value is not None and value not in known:
        raise ValueError(f"@handler({option}={value!r}): write {' or '.join(map(repr, known))}")
    return value


def _truth(option: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"@handler({option}={value!r}): write True or False")
    return value


def _backoff(value: Backoff | None) -> tuple[float, ...] | Callable[[int], object] | None:
    if value is None or callable(value):
        return value
    if isinstance(value, int | float | str | timedelta):
        return (_delay(value),)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"@handler(backoff={value!r}): write seconds, a list of seconds, or a function of the failures"
        )
    return tuple(_delay(each) for each in value)


def _delay(value: Duration) -> float:
    delay_s = _seconds("backoff", value)
    if not math.isfinite(delay_s) or delay_s > MAX_DELAY_S:
        raise ValueError(f"@handler(backoff={value!r}): at most {MAX_DELAY_S:g} seconds")
    return delay_s


def load(root: str, level: str = "basic") -> dict[str, Handler[..., Any]]:
    """Import module or package `root` (dotted, or a path below the working directory) and all modules below it.

    Returns the handlers by klass: the module's path inside `root`, and the function's name. `level`: the run's sandbox,
    for handlers without a level of their own. Runs foreign code, which may raise anything. Raises HandlersError if
    there is no such module, no handler, or a klass twice.
    """
    root = module_of(root)
    import_all(root)
    found: dict[str, Handler[..., Any]] = {}
    for registered in _registered:
        klass = registered.klass_below(root)
        if klass in found and found[klass].function is not registered.function:
            raise HandlersError(f"two handlers are named {klass!r}: give one of them another name=")
        # The module's own handler is the one that is prepared: jobs of `job.put(welcome.job(…))` use its types, too.
        registered.settings = registered.settings.within(level)
        registered.name = klass  # so that `job` knows it in this process, whatever its root is
        found[klass] = registered
    if not found:
        raise HandlersError(f"no @handler in {root!r}: decorate at least one function below it")
    for klass, one in found.items():
        one.prepare(klass)
    return found


def registered() -> Sequence[Handler[..., Any]]:
    """Return the handlers of all modules that this process has imported, in the order of their definition."""
    return _registered


def import_all(root: str) -> None:
    """Import a module or package and all below it, from the working directory or the import path.

    Raises HandlersError if there is none of this name, and whatever foreign code raises.
    """
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        package = importlib.import_module(root)
    except ModuleNotFoundError as error:
        if error.name is None or not (root == error.name or root.startswith(error.name + ".")):
            raise
        raise HandlersError(
            f"there is no module {root!r} below {Path.cwd()} or on the import path: name it with --handlers"
        ) from error
    for name in _modules_below(package):
        importlib.import_module(name)


def foreign_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of foreign code on: without ours and those of the import system."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOT_FOREIGN):
        frames = frames.tb_next
    return frames


def _modules_below(package: ModuleType) -> list[str]:
    if not hasattr(package, "__path__"):
        return []
    found: list[str] = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        found.append(module.name)
        if module.ispkg:
            found += _modules_below(importlib.import_module(module.name))
    return [name for name in found if not name.endswith(".__main__")]
