"""The wait of an idle worker for mail and wake-up keys, with a lease behind it. Runs in the master.

Owns the connection that waits. Must not block. A wake-up that a wait has taken must be answered with a lease or passed
on, or the job that it stands for waits in vain.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import hiredis

from supervisor import clock
from supervisor.engine.commands import mailbox
from supervisor.engine.commands.command import Command, SentBehind
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.model.keys import Namespace
from supervisor.engine.transport.link import Link, LinkLost
from supervisor.engine.worker.exchange import Granted, Wanted
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.pipeline import SILENT, DeadlineTimers, Pipeline, Watcher, fill
from supervisor.engine.worker.wait import LeaseBehind, Wait, WaitEnd, WaitsFor

_WAIT: Final = "wakeups.wait"  # the key of a timer


class _Behind(NamedTuple):
    """The lease behind a wait, in whose name it is, and when the wait begins and ends (seconds of clock.boottime)."""

    lease: Command[Grant]
    worker: str
    takes_over: bool
    begun_at: float
    ends_at: float


class Wakeups(Wait):
    """One blocking command at a time."""

    links = 1

    def __init__(
        self,
        namespace: Namespace,
        identity: Identity,
        leaser: Leaser,
        pipeline: Pipeline,
        watcher: Watcher,
        timers: DeadlineTimers,
    ) -> None:
        self._namespace = namespace
        self._identity = identity
        self._leaser = leaser
        self._pipeline = pipeline
        self._watcher = watcher
        self._timers = timers
        self._link: Link | None = None
        self._mailbox = ""  # of the wait under way
        self._queues: tuple[str, ...] | None = None  # whose wake-up keys it waits for; None: it waits for mail alone
        self._behind: _Behind | None = None
        self._replies: list[Any] = []
        self._awaited = 0  # the number of replies with which the wait under way has ended
        self._left_out: SentBehind | None = None  # of the reply to the lease behind the wait
        self.waiting = False
        self.is_ending = False  # this worker has ended its wait, and has not read the end
        self.woken = False  # a wake-up was taken, or waited for in vain, and no lease has followed

    def open(self, links: Sequence[Link], on_wakeup: Callable[[], None]) -> None:
        """`on_wakeup` is called when `read` has something to read."""
        [self._link] = links
        self._watcher.watch(self._link, on_wakeup)

    def close(self) -> None:
        if self._link is not None:
            self._watcher.forget(self._link)
            self._link.close()
        self._link = self._behind = self._left_out = None
        self._replies = []
        self._end()

    # the wait

    @property
    def waits_for(self) -> WaitsFor:
        if self._queues is None:
            return WaitsFor.MAIL
        return WaitsFor.QUEUES if self._queues == self._leaser.queues else WaitsFor.OTHER_QUEUES

    @property
    def lease_behind(self) -> LeaseBehind:
        behind = self._behind
        if behind is None:
            return LeaseBehind.NONE
        if behind.worker != self._identity.name:
            return LeaseBehind.OLD_NAME
        gives_all = behind.takes_over == self._leaser.takes_over and self.waits_for is not WaitsFor.OTHER_QUEUES
        return LeaseBehind.ALL if gives_all else LeaseBehind.SOME

    def wait_for_mail(self) -> None:
        """Begin to wait for mail. Raises LinkLost."""
        self._wait(None, None)

    def wait_for_queues(self, wanted: Wanted) -> None:
        """Begin to wait for mail and wake-ups. Raises LinkLost.

        However the wait ends, the server then leases `wanted` at once, which saves an exchange after the wake-up.
        """
        behind = None
        # The globs may match nothing yet.
        if self._leaser.queues and self._leaser.outlasts_wait:
            lease, now_at = self._leaser.command_behind_wait(wanted), clock.boottime()
            ends_at = now_at + self._leaser.wait_s
            behind = _Behind(lease, self._identity.name, self._leaser.takes_over, now_at, ends_at)
        self._wait(self._leaser.queues, behind)

    def _wait(self, queues: tuple[str, ...] | None, behind: _Behind | None) -> None:
        assert self._link is not None and not self.waiting
        self._queues, self._behind = queues, behind
        self._mailbox = self._namespace.mail(self._identity.name)
        keys, wait_s = map(self._namespace.wakeup, queues or ()), self._leaser.wait_s
        wires: list[tuple[Any, ...]] = [("BLPOP", self._mailbox, *keys, f"{wait_s:.3f}")]
        if behind is not None:
            wires.append(behind.lease.wire(*self._pipeline.keys))
        self._link.send(wires)
        self.waiting, self._awaited = True, len(wires)
        self._timers.set(_WAIT, clock.monotonic() + wait_s + self._leaser.slack_s, self._on_silence)

    def end_wait(self) -> None:
        """Have the wait end before the server carries out what is sent from now on. Raises LinkLost.

        The worker writes to its own mailbox: its own waiting connection would take a wake-up meant for others.
        """
        if not self.is_ending:
            self.is_ending = True
            self._pipeline.send_aside(mailbox.tell(self._identity.name, b"wake"))

    def drop_mail(self) -> None:
        """Forget unread mail. One of the messages may have been to end the wait. Raises LinkLost."""
        self._pipeline.send_plain("UNLINK", self._namespace.mail(self._identity.name))
        if self.is_ending:
            self._pipeline.send_aside(mailbox.tell(self._identity.name, b"wake"))

    # its end

    @property
    def has_end(self) -> bool:
        """True if the end of the wait is here, and is not read yet: `read` may put it off for a reply that is owed."""
        return self.waiting and len(self._replies) >= self._awaited

    def read(self) -> WaitEnd | None:
        """Return how the wait has ended, or None if it goes on. Raises LinkLost.

        A wait that this worker has ended ends once the reply to that is here, too. A server that cannot write a reply,
        because the worker is dead, drops unread what the worker has sent since: that a job has started.
        """
        assert self._link is not None
        self._replies += self._link.receive()
        if not self.has_end or (self.is_ending and self._pipeline.is_owed):
            return None
        taken = self._replies[0]
        if isinstance(taken, hiredis.ReplyError):
            raise LinkLost(f"Redis refused to wait: {taken}")
        if self._lacks_payloads():
            return None
        replies, self._replies, self._left_out = self._replies, [], None
        self._end()
        timed_out = taken is None
        mail = [taken[1]] if not timed_out and taken[0] == self._mailbox.encode() else []
        if not mail:  # without a wake-up, too: a dying connection may have lost one
            self.woken = True
        behind, self._behind = self._behind, None
        if behind is None:
            return WaitEnd(mail, timed_out)
        granted = self._granted(behind, replies[1], timed_out)
        if granted is not None:
            granted.woken = not (timed_out or mail)
        return WaitEnd(mail, timed_out, granted)

    def _lacks_payloads(self) -> bool:
        """Return True if the reply to the lease has left payloads out, which have been asked for now."""
        behind, left_out = self._behind, self._left_out
        if left_out is not None:
            fill(left_out, self._replies[2:])
            return False
        if behind is None or behind.lease.left_out is None or self._is_void(behind, self._replies[1]):
            return False
        left_out = behind.lease.left_out(self._namespace.prefix, self._replies[1])
        if not left_out.commands:
            return False
        assert self._link is not None
        self._link.send(left_out.commands)
        self._left_out, self._awaited = left_out, len(self._replies) + len(left_out.commands)
        self.is_ending = True  # the wait itself has ended
        self._timers.set(_WAIT, clock.monotonic() + self._leaser.slack_s, self._on_silence)
        return True

    def _is_void(self, behind: _Behind, answer: Any) -> bool:
        """A lease under the old name has gone back. What an error means, the next lease is told as well."""
        return behind.worker != self._identity.name or isinstance(answer, hiredis.ReplyError)

    def _granted(self, behind: _Behind, answer: Any, timed_out: bool) -> Granted | None:
        self.woken = self._is_void(behind, answer)
        if self.woken:
            return None
        grant = behind.lease.parse(answer)
        # A proxy, an operator or a jump of the clock may end the wait early: the lease may be as old as the wait.
        has_lasted = timed_out and clock.boottime() >= behind.ends_at
        return self._leaser.granted(grant, behind.ends_at if has_lasted else behind.begun_at)

    def _end(self) -> None:
        self.waiting = self.is_ending = False
        self._timers.cancel(_WAIT)

    def _on_silence(self, now_at: float) -> None:
        """The wait should have ended. Wait on if its end has come and is unread; else raise LinkLost."""
        assert self._link is not None
        if not self._link.is_readable:
            raise LinkLost(SILENT)
        self._timers.set(_WAIT, now_at + self._leaser.slack_s, self._on_silence)
