"""What `threading` and `logging` do around a fork, for the forks that need it. Runs in zygote and children.

They set right what other threads have left in a fork that does not have them: locks that they held, the list of who
they are. After the fork of a single thread all that is as it should be; yet their work alone has two hundred pages
copied, a tenth of what a forked job costs.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_THEIRS: Final = frozenset({"threading", "logging"})
_Hooks = Mapping[str, Callable[[], object]]

_hooks: list[_Hooks] = []
_active_count: Callable[[], int]  # of `threading`, once that is imported
_may_leave_out = False  # in the fork that is under way
_needed = True


def take_over() -> None:
    """Import both, and call from now on what they register for forks, in place of Python. What somebody has imported
    before stays Python's. In a process of ours only, before it has threads.
    """
    global _active_count
    register = os.register_at_fork

    def catch(**hooks: Any) -> None:
        if _THEIRS.isdisjoint(getattr(hook, "__module__", None) for hook in hooks.values()):
            register(**hooks)
        else:
            _hooks.append(hooks)

    os.register_at_fork = catch
    try:
        for name in sorted(_THEIRS):
            importlib.import_module(name)
    finally:
        os.register_at_fork = register
    _active_count = sys.modules["threading"].active_count
    register(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def fork() -> int:
    """As os.fork does. Their work is left out where nothing but the calling thread runs Python, or is known to."""
    global _may_leave_out, _needed
    _may_leave_out = True
    try:
        return os.fork()
    finally:
        _may_leave_out, _needed = False, True


def _before() -> None:
    global _needed
    # Now, behind what all others do before a fork: that may start threads. And one that `threading` has not started may
    # have ended and be listed still.
    _needed = not _may_leave_out or len(sys._current_frames()) > 1 or _active_count() > 1
    if _needed:
        _call(reversed(_hooks), "before")


def _in_parent() -> None:
    if _needed:
        _call(_hooks, "after_in_parent")


def _in_child() -> None:
    if _needed:
        _call(_hooks, "after_in_child")


def _call(hooks: Iterable[_Hooks], when: str) -> None:
    for theirs in hooks:
        hook = theirs.get(when)
        if hook is not None:
            hook()
