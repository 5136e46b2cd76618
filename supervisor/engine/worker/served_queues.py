"""Which queues a worker serves: as it was started or wished since, and what its globs stand for; and what else it is
asked for. Runs in master.

Owns when to ask for either. Must not do I/O: `session.py` asks, and tells what was answered.
"""

from collections.abc import Sequence
from typing import Final

from supervisor.engine.commands import writes
from supervisor.engine.commands.queries import Request, Wish
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.worker.exchange import Asked, Changed, Found

#: A worker with globs asks so often, while it leases, which queues there are; mail tells an idle one.
_NAMES_S: Final = 2.0
#: Strangers may make very many: reading a name takes us, and Redis, some 2 us. So that is at most 4 % of the time.
_NAME_S: Final = 100e-6


class ServedQueues:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.names = queues.resolve(())  # those that are leased from
        self._names_due = queues.has_globs
        self._names_at = 0.0  # when an exchange that leases asks for them anyway
        self._known: Sequence[str] = ()  # the queues that there were when somebody looked last
        self._wish = 0  # the number of the last one
        self._wish_due = False
        self._asks: set[str] = set()  # that stand and were told of

    @property
    def patterns(self) -> tuple[str, ...]:
        """The queues as they were named."""
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
        """Whether the next exchange asks which queues there are, or which we are to serve."""
        return self._names_due or self._wish_due

    def look_for_queues(self) -> None:
        """There may be others than before."""
        self._names_due = self._queues.has_globs

    def look_for_wish(self) -> None:
        """We may be wished to serve others, or asked for something."""
        self._wish_due = True

    def heard_of_wish(self, number: int) -> None:
        """The number of the last wish; 0: there is none."""
        self._wish_due = self._wish_due or number not in (0, self._wish)

    def forget_wish(self) -> None:
        """Of a worker with another name there is none. The queues stay as they are."""
        self._wish = 0
        self._asks.clear()

    def asks_for_names(self, leasing: bool, now_at: float) -> bool:
        """Whether to ask in this exchange; it is not due any more then."""
        if not self._names_due and not (leasing and self._queues.has_globs and now_at >= self._names_at):
            return False
        self._names_due, self._names_at = False, now_at + max(_NAMES_S, _NAME_S * len(self._known))
        return True

    def asks_for_wish(self) -> bool:
        """Whether to ask in this exchange; it is not due any more then."""
        due, self._wish_due = self._wish_due, False
        return due

    # what was answered

    def take_names(self, known: Sequence[str]) -> Found | None:
        """The queues that there are. None: it means the same as before."""
        if known == self._known:
            return None
        self._known = known
        resolved = self._queues.resolve(known)
        before, self.names = self.names, resolved[: writes.MOST]
        if before == self.names:
            return None
        old, new = set(before), set(self.names)
        added, removed = [n for n in self.names if n not in old], [n for n in before if n not in new]
        return Found(added, removed, len(resolved) - len(self.names))

    def take_wish(self, wish: Wish) -> Changed | None:
        """Serve other queues from now on. Without a wish, or with one that cannot be, the same as before."""
        self._wish = wish.number
        if not wish.queues:
            return None
        order = wish.order or self._queues.order
        try:
            queues = Queues(wish.queues, order)
        except (TypeError, ValueError) as error:
            return Changed(wish.queues, order, 0, str(error))
        if queues == self._queues:
            return None
        self._queues, self.names, self._names_due = queues, queues.resolve(()), queues.has_globs
        self._known = ()
        return Changed(queues.patterns, queues.order, len(self.names))

    def take_asks(self, asks: Sequence[Request]) -> Asked | None:
        """What we are asked for and have not answered. None: nothing that was not told before."""
        known, self._asks = self._asks, {ask.id for ask in asks}
        new = [ask for ask in asks if ask.id not in known]
        return Asked(new) if new else None

    def forget_ask(self, ask: Request) -> None:
        """It was answered, or its answer was lost: if it still stands it is told again."""
        self._asks.discard(ask.id)
