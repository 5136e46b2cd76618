"""Skips the at-fork hooks of `threading` and `logging` in forks of a single thread. Runs in zygote and children.

Owns the hooks of these two modules. The hooks repair what missing threads have left in a fork: locks that they held,
and the list of threads. A fork of a single thread needs no repair, and each hook copies pages (DECISIONS.md).
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_MODULES: Final = frozenset({"threading", "logging"})
_Hooks = Mapping[str, Callable[[], object]]

_hooks: list[_Hooks] = []
_active_count: Callable[[], int]  # threading.active_count
_may_skip = False  # in the fork under way
_hooks_needed = True


def take_over() -> None:
    """Import both modules, and call their at-fork hooks from now on, instead of Python.

    Call it in a process of ours, before it has threads. Has no effect on a module that is imported already.
    """
    global _active_count
    register = os.register_at_fork

    def catch(**hooks: Any) -> None:
        if _MODULES.isdisjoint(getattr(hook, "__module__", None) for hook in hooks.values()):
            register(**hooks)
        else:
            _hooks.append(hooks)

    os.register_at_fork = catch
    try:
        for name in sorted(_MODULES):
            importlib.import_module(name)
    finally:
        os.register_at_fork = register
    _active_count = sys.modules["threading"].active_count
    register(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def fork() -> int:
    """Fork as os.fork does. Skips the hooks if the calling thread is the only one that Python knows."""
    global _may_skip, _hooks_needed
    _may_skip = True
    try:
        return os.fork()
    finally:
        _may_skip, _hooks_needed = False, True


def _before() -> None:
    global _hooks_needed
    # Decided after all other hooks, which may start threads. `threading` may still list an ended thread of native code,
    # which it has not started itself.
    _hooks_needed = not _may_skip or len(sys._current_frames()) > 1 or _active_count() > 1
    if _hooks_needed:
        _call(reversed(_hooks), "before")


def _in_parent() -> None:
    if _hooks_needed:
        _call(_hooks, "after_in_parent")


def _in_child() -> None:
    if _hooks_needed:
        _call(_hooks, "after_in_child")


def _call(hooks: Iterable[_Hooks], when: str) -> None:
    for registered in hooks:
        hook = registered.get(when)
        if hook is not None:
            hook()
