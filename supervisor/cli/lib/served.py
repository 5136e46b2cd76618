"""Finds the supervisors that serve a queue, by what they say themselves. Runs in commands. Must not change anything."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.queries import Worker

Told = Mapping[str, Any]


def ask_servers(client: "Client", known: Collection[str], timeout_s: float) -> dict[str, list[str]] | None:
    """`servers`, by what the supervisors answer now."""
    from supervisor.engine.model.errors import LeaseholdError

    try:
        answers = client.ask(None, "status", timeout_s)
        workers = client.workers()
    except LeaseholdError:  # a replica, or an account that only reads: nobody can be asked
        return None
    told = {name: answer if is_known(answer) else None for name, answer in answers.items()}
    return servers(known, told, workers)


def servers(
    known: Collection[str], told: Mapping[str, Told | None], workers: "Sequence[Worker]"
) -> dict[str, list[str]] | None:
    """The supervisors that serve each of the `known` queues. None: a supervisor has not said which it serves, or a
    program leases by the client, of which nobody knows what.
    """
    from supervisor.engine.model.queue_order import Queues

    if any(worker.name not in told and is_here(worker) for worker in workers):
        return None
    found: dict[str, list[str]] = {name: [] for name in known}
    try:
        for supervisor, answer in told.items():
            if answer is None:
                return None
            for name in Queues(answer["queues"], answer["order"]).resolve(list(known)):
                if name in found:
                    found[name].append(supervisor)
    except (KeyError, TypeError, ValueError):  # the answer of another version
        return None
    return found


def is_here(worker: "Worker") -> bool:
    """Whether it is there, or holds something though it is not."""
    return worker.lives or worker.running + worker.stalled > 0


def is_known(answer: Any) -> bool:
    """Whether it is the answer of a supervisor, of which all is there that is needed to show it."""
    return (
        isinstance(answer, Mapping)
        and isinstance(answer.get("state"), str)
        and all(isinstance(answer.get(name), Mapping) for name in ("processes", "redis", "counts"))
        and all(_is_list_of_objects(answer.get(name)) for name in ("children", "zygotes"))
        and isinstance(answer.get("queues"), list)
    )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
