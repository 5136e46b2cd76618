"""Decides in each turn whether to speak to a shard, or to wait. Runs in the master.

Owns the order of what an exchange says. One exchange is under way at a time: what settles meanwhile goes into the next,
so batches are as large as the load makes them.
"""

import math
from collections.abc import Callable, Sequence

from supervisor import clock
from supervisor.engine.worker.session import Session
from supervisor.master.model.counts import MasterCounts
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.replica_watch import ReplicaWatch
from supervisor.master.redis.speaker import Speaker, TimedSpeaker
from supervisor.master.redis.waiting import Waiting


class RedisPump:
    def __init__(
        self,
        session: Session,
        speakers: Sequence[Speaker],
        leasing: Leasing,
        grants: Grants,
        waiting: Waiting,
        replicas: ReplicaWatch,
        counts: MasterCounts,
        give_way: Callable[[], None],
    ) -> None:
        """`speakers`, in the order in which Redis carries out what they say. `give_way()` lets woken children begin."""
        self._session = session
        self._speakers = speakers
        self._timed = [speaker for speaker in speakers if isinstance(speaker, TimedSpeaker)]
        self._leasing = leasing
        self._grants = grants
        self._waiting = waiting
        self._replicas = replicas
        self._counts = counts
        self._give_way = give_way
        self._sent_at: float | None = None  # of the exchange under way

    def connected(self) -> None:
        """The session has begun, or begun again: no exchange of before will be answered."""
        self._sent_at = None

    # what comes

    def on_replies(self) -> None:
        """Raises LinkLost."""
        self._session.read()
        if self._sent_at is not None and self._session.idle:
            self._counts.add_exchange(clock.monotonic() - self._sent_at)
            self._sent_at = None
            self._replicas.tell()
        if self._session.wakeups.has_end:
            self.on_wakeup()
        self._place()

    def on_wakeup(self) -> None:
        """Raises LinkLost."""
        self._waiting.read_wakeup()
        if self._place():
            self._give_way()  # a child that was woken on this processor begins now, not after this turn
            self._grants.report_starts()

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

    # what goes

    def step(self, now_at: float, coming: int = 0) -> None:
        """Start the next exchange if there is a reason for one; wait if there is none. Raises LinkLost.

        `coming`: jobs that are granted and not placed yet.
        """
        if not self._session.idle:
            return
        self._waiting.prepare(now_at)
        self._leasing.decide(now_at, coming)
        parts = [part for speaker in self._speakers for part in speaker.parts(now_at)]
        if parts or now_at >= self._replicas.look_at():
            self._sent_at = now_at
            self._session.exchange(parts)
        else:
            self._waiting.begin(now_at)

    def deadline_at(self) -> float:
        """Return when `step` has something to do, if nothing happens before (monotonic s)."""
        if not self._session.idle:
            return math.inf
        return min(
            self._waiting.deadline_at(), self._replicas.look_at(), *[speaker.deadline_at() for speaker in self._timed]
        )
