"""Looks at Redis and asks the supervisors, again and again, in a thread of the process of `leasehold top`.

Must not change anything, nor look faster than it was told to, whatever is slow.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.cli.lib.served import is_here, is_known
from supervisor.cli.top.model import Look, Lost, Told

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.queries import Worker

#: Of the time between two looks, so much is waited for answers; and never longer than that.
_PATIENCE: Final = 0.7
_LONGEST_S: Final = 3.0
#: Of so many queues the figures are looked at: a round trip each. More are not on one screen.
_MOST_FIGURES: Final = 60


class Looker:
    """`queues`: of which the figures are wanted. Anybody may set it at any time."""

    def __init__(self, client: "Client", every_s: float) -> None:
        self._client = client
        self._every_s = every_s
        self.queues: Sequence[str] = ()

    def look(self) -> Look:
        """One look: a few round trips, and the time that supervisors take to answer. Raises LeaseholdError."""
        client = self._client
        queues = client.queues()
        wanted = self.queues or list(queues)
        figures = {name: client.queue(name).stats() for name in wanted[:_MOST_FIGURES] if name in queues}
        workers = client.workers()
        told = self._ask(workers)
        return Look(clock.monotonic(), clock.unix(), queues, figures, client.failed(), workers, told)

    def _ask(self, workers: Sequence["Worker"]) -> dict[str, Told | None]:
        from supervisor.engine.model.errors import ReadOnlyReplica

        try:
            answers = self._client.ask(None, "status", min(_LONGEST_S, _PATIENCE * self._every_s))
        except ReadOnlyReplica:  # nobody can be asked by way of it: their answers are missing
            return {worker.name: None for worker in workers if is_here(worker)}
        return {name: _known(answer) for name, answer in answers.items()}


def _known(answer: Any) -> Told | None:
    return answer if is_known(answer) else None


class Watch:
    """Has a looker look every so often, and tells of each look, or of why there is none."""

    def __init__(self, looker: Looker, every_s: float, tell: Callable[[Look | Lost | Exception], None]) -> None:
        """`tell` is called in the thread: with a look, why there is none, or an error of ours, which ends it."""
        self._looker = looker
        self._every_s = every_s
        self._tell = tell
        self._over = threading.Event()
        self.frozen = False
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a look that is under way: it may hang at Redis."""
        self._over.set()

    def _run(self) -> None:
        from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable

        next_at = clock.monotonic()
        while not self._over.wait(max(0.0, next_at - clock.monotonic())):
            next_at = max(next_at + self._every_s, clock.monotonic())
            if self.frozen:
                continue
            try:
                look = self._looker.look()
            except (StoreUnavailable, OutcomeUnknown) as error:
                self._tell(Lost(str(error), is_away=True))
            except LeaseholdError as error:
                self._tell(Lost(str(error), is_away=False))
            except Exception as error:  # noqa: BLE001 -- the thread's boundary: whoever is told raises it
                self._tell(error)
                return
            else:
                self._tell(look)
