"""What the master's exchanges with Redis are to do, and what they answer. Runs in master. Values only; no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from supervisor.engine.commands import writes
from supervisor.engine.commands.queries import Depths, Request
from supervisor.engine.commands.writes import Grant
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.recurring import DueCron

#: What one sweep takes at the most; the next one follows at once if it has.
SWEEP_COUNT: Final = 100


# What the next exchange is to do, beside settling and renewing.


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the next exchange is to lease: at most `count`, of which the first `starting` will start at once. `woken`:
    if a bell has called for it. `once`: klasses whose jobs are never to start twice. `ahead`: they are for the slots of
    limits that this exchange frees, and go before what is leased already.
    """

    count: int
    starting: int
    woken: bool = False
    once: Sequence[str] = ()
    ahead: bool = False


class Due(NamedTuple):
    """A lease to renew; `started`: its job is known to have begun by now; `progress`: what its handler says of it;
    `state`: its checkpoint as JSON, which is sent again until it is answered.
    """

    lease: LeaseRecord
    started: bool = False
    progress: tuple[float, str] | None = None
    state: bytes = b""


class Spawn(NamedTuple):
    """A cron recurrence whose time has come, the times that jobs are to be put for, and the next one; None: there is
    none.
    """

    due: DueCron
    times_unix: Sequence[float]
    next_unix: float | None


class Reply(NamedTuple):
    """The answer to what we were asked for: JSON, as one text at most 1 MiB. What the asker is to take for a refusal is
    an object whose "error" says why.
    """

    ask: Request
    answer: Any


class Desired(NamedTuple):
    """How many supervisors like this one there should be, for whoever scales them under this name; and, as an object,
    of what that was made.
    """

    name: str
    supervisors: int
    note: dict[str, Any]


class Chores(NamedTuple):
    """What the next exchange is to do for the namespace as a whole. A sweep goes on at `offset`. `look`: at what waits
    in the queues that are served.
    """

    sweep: bool = False
    spawns: Sequence[Spawn] = ()
    offset: int = 0
    look: bool = False
    desired: Desired | None = None


# What it answers.


class Confirmation(NamedTuple):
    """When the server has granted or renewed leases."""

    sent_at: float  # the request was carried out at this time or later (seconds of clock.boottime)
    now_unix: float  # the server's clock at that moment
    grace_s: float  # after a lease has run out, peers leave its job alone for at least so long

    def fence(self, expires_unix: float) -> "Fence":
        """Until when a lease that ends at `expires_unix` is certainly ours."""
        end_at = self.sent_at + expires_unix - self.now_unix
        return Fence(end_at, end_at + self.grace_s)


class Fence(NamedTuple):
    """Until when a lease is certainly ours (seconds of clock.boottime)."""

    end_at: float  # before that it has not run out
    taken_at: float  # before that no peer has taken the job over


@dataclass(slots=True)
class Settled:
    answers: list[Any]


@dataclass(slots=True)
class Full:
    """The outcomes of this exchange need memory, and that of the server is full: nothing of them was done."""


@dataclass(slots=True)
class Renewed:
    leases: Sequence[LeaseRecord]
    expires_unix: list[float]  # or commands.LOST, commands.GONE
    confirmation: Confirmation


@dataclass(slots=True)
class Granted:
    grant: Grant
    confirmation: Confirmation
    late: bool = False  # read so late that its leases may have run out, and be somebody else's


@dataclass(slots=True)
class Refused:
    """A lease, or what is done beside it, was answered with an error; nothing was done."""

    what: str
    message: str


@dataclass(slots=True)
class Resumed:
    leases: Sequence[LeaseRecord]
    expires_unix: list[float]  # or commands.LOST, commands.GONE
    handed_back: int
    confirmation: Confirmation


@dataclass(slots=True)
class Found:
    """The globs stand for other queues than before."""

    added: list[str]
    removed: list[str]
    left_out: int  # more than one worker can lease from


@dataclass(slots=True)
class Changed:
    """Somebody has wished that we serve these queues, and from now on we do; or why we do not."""

    patterns: Sequence[str]
    order: str
    count: int  # of those that are known by name
    problem: str = ""


@dataclass(slots=True)
class Asked:
    """Somebody asks us for these. Each is told once, and is to be answered by a Reply in an exchange to come; if the
    connection is lost before that has got in, it is told again.
    """

    asks: Sequence[Request]


@dataclass(slots=True)
class Introduced:
    """Redis knows for which klasses we have handlers."""


@dataclass(slots=True)
class Timed:
    """The configured times were read: `ttl_s` is what it is now."""


@dataclass(slots=True)
class Tidied:
    """A sweep has been made."""

    swept: writes.Swept


@dataclass(slots=True)
class Looked:
    """What waits in the queues that are served."""

    depths: dict[str, Depths]


@dataclass(slots=True)
class Deregistered:
    """Somebody has forgotten this worker: its leases are void, others have its jobs. Go on after `rename`."""


@dataclass(slots=True)
class Retired:
    """The worker is forgotten, as there is nothing to do; or it stays, and `why`."""

    why: str


@dataclass(slots=True)
class Left:
    """The worker is forgotten."""


Answer = (
    Left
    | Settled
    | Full
    | Renewed
    | Granted
    | Refused
    | Resumed
    | Found
    | Changed
    | Asked
    | Timed
    | Tidied
    | Looked
    | Retired
    | Deregistered
)
