"""The wait of an idle worker for mail or a job. Runs in the master.

`Wakeups` waits at the server. `Looks` waits here, and asks at an interval. The session chooses one.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from supervisor.engine.transport.link import Link
from supervisor.engine.worker.exchange import Granted, Wanted


class WaitsFor(Enum):
    """The events that bring a wait to its end."""

    MAIL = "mail alone"
    QUEUES = "mail, and wake-ups of the queues that are leased from"
    OTHER_QUEUES = "mail, and wake-ups of queues that were leased from when the wait began"


class LeaseBehind(Enum):
    """The jobs that a wait leases as soon as it ends."""

    NONE = "nothing"
    OLD_NAME = "jobs for this worker's old name, which go back"
    SOME = "fewer jobs than a lease would give now"
    ALL = "all that a lease would give now"

    @property
    def is_own(self) -> bool:
        """True if this worker gets the jobs."""
        return self in (LeaseBehind.SOME, LeaseBehind.ALL)


class WaitEnd(NamedTuple):
    """How a wait has ended.

    `mail`: what was read, oldest first. `timed_out`: without a wake-up. `granted`: what was leased with the end.
    """

    mail: Sequence[bytes]
    timed_out: bool
    granted: Granted | None = None


class Wait(Protocol):
    """One wait at a time."""

    links: int  # how many connections it needs for itself
    waiting: bool
    is_ending: bool  # this worker has ended the wait, and has not read the end
    woken: bool  # a wake-up was taken, or waited for in vain, and no lease has followed

    @property
    def has_end(self) -> bool:
        """True if the end of the wait is here, and is not read yet: `read` may put it off for a reply that is owed."""

    @property
    def waits_for(self) -> WaitsFor:
        """The events that this wait, or the last one, is for."""

    @property
    def lease_behind(self) -> LeaseBehind:
        """The jobs that the wait leases when it ends."""

    def open(self, links: Sequence[Link], on_wakeup: Callable[[], None]) -> None:
        """`on_wakeup` is called when `read` has something to read."""

    def close(self) -> None: ...

    def wait_for_mail(self) -> None:
        """Begin to wait for mail. Raises LinkLost."""

    def wait_for_queues(self, wanted: Wanted) -> None:
        """Begin to wait for mail and jobs. The end of the wait may lease `wanted`. Raises LinkLost."""

    def end_wait(self) -> None:
        """Have the wait end before the server carries out what is sent from now on. Raises LinkLost."""

    def drop_mail(self) -> None:
        """Forget the mail that the server has, unread. Raises LinkLost."""

    def forget_wakeup(self) -> None:
        """Reset `woken`: a lease follows the wake-up, or none is to follow."""
        self.woken = False

    def read(self) -> WaitEnd | None:
        """Return how the wait has ended, or None if it goes on. Raises LinkLost."""
