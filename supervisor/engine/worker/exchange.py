"""Values of exchanges with Redis: their parts, lease requests and grants. Runs in each worker. Does no I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.engine.commands.command import Command
from supervisor.engine.commands.leasing import Grant

Refused = Callable[[str], None]


@dataclass(slots=True)
class Part:
    """One command of an exchange and what is done with its reply, once the exchange is answered as a whole."""

    command: Command[Any]
    then: Callable[[Any], None] | None = None  # is called with the parsed reply
    #: By the beginning of an error message: what is called with that error.
    refused: Mapping[str, Refused] = field(default_factory=dict)
    must: bool = False  # any other error ends the connection
    again: bool = False  # is sent again, under its old number, if the connection is lost before the reply
    lost: Callable[[], None] | None = None  # is called if the connection is lost before the reply
    reply: Any = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most `count` jobs to lease, of which the first `starting` will start at once."""

    count: int
    starting: int
    woken: bool = False  # a wake-up has called for the lease
    once: Sequence[str] = ()  # klasses whose jobs must never start twice
    ahead: bool = False  # the jobs are for slots of limits that this exchange frees, and go before those leased already


class Confirmation(NamedTuple):
    """When the server has granted or renewed leases."""

    sent_at: float  # the server carried the request out at this time or later (seconds of clock.boottime)
    now_unix: float  # the server's clock at that moment
    grace_s: float  # for at least this long after a lease has run out, peers leave its job alone

    def fence(self, expires_unix: float) -> "Fence":
        """Return until when a lease that ends at `expires_unix` certainly belongs to this worker."""
        end_at = self.sent_at + expires_unix - self.now_unix
        return Fence(end_at, end_at + self.grace_s)


class Fence(NamedTuple):
    """Until when a lease certainly belongs to this worker (seconds of clock.boottime)."""

    end_at: float  # before this time the lease has not run out
    taken_at: float  # before this time no peer has taken the job over


@dataclass(slots=True)
class Granted:
    """A lease's answer."""

    grant: Grant
    confirmation: Confirmation
    late: bool = False  # it was read so late that its leases may have run out, and belong to a peer
    woken: bool = False  # a wake-up key has brought it about: no job of a lost worker was due before
