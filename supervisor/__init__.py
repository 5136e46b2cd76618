"""Leasehold: background jobs from Redis in a supervised pool of forked processes. The public names."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.engine.aio import AsyncClient
    from supervisor.engine.client import Client
    from supervisor.engine.connection import EmbeddedServerWarning
    from supervisor.engine.errors import (
        DependencyError,
        JobFailed,
        JobNotFound,
        LeaseholdError,
        LeaseLost,
        NoServer,
        OutcomeUnknown,
        StoreUnavailable,
    )
    from supervisor.engine.handles import Job, Lease
    from supervisor.engine.jobs import Progress
    from supervisor.engine.lanes import Deleted, LaneCounts
    from supervisor.engine.limits import Limit
    from supervisor.engine.looks import Wish
    from supervisor.engine.outcomes import Completed, Died, Failed, Released, Retried
    from supervisor.pool.handlers import (
        Fail,
        Interrupted,
        Retry,
        SoftTimeout,
        after_fork,
        before_fork,
        handler,
        on_exit,
    )

#: Where each name lives. Loaded on first use: what speaks to Redis must not get into the children, and the command must
#: not wait for what it does not need.
_HOMES = {
    "AsyncClient": "engine.aio",
    "Client": "engine.client",
    "Completed": "engine.outcomes",
    "Deleted": "engine.lanes",
    "DependencyError": "engine.errors",
    "Died": "engine.outcomes",
    "EmbeddedServerWarning": "engine.connection",
    "Fail": "pool.handlers",
    "Failed": "engine.outcomes",
    "Interrupted": "pool.handlers",
    "Job": "engine.handles",
    "JobFailed": "engine.errors",
    "JobNotFound": "engine.errors",
    "LaneCounts": "engine.lanes",
    "Lease": "engine.handles",
    "LeaseLost": "engine.errors",
    "LeaseholdError": "engine.errors",
    "Limit": "engine.limits",
    "NoServer": "engine.errors",
    "OutcomeUnknown": "engine.errors",
    "Progress": "engine.jobs",
    "Released": "engine.outcomes",
    "Retried": "engine.outcomes",
    "Retry": "pool.handlers",
    "SoftTimeout": "pool.handlers",
    "StoreUnavailable": "engine.errors",
    "Wish": "engine.looks",
    "after_fork": "pool.handlers",
    "before_fork": "pool.handlers",
    "handler": "pool.handlers",
    "on_exit": "pool.handlers",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Completed",
    "Deleted",
    "DependencyError",
    "Died",
    "EmbeddedServerWarning",
    "Fail",
    "Failed",
    "Interrupted",
    "Job",
    "JobFailed",
    "JobNotFound",
    "LaneCounts",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Limit",
    "NoServer",
    "OutcomeUnknown",
    "Progress",
    "Released",
    "Retried",
    "Retry",
    "SoftTimeout",
    "StoreUnavailable",
    "Wish",
    "after_fork",
    "before_fork",
    "handler",
    "on_exit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    return getattr(import_module(f"supervisor.{_HOMES[name]}"), name)
