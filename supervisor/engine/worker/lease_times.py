"""How long leases last, and peers and replicas may take, as Redis has it set. Runs in each worker. Does no I/O."""

from typing import Final

from supervisor import clock
from supervisor.engine.commands import settings
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.settings import Timing
from supervisor.engine.transport.dialer import ServerPatience
from supervisor.engine.worker.exchange import Confirmation
from supervisor.engine.worker.served_queues import ServedQueues

_SHORTEST_SILENCE_S: Final = 0.3
_SHORTEST_WAIT_S: Final = 1.0


class LeaseTimes:
    def __init__(self, own_ttl_s: float | None, serving: ServedQueues, patience: ServerPatience) -> None:
        """`own_ttl_s`: of this worker's leases; None: each queue's heartbeat in Redis."""
        self.patience = patience
        self._serving = serving
        self.own_ttl_s = own_ttl_s
        self.ttl_s = own_ttl_s or 30.0
        self.grace_s = 5.0
        self._shortest_grace_s = 5.0
        self.acknowledgement = Acknowledgement(0, 1.0)
        self._takeover_at = 0.0
        self.is_due = False  # the next exchange reads the times
        self._stale_at = 0.0

    def query(self) -> Command[Timing]:
        """Return the query for the configured times of the queues served."""
        # While globs match nothing, a name that no queue has gives the settings of all queues.
        return settings.timing(self._serving.names or ("*",))

    def keep(self, timing: Timing) -> None:
        """Redis has answered the configured times."""
        self.ttl_s, self.grace_s = self.own_ttl_s or timing.heartbeat_s, timing.grace_s
        self._shortest_grace_s = timing.shortest_grace_s
        self.acknowledgement = Acknowledgement(timing.acknowledge, timing.acknowledge_timeout_s)
        self.is_due, self._stale_at = False, clock.monotonic() + self.ttl_s / 4

    # when to read them again

    def read_again(self) -> None:
        """Read the times with the next exchange: other queues may have another heartbeat."""
        self.is_due = True

    def read_if_stale(self, now_at: float) -> None:
        self.is_due = self.is_due or now_at >= self._stale_at

    # what follows from them

    @property
    def silence_s(self) -> float:
        """A server that is silent for longer during an exchange has gone."""
        return max(_SHORTEST_SILENCE_S, min(self.patience.silence_s, self.ttl_s / 3))

    @property
    def wait_s(self) -> float:
        """How long a wait lasts until it leases once, because a dying connection may have lost wake-ups.

        No longer than a TTL, because it does not hear of leases that peers lose meanwhile.
        """
        return min(self.patience.wait_s, max(self.ttl_s, _SHORTEST_WAIT_S))

    def spare_peers(self) -> None:
        """Take over no peer's job for one grace: after an outage peers, too, need a moment to renew their leases."""
        self._takeover_at = clock.monotonic() + self.grace_s

    @property
    def takeover_at(self) -> float:
        """From this time on peers' expired leases may be taken over (monotonic s)."""
        return self._takeover_at

    @property
    def may_take_over(self) -> bool:
        return clock.monotonic() >= self._takeover_at

    def confirmation(self, sent_at: float, now_unix: float) -> Confirmation:
        """Return when leases were granted or renewed by a request sent at `sent_at` (seconds of clock.boottime)."""
        return Confirmation(sent_at, now_unix, self._shortest_grace_s)
