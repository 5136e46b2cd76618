"""Asks Redis which queues to serve and what operators request, and tells what the worker can run. Runs in applications.

No I/O.
"""

import logging
import math
from collections.abc import Sequence

from supervisor.engine.commands import mailbox, queue_counts
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.demand import LeaseDemand
from supervisor.in_process.skills import Skills
from supervisor.in_process.status_answers import StatusAnswers

log = logging.getLogger("leasehold")


class Lookups:
    def __init__(
        self, identity: Identity, serving: ServedQueues, skills: Skills, demand: LeaseDemand, answers: StatusAnswers
    ) -> None:
        self._identity = identity
        self._serving = serving
        self._skills = skills
        self._demand = demand
        self._answers = answers

    def connected(self) -> None:
        """Look for all: mail may have been lost, and Redis may know nothing of the worker."""
        self._serving.look_for_queues()
        self._serving.look_for_requests()
        self._on_other_queues()

    def begin_anew(self) -> None:
        """The worker has another name, under which nobody has asked it for anything."""
        self._serving.forget_requests()

    def _on_other_queues(self) -> None:
        """Other queues may have jobs, and peers must know who serves them."""
        self._skills.tell_again()
        self._demand.lease_soon()

    def due_at(self) -> float:
        return -math.inf if self._serving.looks_due or self._skills.are_due else math.inf

    def parts(self, now_at: float) -> list[Part]:
        worker, serving = self._identity.name, self._serving
        parts = self._skills.parts(worker, serving.names)
        if serving.asks_for_names(self._demand.wants_jobs, now_at):
            parts.append(Part(queue_counts.names(), self._on_names))
        if serving.asks_for_requests():
            # In this order: a request made after the second query has a number that the first one has not seen.
            parts.append(Part(mailbox.serve_request(worker), self._on_serve_request))
            parts.append(Part(mailbox.requests(worker), self._answers.on_requests))
        return parts

    def _on_names(self, names: Sequence[str]) -> None:
        if self._serving.take_names(names) is not None:
            self._on_other_queues()

    def _on_serve_request(self, request: mailbox.ServeRequest) -> None:
        changed = self._serving.take_serve_request(request)
        if changed is not None and changed.problem:
            log.warning("queues that cannot be served were asked for: %s", changed.problem)
        elif changed is not None:
            self._on_other_queues()
