"""Asks Redis which queues to serve, what operators request, and the configured times. Runs in the master. No I/O."""

from collections.abc import Callable, Collection, Sequence

from supervisor.engine.commands import mailbox, queue_counts, workers
from supervisor.engine.commands.mailbox import OperatorRequest, ServeRequest
from supervisor.engine.commands.settings import Timing
from supervisor.engine.model.bounds import MOST
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.schema_report import SchemaReport
from supervisor.engine.worker.served_queues import Found, ServedQueues
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.speaker import Speaker
from supervisor.ops.events import Events


class QueueLookup(Speaker):
    """Learns which queues to serve and what operators request, and tells which klasses and data have a handler here."""

    def __init__(
        self,
        identity: Identity,
        serving: ServedQueues,
        times: LeaseTimes,
        demand: Demand,
        leasing: Leasing,
        on_requests: Callable[[Sequence[OperatorRequest]], None] | None,
        events: Events,
    ) -> None:
        """`on_requests` is called with all requests that stand. None: they stand in another shard, which is asked."""
        self._identity = identity
        self._serving = serving
        self._times = times
        self._demand = demand
        self._leasing = leasing
        self._on_requests = on_requests
        self._events = events
        self._klasses: Collection[str] = ()  # as Redis knows them
        self._skills_due = False
        self._schemas = SchemaReport()

    def connected(self, now_at: float) -> None:
        self._skills_due = True

    def parts(self, now_at: float) -> Sequence[Part]:
        serving = self._serving
        parts: list[Part] = []
        klasses = self._demand.klasses
        if self._skills_due or klasses is not self._klasses:
            self._klasses, self._skills_due = klasses, False
            demand = self._demand
            skills = workers.report_skills(self._identity.name, klasses, serving.names, demand.shapes, demand.release)
            parts.append(Part(skills))
            self._schemas.tell(demand.schemas)
        parts += self._schemas.parts()
        is_leasing = self._leasing.wanted is not None
        if not is_leasing and not serving.looks_due:
            return parts
        if serving.asks_for_names(is_leasing, now_at):
            parts.append(Part(queue_counts.names(), self._on_names))
        if serving.asks_for_requests():
            # In this order: a request made after the second query has a number that the first one has not seen.
            parts.append(Part(mailbox.serve_request(self._identity.name), self._on_serve_request))
            if self._on_requests is not None:
                parts.append(Part(mailbox.requests(self._identity.name), self._on_requests))
        return parts

    def _on_names(self, names: Sequence[str]) -> None:
        found = self._serving.take_names(names)
        if found is not None:
            self._on_other_queues()
            self._tell(found)

    def _tell(self, found: Found) -> None:
        self._events.emit(
            "queues.resolved", added=found.added, removed=found.removed, count=len(self._serving.names)
        )  # fmt: skip
        if found.left_out:
            self._events.warn(
                f"{found.left_out} queues that the globs match are not served: one supervisor serves at most"
                f" {MOST}; use narrower globs, and more supervisors"
            )

    def _on_serve_request(self, request: ServeRequest) -> None:
        changed = self._serving.take_serve_request(request)
        if changed is None:
            return
        if changed.problem:
            self._times.read_again()
            self._skills_due = True
            self._events.warn(f"the request to serve {list(changed.patterns)} is not followed: {changed.problem}")
            return
        self._on_other_queues()
        if self._on_requests is not None:  # the wish stands in all shards, and is told once
            self._events.emit(
                "queues.changed", queues=list(changed.patterns), order=changed.order, count=changed.count
            )  # fmt: skip

    def _on_other_queues(self) -> None:
        """Other queues may have jobs and another heartbeat, and peers must know who serves them."""
        self._leasing.lease_soon()
        self._times.read_again()
        self._skills_due = True


class TimesLookup(Speaker):
    """Reads the configured times now and then, with an exchange that there is anyway."""

    def __init__(self, times: LeaseTimes, renewing: Renewing) -> None:
        self._times = times
        self._renewing = renewing

    def parts(self, now_at: float) -> Sequence[Part]:
        if not self._times.is_due:
            return ()
        self._times.is_due = False
        return [Part(self._times.query(), self._on_timing)]

    def _on_timing(self, timing: Timing) -> None:
        self._times.keep(timing)
        self._renewing.on_times_read()
