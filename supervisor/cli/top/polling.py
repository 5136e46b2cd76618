"""Polls Redis and the supervisors for `leasehold top`. Runs in a thread of the command's process.

Must not change anything, nor poll faster than it was status to.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.cli.lib.served import is_present, is_status
from supervisor.cli.top.model import NoSnapshot, Snapshot, Status

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.commands.concerns import Concerns
    from supervisor.engine.commands.workers import WorkerInfo

#: Part of the polling interval that answers are waited for, and the longest wait.
_PATIENCE: Final = 0.7
_LONGEST_S: Final = 3.0
#: Batches that are read. A screen shows no more.
_MOST_BATCHES: Final = 60
#: Queues whose statistics are read, one round trip each. A screen shows no more.
_MOST_STATS: Final = 60
#: Concerns are read at this interval: they change slowly, and are of all queues.
_CONCERNS_S: Final = 10.0


class Poller:
    """Takes snapshots. `queues`: those whose statistics are wanted; any thread may set it."""

    def __init__(self, client: "Client", every_s: float) -> None:
        self._client = client
        self._every_s = every_s
        self.queues: Sequence[str] = ()
        self._concerns: Concerns | None = None
        self._concerns_at = -_CONCERNS_S

    def poll(self) -> Snapshot:
        """Take one snapshot: a few round trips, and the supervisors' time to answer. Raises LeaseholdError."""
        client = self._client
        queues = client.queues()
        wanted = self.queues or list(queues)
        stats = {name: client.queue(name).stats() for name in wanted[:_MOST_STATS] if name in queues}
        workers = client.workers()
        status = self._ask(workers)
        batches, failed = client.batches(0, _MOST_BATCHES), client.failed()
        if clock.monotonic() >= self._concerns_at + _CONCERNS_S:
            self._concerns, self._concerns_at = client.concerns(), clock.monotonic()
        now_at, now_unix = clock.monotonic(), clock.unix()
        return Snapshot(now_at, now_unix, queues, stats, failed, workers, status, batches, self._concerns)

    def _ask(self, workers: Sequence["WorkerInfo"]) -> dict[str, Status | None]:
        from supervisor.engine.model.errors import ReadOnlyReplica

        try:
            answers = self._client.ask(None, "status", min(_LONGEST_S, _PATIENCE * self._every_s))
        except ReadOnlyReplica:  # a replica cannot pass a query on
            return {worker.name: None for worker in workers if is_present(worker)}
        return {name: _known(answer) for name, answer in answers.items()}


def _known(answer: Any) -> Status | None:
    return answer if is_status(answer) else None


class PollingThread:
    """Polls at an interval, and reports each snapshot or the reason why there is none."""

    def __init__(
        self, poller: Poller, every_s: float, tell: Callable[[Snapshot | NoSnapshot | Exception], None]
    ) -> None:
        """The thread calls `tell` with a snapshot, the reason why there is none, or an error of ours, which ends the
        thread.
        """
        self._poller = poller
        self._every_s = every_s
        self._tell = tell
        self._over = threading.Event()
        self.frozen = False
        self._thread = threading.Thread(target=self._run, name="polls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Does not wait for a poll under way, which may hang at Redis."""
        self._over.set()

    def _run(self) -> None:
        from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown, StoreUnavailable

        next_at = clock.monotonic()
        while not self._over.wait(max(0.0, next_at - clock.monotonic())):
            next_at = max(next_at + self._every_s, clock.monotonic())
            if self.frozen:
                continue
            try:
                snapshot = self._poller.poll()
            except (StoreUnavailable, OutcomeUnknown) as error:
                self._tell(NoSnapshot(str(error), is_away=True))
            except LeaseholdError as error:
                self._tell(NoSnapshot(str(error), is_away=False))
            except Exception as error:  # noqa: BLE001 -- the thread's boundary: the loop raises it
                self._tell(error)
                return
            else:
                self._tell(snapshot)
