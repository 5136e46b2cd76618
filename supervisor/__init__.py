"""Leasehold: background jobs from Redis in a supervised pool of forked processes. The public names."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.child.around import Ending, around_job
    from supervisor.child.context import JobBatch, JobContext
    from supervisor.child.handler import Handler
    from supervisor.child.handlers import handler
    from supervisor.child.hooks import after_fork, before_fork, on_exit
    from supervisor.child.orders import Fail, Interrupted, Retry, SoftTimeout
    from supervisor.child.typed_put import HandlerOptions, TypedPut
    from supervisor.engine.client.around_put import Put, around_put
    from supervisor.engine.client.async_batches import AsyncBatch
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.engine.client.async_config import AsyncConfig
    from supervisor.engine.client.async_doors import AsyncDoors
    from supervisor.engine.client.async_handles import AsyncJob, AsyncLease, AsyncRecurringJob
    from supervisor.engine.client.async_queues import AsyncLane, AsyncQueue
    from supervisor.engine.client.connection import EmbeddedServerWarning
    from supervisor.engine.client.event_stream import AsyncEventStream, Event, EventStream
    from supervisor.engine.client.job_stream import AsyncJobStream, JobStream
    from supervisor.engine.client.sync_batches import Batch
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_config import Config
    from supervisor.engine.client.sync_doors import Doors
    from supervisor.engine.client.sync_handles import Job, Lease, RecurringJob
    from supervisor.engine.client.sync_queues import Lane, Queue
    from supervisor.engine.commands.audit import Act
    from supervisor.engine.commands.batches import BatchCounts, BatchRecord
    from supervisor.engine.commands.check import Violation
    from supervisor.engine.commands.concerns import Concerns, QueueConcerns, ServerMemory
    from supervisor.engine.commands.deleting import Deleted
    from supervisor.engine.commands.doors import TakenEntries
    from supervisor.engine.commands.job_queries import Cancelled, Tracked
    from supervisor.engine.commands.lanes import LaneCounts
    from supervisor.engine.commands.limits import Limit, LimitHolder, LimitJobs, ParkedJob
    from supervisor.engine.commands.mailbox import ServeRequest
    from supervisor.engine.commands.queue_counts import Counts, Depths
    from supervisor.engine.commands.recent import Percentiles, Period, Recent
    from supervisor.engine.commands.statistics import Spread, Stats
    from supervisor.engine.commands.workers import WorkerInfo, WorkerJobs
    from supervisor.engine.model.doors import Door
    from supervisor.engine.model.errors import (
        DependencyError,
        JobFailed,
        JobNotFound,
        LayoutError,
        LeaseholdError,
        LeaseLost,
        NoServer,
        OutcomeUnknown,
        PutJobs,
        StoreUnavailable,
    )
    from supervisor.engine.model.job_to_put import JobToPut
    from supervisor.engine.model.jobs import Progress
    from supervisor.engine.model.new_jobs import PutOptions
    from supervisor.engine.model.outcomes import Completed, Died, Failed, Leased, Released, Retried
    from supervisor.engine.model.recurring import RecurChanges, RecurOptions
    from supervisor.engine.model.validation import Duration
    from supervisor.engine.why.record import Why
    from supervisor.in_process.worker import Worker
    from supervisor.messages import HandlerSettings, Trouble

#: The module of each name, loaded on first use: children must not load what speaks to Redis, and a command must start
#: fast.
_HOMES = {
    "AsyncBatch": "engine.client.async_batches",
    "AsyncClient": "engine.client.async_client",
    "AsyncConfig": "engine.client.async_config",
    "AsyncDoors": "engine.client.async_doors",
    "AsyncEventStream": "engine.client.event_stream",
    "AsyncJobStream": "engine.client.job_stream",
    "AsyncJob": "engine.client.async_handles",
    "AsyncLane": "engine.client.async_queues",
    "AsyncLease": "engine.client.async_handles",
    "AsyncQueue": "engine.client.async_queues",
    "AsyncRecurringJob": "engine.client.async_handles",
    "Batch": "engine.client.sync_batches",
    "BatchCounts": "engine.commands.batches",
    "Act": "engine.commands.audit",
    "BatchRecord": "engine.commands.batches",
    "Client": "engine.client.sync_client",
    "Completed": "engine.model.outcomes",
    "Concerns": "engine.commands.concerns",
    "Config": "engine.client.sync_config",
    "Cancelled": "engine.commands.job_queries",
    "Counts": "engine.commands.queue_counts",
    "Deleted": "engine.commands.deleting",
    "DependencyError": "engine.model.errors",
    "Depths": "engine.commands.queue_counts",
    "Died": "engine.model.outcomes",
    "Door": "engine.model.doors",
    "Doors": "engine.client.sync_doors",
    "Duration": "engine.model.validation",
    "EmbeddedServerWarning": "engine.client.connection",
    "Ending": "child.around",
    "Event": "engine.client.event_stream",
    "EventStream": "engine.client.event_stream",
    "Fail": "child.orders",
    "Failed": "engine.model.outcomes",
    "Handler": "child.handler",
    "HandlerOptions": "child.typed_put",
    "HandlerSettings": "messages",
    "Interrupted": "child.orders",
    "Job": "engine.client.sync_handles",
    "JobBatch": "child.context",
    "JobContext": "child.context",
    "JobFailed": "engine.model.errors",
    "JobNotFound": "engine.model.errors",
    "JobStream": "engine.client.job_stream",
    "Lane": "engine.client.sync_queues",
    "LaneCounts": "engine.commands.lanes",
    "LayoutError": "engine.model.errors",
    "Lease": "engine.client.sync_handles",
    "LeaseLost": "engine.model.errors",
    "Leased": "engine.model.outcomes",
    "LeaseholdError": "engine.model.errors",
    "Limit": "engine.commands.limits",
    "LimitHolder": "engine.commands.limits",
    "LimitJobs": "engine.commands.limits",
    "NoServer": "engine.model.errors",
    "OutcomeUnknown": "engine.model.errors",
    "ParkedJob": "engine.commands.limits",
    "Progress": "engine.model.jobs",
    "Put": "engine.client.around_put",
    "PutJobs": "engine.model.errors",
    "JobToPut": "engine.model.job_to_put",
    "PutOptions": "engine.model.new_jobs",
    "Queue": "engine.client.sync_queues",
    "QueueConcerns": "engine.commands.concerns",
    "Percentiles": "engine.commands.recent",
    "Period": "engine.commands.recent",
    "Recent": "engine.commands.recent",
    "RecurChanges": "engine.model.recurring",
    "RecurOptions": "engine.model.recurring",
    "RecurringJob": "engine.client.sync_handles",
    "Released": "engine.model.outcomes",
    "Retried": "engine.model.outcomes",
    "ServeRequest": "engine.commands.mailbox",
    "ServerMemory": "engine.commands.concerns",
    "Retry": "child.orders",
    "SoftTimeout": "child.orders",
    "Spread": "engine.commands.statistics",
    "Stats": "engine.commands.statistics",
    "TakenEntries": "engine.commands.doors",
    "StoreUnavailable": "engine.model.errors",
    "Tracked": "engine.commands.job_queries",
    "Trouble": "messages",
    "TypedPut": "child.typed_put",
    "Violation": "engine.commands.check",
    "Why": "engine.why.record",
    "Worker": "in_process.worker",
    "WorkerInfo": "engine.commands.workers",
    "WorkerJobs": "engine.commands.workers",
    "after_fork": "child.hooks",
    "around_job": "child.around",
    "around_put": "engine.client.around_put",
    "before_fork": "child.hooks",
    "handler": "child.handlers",
    "on_exit": "child.hooks",
}

__all__ = [
    "Act",
    "AsyncBatch",
    "AsyncClient",
    "AsyncConfig",
    "AsyncDoors",
    "AsyncEventStream",
    "AsyncJob",
    "AsyncJobStream",
    "AsyncLane",
    "AsyncLease",
    "AsyncQueue",
    "AsyncRecurringJob",
    "Batch",
    "BatchCounts",
    "BatchRecord",
    "Cancelled",
    "Client",
    "Completed",
    "Concerns",
    "Config",
    "Counts",
    "Deleted",
    "DependencyError",
    "Depths",
    "Died",
    "Door",
    "Doors",
    "Duration",
    "EmbeddedServerWarning",
    "Ending",
    "Event",
    "EventStream",
    "Fail",
    "Failed",
    "Handler",
    "HandlerOptions",
    "HandlerSettings",
    "Interrupted",
    "Job",
    "JobBatch",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "JobStream",
    "JobToPut",
    "Lane",
    "LaneCounts",
    "LayoutError",
    "Lease",
    "LeaseLost",
    "Leased",
    "LeaseholdError",
    "Limit",
    "LimitHolder",
    "LimitJobs",
    "NoServer",
    "OutcomeUnknown",
    "ParkedJob",
    "Percentiles",
    "Period",
    "Progress",
    "Put",
    "PutJobs",
    "PutOptions",
    "Queue",
    "QueueConcerns",
    "Recent",
    "RecurChanges",
    "RecurOptions",
    "RecurringJob",
    "Released",
    "Retried",
    "Retry",
    "ServeRequest",
    "ServerMemory",
    "SoftTimeout",
    "Spread",
    "Stats",
    "StoreUnavailable",
    "TakenEntries",
    "Tracked",
    "Trouble",
    "TypedPut",
    "Violation",
    "Why",
    "Worker",
    "WorkerInfo",
    "WorkerJobs",
    "after_fork",
    "around_job",
    "around_put",
    "before_fork",
    "handler",
    "on_exit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    return getattr(import_module(f"supervisor.{_HOMES[name]}"), name)
