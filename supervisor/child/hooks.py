"""Registers functions of the application that run beside its handlers. Runs in zygote and children."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that handlers have registered, in the order of registration."""

    before_fork: list[Callable[[], object]] = field(default_factory=list)
    after_fork: list[Callable[[], object]] = field(default_factory=list)
    on_exit: list[Callable[[], object]] = field(default_factory=list)
    confined: list[Callable[[], object]] = field(default_factory=list)


registered_hooks = Hooks()

H = TypeVar("H", bound=Callable[[], object])


def before_fork(function: H) -> H:
    """Have `function()` called in the zygote before each fork, to let go of what children must not share.

    Keep it short: no child is forked meanwhile. If it raises, no child is forked, and the zygote tries again with a
    back-off.
    """
    return _hook("before_fork", registered_hooks.before_fork, function)


def after_fork(function: H) -> H:
    """Have `function()` called in each child before its first job, to open what is the child's own.

    If it raises, the child ends. After several such ends in a row the supervisor exits with status 71.
    """
    return _hook("after_fork", registered_hooks.after_fork, function)


def on_exit(function: H) -> H:
    """Have `function()` called in each child after its last job, to flush and close what is the child's own.

    It has ten seconds; a drain may leave less. It is not called in a child that dies or is killed.
    """
    return _hook("on_exit", registered_hooks.on_exit, function)


def when_confined(function: H) -> H:
    """Have `function()` called in each child as soon as its sandbox is closed, so that threads it starts are confined.

    This is after the @after_fork functions; where handlers differ in their sandbox, it is at the first job.
    """
    return _hook("when_confined", registered_hooks.confined, function)


def _hook(name: str, functions: list[Callable[[], object]], function: H) -> H:
    if not callable(function):
        raise TypeError(f"@{name} takes a function without arguments, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"@{name} takes a plain function, not the coroutine function {function!r}")
    functions.append(function)
    return function
