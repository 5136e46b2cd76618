"""Finds the supervisors that serve a queue, by what they say themselves. Runs in commands. Must not change anything."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from supervisor.cli.status import is_known
from supervisor.cli.workers import is_here

if TYPE_CHECKING:
    from supervisor.engine.client import Client
    from supervisor.engine.looks import Worker

Told = Mapping[str, Any]


def ask_servers(client: "Client", known: Collection[str], timeout_s: float) -> dict[str, list[str]] | None:
    """`servers`, by what the supervisors answer now."""
    from supervisor.engine.errors import LeaseholdError

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
    from supervisor.engine.orders import Queues

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
