"""Looks for mail and jobs at an interval, for servers that let nobody wait. Runs in the master.

Owns when the next look is due. Must not block, nor send a command that waits at the server. A look is one round trip:
the oldest mail, and beside it the exchange that leases.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

from supervisor import clock
from supervisor.engine.model.keys import Namespace
from supervisor.engine.transport.link import Link, LinkLost
from supervisor.engine.worker.exchange import Wanted
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.pipeline import SILENT, DeadlineTimers, Pipeline
from supervisor.engine.worker.wait import LeaseBehind, Wait, WaitEnd, WaitsFor

#: Keys of timers.
_LOOK: Final = "looks.look"
_SILENCE: Final = "looks.silence"
#: A mailbox holds no more.
_MOST_MAIL: Final = 100


class Looks(Wait):
    """As `Wakeups`, but nothing stands at the server meanwhile, so a wait ends at once and leases nothing itself."""

    links = 0

    def __init__(
        self,
        interval_s: float,
        namespace: Namespace,
        identity: Identity,
        leaser: Leaser,
        pipeline: Pipeline,
        timers: DeadlineTimers,
    ) -> None:
        self._interval_s = interval_s
        self._namespace = namespace
        self._identity = identity
        self._leaser = leaser
        self._pipeline = pipeline
        self._timers = timers
        # Workers that are started together do not look together.
        self._look_at = clock.monotonic() + random.uniform(0.0, interval_s)
        self._doubt_at = 0.0  # from then on a look without mail counts as a wait in vain
        self._on_wakeup: Callable[[], None] = lambda: None
        self._waits_for = WaitsFor.MAIL
        self._is_unanswered = False  # the last question for mail
        self.waiting = self.is_ending = False
        self._mail: list[bytes] = []  # that was read here, and not by the worker yet
        self.woken = self._timed_out = False

    def open(self, links: Sequence[Link], on_wakeup: Callable[[], None]) -> None:
        assert not links
        self._on_wakeup = on_wakeup
        self._doubt_at = clock.monotonic() + self._leaser.wait_s

    def close(self) -> None:
        self.end_wait()
        self._end_look()

    # the wait

    @property
    def waits_for(self) -> WaitsFor:
        return self._waits_for  # the lease that follows names the queues of its time

    @property
    def lease_behind(self) -> LeaseBehind:
        return LeaseBehind.NONE

    def wait_for_mail(self) -> None:
        self._wait(WaitsFor.MAIL)

    def wait_for_queues(self, wanted: Wanted) -> None:
        self._wait(WaitsFor.QUEUES)

    def _wait(self, waits_for: WaitsFor) -> None:
        assert not self.waiting
        self.waiting, self._waits_for = True, waits_for
        # Waits that were ended early leave the looks where they are: there is at most one in an interval.
        late_s = clock.monotonic() - self._look_at
        if late_s >= 0.0:
            self._look_at += self._interval_s * (late_s // self._interval_s + 1.0)
        self._timers.set(_LOOK, self._look_at, self._look)

    def end_wait(self) -> None:
        self.waiting = False
        self._timers.cancel(_LOOK)

    def drop_mail(self) -> None:
        self._pipeline.send_plain("UNLINK", self._namespace.mail(self._identity.name))

    # the look

    def _look(self, now_at: float) -> None:
        self.waiting, self.woken = False, self._waits_for is WaitsFor.QUEUES
        self._timed_out = now_at >= self._doubt_at
        if self._timed_out:
            self._doubt_at = now_at + self._leaser.wait_s
        if not self._is_unanswered:
            self._is_unanswered = True
            mailbox = self._namespace.mail(self._identity.name)
            self._pipeline.send_asking(self._take_mail, "LPOP", mailbox, _MOST_MAIL)
            self._timers.set(_SILENCE, clock.monotonic() + self._leaser.slack_s, self._on_silence)
        self._on_wakeup()

    def _take_mail(self, reply: Any) -> None:
        self._end_look()
        if isinstance(reply, hiredis.ReplyError):
            raise LinkLost(f"Redis refused to give mail: {reply}")
        if reply:
            self._mail += reply
            self._on_wakeup()

    def _end_look(self) -> None:
        self._is_unanswered = False
        self._timers.cancel(_SILENCE)

    def _on_silence(self, now_at: float) -> None:
        if not self._pipeline.is_readable:
            raise LinkLost(SILENT)
        self._timers.set(_SILENCE, now_at + self._leaser.slack_s, self._on_silence)

    @property
    def has_end(self) -> bool:
        return False

    def read(self) -> WaitEnd:
        """Return that there may be something new, and no lease: `woken` says whether one is due."""
        mail, self._mail = self._mail, []
        return WaitEnd(mail, self._timed_out)
