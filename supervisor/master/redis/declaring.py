"""Tells Redis which recurring jobs the handlers declare, once for each release of the code. Runs in the master. No I/O.

The release that was told last decides, so nothing is told again later.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from supervisor import clock
from supervisor.engine.commands import writes
from supervisor.engine.commands.writes import MOST
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.recurring import Declared, declared
from supervisor.engine.worker.exchange import Part
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.speaker import Speaker
from supervisor.ops.events import Events

_AT_ONCE: Final = 100


class Declaring(Speaker):
    def __init__(self, demand: Demand, events: Events) -> None:
        self._demand = demand
        self._events = events
        self._seen: Collection[str] = ()  # the klasses at the last look
        #: The klasses of the last release that was told, and what those declare that recur.
        self._told: tuple[set[str], Mapping[str, dict[str, Any]]] = set(), {}

    def parts(self, now_at: float) -> Sequence[Part]:
        klasses, recurrences = self._demand.klasses, self._demand.recurrences
        if klasses is self._seen or not klasses:
            return ()
        self._seen = klasses
        if (set(klasses), recurrences) == self._told:
            return ()  # another zygote with the same code
        self._told = set(klasses), recurrences
        plain = [klass for klass in klasses if klass not in recurrences][:MOST]
        known = list(self._checked(recurrences))
        batches = [known[at : at + _AT_ONCE] for at in range(0, max(1, len(known)), _AT_ONCE)]
        return [self._part(plain if batch is batches[0] else [], batch) for batch in batches]

    def _part(self, plain: Sequence[str], recurring: Sequence[Declared]) -> Part:
        command = writes.declare(plain, recurring)
        return Part(command, self._on_declared, {"REFUSED": self._on_refused}, lost=self._on_lost)

    def _checked(self, recurrences: Mapping[str, dict[str, Any]]) -> Iterator[Declared]:
        for klass, declaration in recurrences.items():
            try:
                yield declared(klass, declaration, clock.unix())
            except (TypeError, ValueError, LeaseholdError) as error:
                self._events.warn(f"the recurring job that {klass} declares is not put: {error}")

    def _on_declared(self, answer: tuple[list[str], list[str]]) -> None:
        put, removed = answer
        if put or removed:
            self._events.emit("recurring.declared", put=put, removed=removed)

    def _on_refused(self, message: str) -> None:
        self._events.warn(f"recurring jobs that handlers declare are not put: {message}")

    def _on_lost(self) -> None:
        self._seen, self._told = (), (set(), {})
