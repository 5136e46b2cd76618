"""Registers handlers. Runs in zygote and children.

Owns the registry, and checks the options of `@handler`. Must not import redis, which every child would carry.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from supervisor.child.handler import Handler
from supervisor.child.orders import Fail, Interrupted, Retry
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import checked_options
from supervisor.engine.model.rhythm import checked_rhythm
from supervisor.engine.model.unique_modes import MODES, checked_mode
from supervisor.engine.model.validation import Duration
from supervisor.messages import MAX_DELAY_S, MOST_BESIDE, HandlerSettings
from supervisor.units import parse_duration, parse_size

if TYPE_CHECKING:
    from supervisor.child.context import JobContext

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
ExceptionClasses = type[BaseException] | Sequence[type[BaseException]]
#: Seconds until the next try. A list gives one value per failure, and repeats the last; a function gets the failures.
Backoff = Duration | Sequence[Duration] | Callable[[int], float]

_LARGEST = 2**53  # Redis does not store larger integers exactly

_registered: list[Handler[..., Any]] = []


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


def registered() -> Sequence[Handler[..., Any]]:
    """Return the handlers of all modules that this process has imported, in the order of their definition."""
    return _registered
