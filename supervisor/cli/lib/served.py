"""Finds the supervisors that serve a queue, by their own status. Runs in commands. Must not change anything."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.workers import WorkerInfo

Status = Mapping[str, Any]


def ask_servers(client: "Client", known: Collection[str], timeout_s: float) -> dict[str, list[str]] | None:
    """Ask the supervisors now, and return `servers` of their answers. None if they cannot be asked."""
    from supervisor.engine.model.errors import LeaseholdError

    try:
        answers = client.ask(None, "status", timeout_s)
        workers = client.workers()
    except LeaseholdError:  # a replica or a read-only account cannot ask
        return None
    status = {name: answer if is_status(answer) else None for name, answer in answers.items()}
    return servers(known, status, workers)


def servers(
    known: Collection[str], status: Mapping[str, Status | None], workers: "Sequence[WorkerInfo]"
) -> dict[str, list[str]] | None:
    """Return the supervisors that serve each of the `known` queues.

    Return None if a supervisor has not said what it serves, or a client program leases jobs from unknown queues.
    """
    from supervisor.engine.model.queue_order import Queues

    if any(worker.name not in status and is_present(worker) for worker in workers):
        return None
    found: dict[str, list[str]] = {name: [] for name in known}
    try:
        for supervisor, answer in status.items():
            if answer is None:
                return None
            for name in Queues(answer["queues"], answer["order"]).resolve(list(known)):
                if name in found:
                    found[name].append(supervisor)
    except (KeyError, TypeError, ValueError):  # an answer of another version
        return None
    return found


def is_present(worker: "WorkerInfo") -> bool:
    """Return True if the worker lives, or still holds leases."""
    return worker.lives or worker.running + worker.stalled > 0


def is_status(answer: Any) -> bool:
    """Return True if the answer is a supervisor's status with all fields that are shown."""
    return (
        isinstance(answer, Mapping)
        and isinstance(answer.get("state"), str)
        and all(isinstance(answer.get(name), Mapping) for name in ("processes", "redis", "counts"))
        and all(_is_list_of_objects(answer.get(name)) for name in ("children", "zygotes"))
        and isinstance(answer.get("queues"), list)
    )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
