"""The wait of an idle worker for mail or a job. Runs in the master.

`Wakeups` waits at the server. `Looks` waits here, and asks at an interval. The session chooses one.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from supervisor.engine.transport.link import Link
from supervisor.engine.worker.exchange import Granted, Wanted


class Wait(Protocol):
    """One wait at a time."""

    links: int  # how many connections it needs for itself
    waiting: bool
    is_ending: bool  # this worker has ended the wait, and has not read the end
    woken: bool  # a wake-up was taken, or waited for in vain, and no lease has followed
    timed_out: bool  # the last wait has ended without a wake-up
    _mail: list[bytes]  # that was read, and not taken yet

    @property
    def has_end(self) -> bool:
        """True if the end of the wait is here, and is not read yet: `read` may put it off for a reply that is owed."""

    def open(self, links: Sequence[Link], on_wakeup: Callable[[], None]) -> None:
        """`on_wakeup` is called when `read` has something to read."""

    def close(self) -> None: ...

    @property
    def waits_for_queues(self) -> bool:
        """True if the last wait is, or was, for wake-ups and not for mail alone."""

    @property
    def waits_for_other_queues(self) -> bool:
        """True if the last wait is for other queues than those leased from now."""

    def wait_for_mail(self) -> None:
        """Begin to wait for mail. Raises LinkLost."""

    def wait_for_queues(self, wanted: Wanted) -> None:
        """Begin to wait for mail and jobs. The end of the wait may lease `wanted`. Raises LinkLost."""

    def end_wait(self) -> None:
        """Have the wait end before the server carries out what is sent from now on. Raises LinkLost."""

    def drop_mail(self) -> None:
        """Forget the mail that the server has, unread. Raises LinkLost."""

    def take_mail(self) -> list[bytes]:
        """Return the mail that was read, oldest first, each message once."""
        mail, self._mail = self._mail, []
        return mail

    def forget_wakeup(self) -> None:
        """Reset `woken`: a lease follows the wake-up, or none is to follow."""
        self.woken = False

    def read(self) -> tuple[bool, Granted | None]:
        """Return whether the wait has ended, and what was leased with its end. Raises LinkLost."""

    @property
    def may_lease(self) -> bool:
        """True while a lease stands behind the wait, in whatever name."""

    @property
    def leases_at_end(self) -> bool:
        """True if the wait leases for this worker as soon as it ends."""

    @property
    def leases_all_at_end(self) -> bool:
        """True if the wait then leases all that a lease would give now."""
