"""A test kit for applications: handlers run in the process of their tests. A plugin of pytest; runs in its process."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.testing.crash_points import every_crash_point
    from supervisor.testing.leasehold import Leasehold
    from supervisor.testing.pool import RunningPool
    from supervisor.testing.recording import RecordingContext
    from supervisor.testing.run import Run

#: The module of each name, loaded on first use: the plugin lies in this package, and each session of pytest loads it.
_HOMES = {
    "Leasehold": "leasehold",
    "RecordingContext": "recording",
    "Run": "run",
    "RunningPool": "pool",
    "every_crash_point": "crash_points",
}

__all__ = ["Leasehold", "RecordingContext", "Run", "RunningPool", "every_crash_point"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'supervisor.testing' has no attribute {name!r}")
    return getattr(import_module(f"supervisor.testing.{_HOMES[name]}"), name)
