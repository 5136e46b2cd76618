"""Begins and resumes the session with Redis, and says when Redis is lost and back. Runs in the master. Does no I/O.

An outage, from top to bottom: `on_lost` is called, the session connects anew by itself, `_on_connection` claims the
leases that the master holds, and `_on_resumed` reads what became of them. A Redis that does not know the worker any
more has `_on_deregistered` called in its place.
"""

from collections.abc import Callable, Sequence

from supervisor import clock
from supervisor.engine.commands.leasing import ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.transport.link import LayoutRefused, LinkLost
from supervisor.engine.worker.session import Session
from supervisor.master.model.counts import MasterCounts
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.speaker import Speaker
from supervisor.ops.events import Events


class Connection:
    def __init__(
        self,
        session: Session,
        pump: RedisPump,
        speakers: Sequence[Speaker],
        resuming: Resuming,
        leasing: Leasing,
        idle_exit: IdleExit,
        counts: MasterCounts,
        events: Events,
    ) -> None:
        self._session = session
        self._pump = pump
        self._speakers = speakers
        self._resuming = resuming
        self._leasing = leasing
        self._idle_exit = idle_exit
        self._counts = counts
        self._events = events
        self._is_away = False  # Redis was there, and was lost
        self.has_failed = False  # Redis could not be used at the start

    def open(self, on_begun: Callable[[], None]) -> None:
        """Start to connect. `on_begun` is called once, when the session has begun."""
        self._on_begun = on_begun
        try:
            self._session.open(self._on_connection, self._pump.on_replies, self._pump.on_wakeup, self._on_refused)
        except LinkLost as lost:
            self._on_failed(lost)

    def _on_connection(self) -> None:
        """A connection was made, or was not. Raises LinkLost in an outage."""
        is_first = not self._session.has_begun
        try:
            self._session.finish_connecting(self._resuming.claims, self._on_resumed, self._on_deregistered)
        except LinkLost as lost:
            if not is_first:
                raise
            self._on_failed(lost)
            return
        self._tell_speakers()
        if is_first:
            self._on_begun()

    def _on_failed(self, lost: LinkLost) -> None:
        cure = "" if isinstance(lost, LayoutRefused) else "; check --redis-url and that the server runs"
        self._events.emit("redis.failed", message=f"Redis at {self._session.url} cannot be used: {lost}{cure}")
        self.has_failed = True

    def _tell_speakers(self) -> None:
        now_at = clock.monotonic()
        self._pump.connected()
        self._idle_exit.restart()
        for speaker in self._speakers:
            speaker.connected(now_at)

    def _on_resumed(self, claimed: Sequence[LeaseRecord], resumed: ResumeResult) -> None:
        self._resuming.on_resumed(claimed, resumed)
        # Only now Redis is back: a replica, or the wrong node of a Cluster, lets the worker connect and not resume.
        if self._is_away:
            self._is_away = False
            self._events.end_throttling("redis.lost")
            self._events.emit("redis.connected", url=self._session.url, server=self._session.server)

    def on_lost(self, lost: LinkLost) -> None:
        retry_in_s = self._session.lose()
        self._is_away = self._session.has_begun
        self._counts.link_lost = clock.monotonic(), str(lost)
        self._events.emit_throttled("redis.lost", str(lost), retry_in_s=round(retry_in_s, 2))

    def _on_refused(self, script: str, message: str) -> None:
        """Redis has refused a command of an exchange."""
        if message.startswith("DEREGISTERED"):
            self._on_deregistered()
            return
        self._events.emit_throttled("redis.failed", f"Redis refused {script}: {message}")
        now_at = clock.monotonic()
        self._leasing.on_refused(now_at)
        self._idle_exit.put_off(now_at)

    def _on_deregistered(self) -> None:
        """Redis has forgotten the worker: its leases are void, and it goes on under another name. Raises LinkLost."""
        old = self._session.worker
        self._resuming.give_up_all()
        try:
            self._session.rename(self._on_resumed, self._on_deregistered)
        finally:
            if (new := self._session.worker) != old:  # else the connection was lost before
                self._events.set_worker(new)
                self._events.emit("worker.deregistered", old=old, new=new)
        self._tell_speakers()
