"""Hints of `leasehold put` about a job that may never run. Runs in the command's process.

The reasons: no supervisor serves its queue or has its klass, or a dependency does not exist. Reads only; the job is
already put.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from supervisor import clock
from supervisor.cli.lib.parser import near

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.workers import WorkerInfo

#: A supervisor that serves globs hears of a new queue by mailbox and announces it with its next exchange.
_NEWS_S: Final = 1.0
_LOOK_S: Final = 0.05


def hints(client: "Client", queue: str, klass: str, depends: Sequence[str]) -> Iterator[str]:
    """Yield sentences about a job that was put. Yields nothing if Redis does not answer."""
    from supervisor.engine.model.errors import LeaseholdError

    try:
        yield from _about_parents(client, depends)
        yield from _about_workers(client, queue, klass)
    except LeaseholdError:
        return


def _about_parents(client: "Client", depends: Sequence[str]) -> Iterator[str]:
    if not depends:
        return
    for jid, job in zip(depends, client.jobs(*depends), strict=True):
        if job is None:
            yield f"there is no job {jid} to wait for: it counts as complete"


def _about_workers(client: "Client", queue: str, klass: str) -> Iterator[str]:
    workers = _workers_of(client, queue)
    if any(worker.may_serve(queue) for worker in workers):
        workers = [worker for worker in workers if worker.may_serve(queue)]
        if not any(worker.may_have(klass) for worker in workers):
            known = {name for worker in workers for name in worker.klasses}
            yield f"no supervisor that serves queue {queue} has a handler for klass {klass}{near(klass, known)}"
    elif workers:
        known = {name for worker in workers for name in worker.queues}
        yield f"no supervisor that runs serves queue {queue}{near(queue, known)}"
    else:
        yield f"no supervisor is running: the job waits until one serves queue {queue}"


def _workers_of(client: "Client", queue: str) -> list["WorkerInfo"]:
    """Return the living workers once one of them serves the queue, or after the time to hear of a new queue."""
    deadline_at = clock.monotonic() + _NEWS_S
    while True:
        workers = [worker for worker in client.workers() if worker.lives]
        is_served = any(worker.may_serve(queue) for worker in workers)
        if is_served or not workers or clock.monotonic() >= deadline_at:
            return workers
        threading.Event().wait(_LOOK_S)
