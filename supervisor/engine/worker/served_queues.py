"""Decides which queues a worker serves: those of the last request, and those that its globs match. Runs in each worker.

Owns when the worker reads queue names and requests from Redis. Does no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.engine.commands.mailbox import OperatorRequest, ServeRequest
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.queue_order import Queues

#: A worker with globs asks for queue names this often while it leases. Mail tells an idle worker.
_NAMES_S: Final = 2.0
#: With very many queues it asks less often. Reading a name takes Redis and the master about 2 µs, 2 % of this.
_NAME_S: Final = 100e-6


@dataclass(slots=True)
class Found:
    """The globs match other queues than before."""

    added: list[str]
    removed: list[str]
    left_out: int  # beyond what one worker can lease from


@dataclass(slots=True)
class Changed:
    """An operator has requested these queues. `problem`: why they cannot be served."""

    patterns: Sequence[str]
    order: str
    count: int  # of queues known by name
    problem: str = ""


class ServedQueues:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.names = queues.resolve(())  # the queues that are leased from
        self._names_due = queues.has_globs
        self._names_at = 0.0  # from then on an exchange that leases asks for names
        self._known: Sequence[str] = ()  # all queues there were when last asked
        self._request_number = 0  # of the last request that was heard of and read
        self._requests_due = False
        self._standing_requests: set[str] = set()  # ids that were delivered

    @property
    def queues(self) -> Queues:
        """The queues and their order, as they were last asked for."""
        return self._queues

    @property
    def patterns(self) -> tuple[str, ...]:
        """The queues as the operator named them."""
        return self._queues.patterns

    @property
    def literals(self) -> tuple[str, ...]:
        """The queues that are served by their own names, not by a glob."""
        return self._queues.resolve(())

    @property
    def order(self) -> str:
        return self._queues.order

    @property
    def weights(self) -> dict[str, int] | None:
        return self._queues.weights(self.names)

    # when to ask

    @property
    def looks_due(self) -> bool:
        """True if the next exchange asks for names, or for requests."""
        return self._names_due or self._requests_due

    def look_for_queues(self) -> None:
        """Ask for names with the next exchange: there may be other queues than before."""
        self._names_due = self._queues.has_globs

    def look_for_requests(self) -> None:
        """Ask for requests with the next exchange."""
        self._requests_due = True

    def heard_of_request(self, number: int) -> None:
        """Read requests with the next exchange if the number of the last one is new. `number` 0: there is none."""
        self._requests_due = self._requests_due or number not in (0, self._request_number)

    def forget_requests(self) -> None:
        """Forget the requests to the worker's old name. The queues stay as they are."""
        self._request_number = 0
        self._standing_requests.clear()

    def asks_for_names(self, leasing: bool, now_at: float) -> bool:
        """Return True if the exchange that begins asks for names. `leasing`: it leases."""
        if not self._names_due and not (leasing and self._queues.has_globs and now_at >= self._names_at):
            return False
        self._names_due, self._names_at = False, now_at + max(_NAMES_S, _NAME_S * len(self._known))
        return True

    def asks_for_requests(self) -> bool:
        """Return True if the exchange that begins asks for requests."""
        due, self._requests_due = self._requests_due, False
        return due

    # what was answered

    def take_names(self, known: Sequence[str]) -> Found | None:
        """Serve those of all `known` queues that match. Return None if nothing has changed."""
        if known == self._known:
            return None
        self._known = known
        resolved = self._queues.resolve(known)
        before, self.names = self.names, resolved[:MOST]
        if before == self.names:
            return None
        old, new = set(before), set(self.names)
        added, removed = [n for n in self.names if n not in old], [n for n in before if n not in new]
        return Found(added, removed, len(resolved) - len(self.names))

    def take_serve_request(self, request: ServeRequest) -> Changed | None:
        """Serve other queues from now on. Return None if nothing has changed. An impossible request changes nothing."""
        self._request_number = request.number
        if not request.queues:
            return None
        order = request.order or self._queues.order
        try:
            queues = Queues(request.queues, order)
        except (TypeError, ValueError) as error:
            return Changed(request.queues, order, 0, str(error))
        if queues == self._queues:
            return None
        self._queues, self.names, self._names_due = queues, queues.resolve(()), queues.has_globs
        self._known = ()
        return Changed(queues.patterns, queues.order, len(self.names))

    def take_requests(self, requests: Sequence[OperatorRequest]) -> list[OperatorRequest]:
        """Return those of the standing `requests` that were not delivered before."""
        known, self._standing_requests = self._standing_requests, {request.id for request in requests}
        return [request for request in requests if request.id not in known]

    def forget_request(self, request: OperatorRequest) -> None:
        """Deliver the request again if it still stands: its answer was accepted, or lost."""
        self._standing_requests.discard(request.id)
