"""Makes the lease commands of one worker and reads what they grant. Runs in each worker. Does no I/O."""

import math

from supervisor import clock
from supervisor.engine.commands import leasing
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.exchange import Granted, Wanted
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.served_queues import ServedQueues


class Leaser:
    def __init__(
        self, identity: Identity, serving: ServedQueues, times: LeaseTimes, acknowledging: Acknowledging
    ) -> None:
        self._identity = identity
        self._serving = serving
        self._times = times
        self._acknowledging = acknowledging

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the next lease names. Empty while globs match nothing."""
        return self._serving.names

    @property
    def takes_over(self) -> bool:
        """True if the next lease may give jobs of lost workers."""
        return self._times.may_take_over

    @property
    def takeover_at(self) -> float:
        """From this time on a lease may give jobs of lost workers (monotonic s)."""
        return self._times.takeover_at

    @property
    def wait_s(self) -> float:
        return self._times.wait_s

    @property
    def slack_s(self) -> float:
        """The server may be silent for this long after the end of a wait before its connection counts as lost."""
        return self._times.patience.silence_s + self._acknowledging.longest_wait_s

    @property
    def outlasts_wait(self) -> bool:
        """True if a lease granted at the begin of a wait cannot have run out when its answer is read at the end."""
        return self._times.wait_s <= self._times.ttl_s

    def command(self, wanted: Wanted) -> Command[Grant]:
        """Return the lease that goes with the next exchange."""
        return self._command(wanted, self._identity.next_number, waited=False)

    def command_behind_wait(self, wanted: Wanted) -> Command[Grant]:
        """Return the lease that the server carries out at the end of a wait, beside exchanges of higher numbers."""
        return self._command(wanted, self._identity.number, waited=True)

    def _command(self, wanted: Wanted, number: int, waited: bool) -> Command[Grant]:
        serving = self._serving
        lease = leasing.lease(
            self._identity.name, serving.names, wanted.count, starting=wanted.starting, ttl_s=self._times.own_ttl_s,
            number=number, takeover=self._times.may_take_over, order=serving.order, woken=wanted.woken, waited=waited,
            weights=serving.weights, once=wanted.once,
        )  # fmt: skip
        return self._acknowledging.once_acknowledged(lease, self._identity.name)

    def granted(self, grant: Grant, sent_at: float) -> Granted:
        """`sent_at`: the server carried the lease out at this time or later (seconds of clock.boottime)."""
        self._serving.heard_of_request(grant.request_number)
        if grant.leases:
            self._identity.highest_token = max(self._identity.highest_token, grant.leases[-1].token)
        ttl_s = min((lease.expires_unix for lease in grant.leases), default=math.inf) - grant.now_unix
        confirmation = self._times.confirmation(sent_at, grant.now_unix)
        return Granted(grant, confirmation, late=clock.boottime() >= sent_at + ttl_s)
