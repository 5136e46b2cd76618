"""Leasehold: background jobs from Redis in a supervised pool of forked processes. The public names."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.engine.aio import AsyncClient, AsyncConfig, AsyncLane, AsyncQueue
    from supervisor.engine.check import Violation
    from supervisor.engine.checks import Duration
    from supervisor.engine.client import Client, Config, Lane, Queue
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
    from supervisor.engine.handles import AsyncJob, AsyncLease, AsyncRecurringJob, Job, Lease, RecurringJob
    from supervisor.engine.jobs import Progress, PutOptions
    from supervisor.engine.lanes import Deleted, LaneCounts
    from supervisor.engine.limits import Limit, LimitHolder, LimitJobs, ParkedJob
    from supervisor.engine.looks import Cancelled, Counts, Depths, Spread, Stats, Tracked, Wish, Worker, WorkerJobs
    from supervisor.engine.outcomes import Completed, Died, Failed, Released, Retried
    from supervisor.engine.recurring import RecurOptions
    from supervisor.engine.stream import AsyncEventStream, Event, EventStream
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
    "AsyncConfig": "engine.aio",
    "AsyncEventStream": "engine.stream",
    "AsyncJob": "engine.handles",
    "AsyncLane": "engine.aio",
    "AsyncLease": "engine.handles",
    "AsyncQueue": "engine.aio",
    "AsyncRecurringJob": "engine.handles",
    "Client": "engine.client",
    "Completed": "engine.outcomes",
    "Config": "engine.client",
    "Cancelled": "engine.looks",
    "Counts": "engine.looks",
    "Deleted": "engine.lanes",
    "DependencyError": "engine.errors",
    "Depths": "engine.looks",
    "Died": "engine.outcomes",
    "Duration": "engine.checks",
    "EmbeddedServerWarning": "engine.connection",
    "Event": "engine.stream",
    "EventStream": "engine.stream",
    "Fail": "pool.handlers",
    "Failed": "engine.outcomes",
    "Interrupted": "pool.handlers",
    "Job": "engine.handles",
    "JobFailed": "engine.errors",
    "JobNotFound": "engine.errors",
    "Lane": "engine.client",
    "LaneCounts": "engine.lanes",
    "Lease": "engine.handles",
    "LeaseLost": "engine.errors",
    "LeaseholdError": "engine.errors",
    "Limit": "engine.limits",
    "LimitHolder": "engine.limits",
    "LimitJobs": "engine.limits",
    "NoServer": "engine.errors",
    "OutcomeUnknown": "engine.errors",
    "ParkedJob": "engine.limits",
    "Progress": "engine.jobs",
    "PutOptions": "engine.jobs",
    "Queue": "engine.client",
    "RecurOptions": "engine.recurring",
    "RecurringJob": "engine.handles",
    "Released": "engine.outcomes",
    "Retried": "engine.outcomes",
    "Retry": "pool.handlers",
    "SoftTimeout": "pool.handlers",
    "Spread": "engine.looks",
    "Stats": "engine.looks",
    "StoreUnavailable": "engine.errors",
    "Tracked": "engine.looks",
    "Violation": "engine.check",
    "Wish": "engine.looks",
    "Worker": "engine.looks",
    "WorkerJobs": "engine.looks",
    "after_fork": "pool.handlers",
    "before_fork": "pool.handlers",
    "handler": "pool.handlers",
    "on_exit": "pool.handlers",
}

__all__ = [
    "AsyncClient",
    "AsyncConfig",
    "AsyncEventStream",
    "AsyncJob",
    "AsyncLane",
    "AsyncLease",
    "AsyncQueue",
    "AsyncRecurringJob",
    "Cancelled",
    "Client",
    "Completed",
    "Config",
    "Counts",
    "Deleted",
    "DependencyError",
    "Depths",
    "Died",
    "Duration",
    "EmbeddedServerWarning",
    "Event",
    "EventStream",
    "Fail",
    "Failed",
    "Interrupted",
    "Job",
    "JobFailed",
    "JobNotFound",
    "Lane",
    "LaneCounts",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Limit",
    "LimitHolder",
    "LimitJobs",
    "NoServer",
    "OutcomeUnknown",
    "ParkedJob",
    "Progress",
    "PutOptions",
    "Queue",
    "RecurOptions",
    "RecurringJob",
    "Released",
    "Retried",
    "Retry",
    "SoftTimeout",
    "Spread",
    "Stats",
    "StoreUnavailable",
    "Tracked",
    "Violation",
    "Wish",
    "Worker",
    "WorkerJobs",
    "after_fork",
    "before_fork",
    "handler",
    "on_exit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    return getattr(import_module(f"supervisor.{_HOMES[name]}"), name)
