"""Leasehold: background jobs from Redis in a supervised pool of forked processes. The public names."""

from typing import TYPE_CHECKING, Any

from supervisor.pool.handlers import Fail, Interrupted, Retry, handler

if TYPE_CHECKING:
    from supervisor.engine.aio import AsyncClient
    from supervisor.engine.client import Client
    from supervisor.engine.errors import LeaseholdError, LeaseLost
    from supervisor.engine.jobs import Completed, Died, Failed, Job, Lease, Released, Retried

#: Loaded on first use: they need redis, which no child should carry.
_ENGINE = {
    "AsyncClient": "aio",
    "Client": "client",
    "Completed": "jobs",
    "Died": "jobs",
    "Failed": "jobs",
    "Job": "jobs",
    "Lease": "jobs",
    "LeaseLost": "errors",
    "LeaseholdError": "errors",
    "Released": "jobs",
    "Retried": "jobs",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Completed",
    "Died",
    "Fail",
    "Failed",
    "Interrupted",
    "Job",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Released",
    "Retried",
    "Retry",
    "handler",
]


def __getattr__(name: str) -> Any:
    if name not in _ENGINE:
        raise AttributeError(f"module 'supervisor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"supervisor.engine.{_ENGINE[name]}"), name)
