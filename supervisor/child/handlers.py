"""Handlers: how application code names them, ends a job in its own words, and how the zygote loads them.

Runs in zygote and children. Owns the registry. Must not import redis: every child would carry it.
"""

import importlib
import inspect
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from supervisor.config import parse_duration, parse_size
from supervisor.engine.model.validation import Duration, in_seconds
from supervisor.messages import MAX_DELAY_S, HandlerSettings, Trouble

if TYPE_CHECKING:
    from supervisor.child.job import Job

Function = Callable[..., Any]
#: Seconds until the next try; of a list one by one, the last one repeats; a function is given the failures so far.
Backoff = Duration | Sequence[Duration] | Callable[[int], float]
F = TypeVar("F", bound=Function)


class Retry(Exception):  # an order to the supervisor, not an error
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


class Interrupted(BaseException):  # not an Exception: `except Exception` in a handler must not swallow it
    """Raised inside a handler that has to stop; the job goes back to the front of its queue, its retries unspent.

    `reason`: drain, reload, scaled, cut-off, cancelled or lease-lost.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SoftTimeout(BaseException):  # not an Exception, for the same reason
    """Raised inside a handler whose time limit is near: a tenth of it before, at most `--term-grace`. Clean up, or
    return what there is. If it leaves the handler, the job has failed in group `timeout`, as by an exception; at the
    limit the job's process tree is killed, which is a death.
    """


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered handler."""

    function: Function
    name: str | None
    settings: HandlerSettings
    is_async: bool
    backoff: tuple[float, ...] | Callable[[int], object] | None = None

    def backoff_s(self, failures: int) -> float | None:
        """How long to wait before the next try, by its own `backoff`; None: it has none. `failures`: before this one.
        Raises whatever a foreign function raises, and ValueError for nonsense that it answers.
        """
        if self.backoff is None:
            return None
        if isinstance(self.backoff, tuple):
            return self.backoff[min(failures, len(self.backoff) - 1)]
        answer = self.backoff(failures)
        if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 <= answer <= MAX_DELAY_S:
            raise ValueError(f"it answers {answer!r:.100} for {failures} failures; give seconds, 0 or more")
        return float(answer)


class HandlersError(Exception):
    """The handlers cannot be used; the message says which and why."""


_PACKAGE = Path(__file__).parents[1]
_NOT_FOREIGN = (
    *(f"{_PACKAGE / folder}{os.sep}" for folder in ("zygote", "child", "sandbox", "linux")),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)

_LARGEST = 2**53  # whole numbers above it do not survive Redis

_registered: list[Handler] = []


class Ending(NamedTuple):
    """How a run has ended, as far as its child knows: completed, retried, failed or interrupted, and why."""

    outcome: str
    trouble: Trouble | None = None


#: Called before a handler is, with its job; what it answers is called when that has ended.
Around = Callable[["Job"], Callable[[Ending], object]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What handlers want to be done around forks and jobs, in the order of their registration."""

    before_fork: list[Callable[[], object]] = field(default_factory=list)
    after_fork: list[Callable[[], object]] = field(default_factory=list)
    on_exit: list[Callable[[], object]] = field(default_factory=list)
    confined: list[Callable[[], object]] = field(default_factory=list)
    around_job: list[Around] = field(default_factory=list)


hooks = Hooks()

H = TypeVar("H", bound=Callable[[], object])


def before_fork(function: H) -> H:
    """Have `function()` called in the zygote before each fork: let go of what children must not share. It must be
    short: no child is forked meanwhile. If it raises, no child is forked, and it is tried again with a back-off.
    """
    return _hook("before_fork", hooks.before_fork, function)


def after_fork(function: H) -> H:
    """Have `function()` called in each child before it takes its first job: open what is the child's own. If it raises,
    the child ends; after several in a row the supervisor exits with status 71.
    """
    return _hook("after_fork", hooks.after_fork, function)


def on_exit(function: H) -> H:
    """Have `function()` called in each child after its last job, for at most ten seconds, in a drain within its time:
    flush and close what is the child's own. Not in a child that dies or is killed.
    """
    return _hook("on_exit", hooks.on_exit, function)


def when_confined(function: H) -> H:
    """Have `function()` called in each child as soon as it is in its sandbox: after the @after_fork functions, or where
    handlers differ in it, with its first job. So what starts threads starts no free ones.
    """
    return _hook("when_confined", hooks.confined, function)


def around_job(function: Around) -> Around:
    """Have `function(job)` called in the child before each job's handler, and what it answers when that has ended, with
    an Ending. Neither is interrupted, both are in the job's time, and what they raise is a line in its output.
    """
    hooks.around_job.append(function)
    return function


def _hook(name: str, registered: list[Callable[[], object]], function: H) -> H:
    if not callable(function):
        raise TypeError(f"@{name} takes a function without arguments, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"@{name} takes a plain function, not the coroutine function {function!r}")
    registered.append(function)
    return function


@overload
def handler(function: F, /) -> F: ...
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
) -> Callable[[F], F]: ...


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
) -> Any:
    """Register a function, or coroutine function, that takes one `job`, under its module path and name (or `name`).

    `timeout`: seconds or "30s", after which the job's process tree is killed; 0 for none. `memory`: bytes or "256M" of
    private memory that its processes may have together, 0 for any amount. `retries`: how often an
    exception is forgiven. `on_error`, `on_death`: "retry" or "fail". `max_deaths`: how many deaths of its child a job
    survives, 0 for any number. `backoff`: how long an exception puts it off: seconds, a list of them (the last one
    repeats), or a function of the failures before this one. `at_most_once`: what has started once never starts again.
    `sandbox`: "basic" or "strict", as `--sandbox` has it. `network`: False keeps the handler from it; True gives it to
    a strict one. Where handlers differ in these two, a child is closed in with its first job, after the @after_fork
    functions, and then runs only jobs of handlers that are alike in them.
    `on_cut_off`: "go-on" or "stop", what a job does whose supervisor is cut off from Redis until a peer may have it.
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
    )
    steps = _backoff(backoff)

    def register(function: F) -> F:
        if not callable(function):
            raise TypeError(f"@handler takes a function, not {function!r}")
        if name is None and not hasattr(function, "__name__"):
            raise TypeError(f"@handler: {function!r} has no name of its own; give it one with name=")
        _registered.append(Handler(function, name, settings, inspect.iscoroutinefunction(function), steps))
        return function

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


def _not_negative(value: float) -> float:
    if not 0 <= value < float("inf"):
        raise ValueError("not a number of seconds, 0 or more")
    return value


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


def load(root: str, level: str = "basic") -> dict[str, Handler]:
    """Import module or package `root` (dotted, or a path below the working directory) and all modules below it.

    Answers the handlers by klass: the module's path inside `root`, and the function's name. Runs foreign code, which
    may raise anything. `level`: of the run's sandbox, for handlers that have none of their own. Raises HandlersError
    where there is no such module, no handler, or one name twice.
    """
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    root = root.strip("/").removeprefix("./").removesuffix(".py").replace("/", ".")
    _import_all(root)
    found: dict[str, Handler] = {}
    for registered in _registered:
        klass = registered.name or _klass(root, registered.function)
        if klass in found and found[klass].function is not registered.function:
            raise HandlersError(f"two handlers are named {klass!r}: give one of them another name=")
        found[klass] = replace(registered, settings=registered.settings.within(level))
    if not found:
        raise HandlersError(f"no @handler in {root!r}: decorate at least one function below it")
    return found


def _import_all(root: str) -> None:
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


def foreign_part(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of ours and of the import system that come before foreign code."""
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


def _klass(root: str, function: Function) -> str:
    module = f"{function.__module__}.".removeprefix(f"{root}.")
    return f"{module}{function.__name__}"
