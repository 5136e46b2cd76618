"""Takes the arguments of a worker inside of an application. Runs in applications."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from supervisor.child import handlers, loading
from supervisor.child.handler import Handler, HandlersError, module_of
from supervisor.child.schemas import described, published
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import checked_each


def checked_client(client: object) -> AsyncClient:
    if not isinstance(client, AsyncClient):
        raise TypeError(f"client must be an AsyncClient, not {type(client).__name__}: {client!r:.100}")
    return client


def checked_queues(queues: str | Iterable[str], order: str) -> Queues:
    """Raises TypeError or ValueError."""
    return Queues([queues] if isinstance(queues, str) else checked_each("queues", queues, "names"), order)


def prepared(given: str | Iterable[Handler[..., Any]]) -> tuple[dict[str, Handler[..., Any]], dict[str, str]]:
    """Return the handlers by klass, ready to run, and the schemas of their data by shape.

    The handlers are those given, or all of a module or package.

    Raises HandlersError, TypeError or ValueError, and what the modules raise.
    """
    found = _by_klass(_below(given) if isinstance(given, str) else given)
    descriptions = [described(one) for one in found.values()]
    for one, (shape, _) in zip(found.values(), descriptions, strict=True):
        one.settings = replace(one.settings, shape=shape)
    return found, published(descriptions)


def _below(root: str) -> list[Handler[..., Any]]:
    """Import a module or package, and return its handlers. Others that the application has imported stay out."""
    root = module_of(root)
    loading.import_all(root)
    found = [one for one in handlers.registered() if f"{one.__module__}.".startswith(f"{root}.")]
    if not found:
        raise HandlersError(f"no @handler in {root!r}: decorate at least one function below it")
    for one in found:
        one.name = one.klass_below(root)  # so that its puts know it, whatever the root of other processes is
    return found


def _by_klass(given: Iterable[Handler[..., Any]]) -> dict[str, Handler[..., Any]]:
    found: dict[str, Handler[..., Any]] = {}
    for one in checked_each("handlers", given, "handlers"):
        if not isinstance(one, Handler):
            raise TypeError(f"handlers must be functions with @handler, not {type(one).__name__}: {one!r:.100}")
        klass = one.klass
        if found.setdefault(klass, one) is not one:
            raise HandlersError(f"two handlers are named {klass!r}: give one of them another name=")
        one.prepare(klass)
    if not found:
        raise ValueError("handlers must have at least one handler")
    return found
