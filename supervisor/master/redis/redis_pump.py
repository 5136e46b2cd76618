"""Decides in each turn whether to speak to Redis, to wait, or to leave. Runs in the master.

Owns the order of what an exchange says. One exchange is under way at a time: what settles meanwhile goes into the next,
so batches are as large as the load makes them.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

from supervisor import clock
from supervisor.engine.worker.session import Session
from supervisor.master.model.counts import Counts
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.speaker import Speaker, TimedSpeaker
from supervisor.master.redis.waiting import Waiting
from supervisor.ops.events import Events


class RedisPump:
    def __init__(
        self,
        session: Session,
        speakers: Sequence[Speaker],
        leasing: Leasing,
        grants: Grants,
        waiting: Waiting,
        resuming: Resuming,
        idle_exit: IdleExit,
        events: Events,
        counts: Counts,
    ) -> None:
        """`speakers`, in the order in which Redis carries out what they say."""
        self._session = session
        self._speakers = speakers
        self._timed = [speaker for speaker in speakers if isinstance(speaker, TimedSpeaker)]
        self._leasing = leasing
        self._grants = grants
        self._waiting = waiting
        self._resuming = resuming
        self._idle_exit = idle_exit
        self._events = events
        self._counts = counts
        self._sent_at: float | None = None  # of the exchange under way
        self._has_left = False

    # the session

    def resume(self) -> None:
        """A connection is made: begin the session, or resume it. Raises LinkLost."""
        self._resuming.resume(self._on_deregistered)
        self._on_session()

    def _on_session(self) -> None:
        """The session has begun, or begun again."""
        self._sent_at = None
        now_at = clock.monotonic()
        self._idle_exit.connected(now_at)
        for speaker in self._speakers:
            speaker.connected(now_at)

    def _on_deregistered(self) -> None:
        self._resuming.begin_anew(self._on_deregistered)
        self._on_session()

    @property
    def retired(self) -> bool:
        """True if the worker has left for want of work."""
        return self._idle_exit.retired

    @property
    def is_over(self) -> bool:
        """True if Redis has forgotten the worker, as it was asked to."""
        return self._has_left or self._idle_exit.retired

    def leave(self) -> None:
        """Have Redis forget the worker, unless an exchange is under way or a wake-up would be lost. Raises LinkLost."""
        wakeups = self._session.wakeups
        if self._session.idle and not wakeups.waiting and not wakeups.woken:
            self._session.leave(self._on_left)

    def _on_left(self, _jobs: Any) -> None:
        self._has_left = True

    # what comes

    def on_replies(self) -> None:
        """Raises LinkLost."""
        self._session.read()
        if self._sent_at is not None and self._session.idle:
            self._counts.exchange.add(clock.monotonic() - self._sent_at)
            self._sent_at = None
        self._place()

    def on_wakeup(self) -> None:
        """Raises LinkLost."""
        self._waiting.read_wakeup()
        if self._place():
            os.sched_yield()  # a child that was woken on this processor begins now, not after this turn

    def _place(self) -> bool:
        """Place jobs that were just granted. Return False if there are none. Raises LinkLost.

        If they are many, Redis first gets its next exchange, to work while they are placed.
        """
        grants = self._grants
        if not grants.fresh:
            return False
        if grants.are_many:
            self.step(clock.monotonic(), grants.coming)
        grants.place()
        return True

    def _on_refused(self, script: str, message: str) -> None:
        if message.startswith("DEREGISTERED"):
            self._on_deregistered()
            return
        self._events.emit_throttled("redis.failed", f"Redis refused {script}: {message}")
        now_at = clock.monotonic()
        self._leasing.on_refused(now_at)
        self._idle_exit.put_off(now_at)

    # what goes

    def step(self, now_at: float, coming: int = 0) -> None:
        """Start the next exchange if there is a reason for one; leave or wait if there is none. Raises LinkLost.

        `coming`: jobs that are granted and not placed yet.
        """
        if not self._session.idle or self._idle_exit.retired:
            return
        if self._idle_exit.patience_s:
            self._idle_exit.note(now_at)
        self._waiting.prepare()
        self._leasing.decide(now_at, coming)
        parts = [part for speaker in self._speakers for part in speaker.parts(now_at)]
        if parts:
            self._sent_at = now_at
            self._session.exchange(parts, self._on_refused)
        elif self._idle_exit.patience_s and now_at >= self._idle_exit.due_at:
            self._idle_exit.retire(self._on_refused)
        else:
            self._waiting.begin(now_at)

    def deadline_at(self) -> float:
        """Return when `step` has something to do, if nothing happens before (monotonic s)."""
        if not self._session.idle or self._idle_exit.retired:
            return math.inf
        leave_at = self._idle_exit.deadline_at() if self._idle_exit.patience_s else math.inf
        return min(self._waiting.deadline_at(), leave_at, *[speaker.deadline_at() for speaker in self._timed])
