"""Begins and resumes the session with one shard, and says when Redis is lost and back. Runs in the master. No I/O.

An outage, from top to bottom: `on_lost` is called, the session connects anew by itself, `_on_connection` claims the
leases that the master holds, and `_on_resumed` reads what became of them. A Redis that does not know the worker any
more has `_on_deregistered` called in its place.

The first shard says how many there are. The master begins as if it was the only one, and may hear of others then, or
later, when the jobs of a namespace were moved from one shard to several.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from supervisor import clock
from supervisor.engine.commands.leasing import ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.transport.link import LayoutRefused, LinkLost
from supervisor.engine.worker.session import Session
from supervisor.engine.worker.shards_changed import DivisionRefused, ShardsChanged
from supervisor.exit_codes import Exit
from supervisor.master.model.counts import MasterCounts
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.speaker import Speaker
from supervisor.ops.events import Events

#: While jobs are being moved, the log says so once in this time.
_MOVING_S: Final = 600.0


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
        on_divided: Callable[[int, bool], None],
    ) -> None:
        """`on_divided(shards, is_start)` is called once, if the namespace has several. ValueError refuses them."""
        self._session = session
        self._pump = pump
        self._speakers = speakers
        self._resuming = resuming
        self._leasing = leasing
        self._idle_exit = idle_exit
        self._counts = counts
        self._events = events
        self._on_divided = on_divided
        self._knows_shards = session.shards > 1
        self._moving_at = -math.inf  # when the log has said that jobs are being moved from this shard to others
        self._is_away = False  # Redis was there, and was lost
        self.failure: Exit | None = None  # why Redis could not be used at the start

    def open(self, on_begun: Callable[[], None]) -> None:
        """Start to connect. `on_begun` is called once, when the session has begun."""
        self._on_begun = on_begun
        try:
            self._session.open(self._on_connection, self._pump.on_replies, self._pump.on_wakeup, self._on_refused)
        except LinkLost as lost:
            if self._session.shard:
                self.on_lost(lost)
            else:
                self._on_failed(lost)

    def _on_connection(self) -> None:
        """A connection was made, or was not. Raises LinkLost in an outage."""
        # The master serves without a further shard that cannot be used, and tries again.
        is_first = not self._session.has_begun and not self._session.shard
        try:
            self._session.finish_connecting(self._resuming.claims, self._on_resumed, self._on_deregistered)
        except LinkLost as lost:
            if not is_first:
                raise
            self._on_failed(lost)
            return
        if not self._knows_shards and self._session.shards > 1:
            self._knows_shards = True
            try:
                self._on_divided(self._session.shards, is_first)
            except ValueError as refused:
                self._fail(Exit.CONFIG, str(refused))
                return
        self._tell_speakers()
        if is_first:
            self._on_begun()

    def _on_failed(self, lost: LinkLost) -> None:
        if isinstance(lost, DivisionRefused):
            self._fail(Exit.CONFIG, str(lost))
            return
        cure = "" if isinstance(lost, LayoutRefused) else "; check --redis-url and that the server runs"
        self._fail(Exit.UNREACHABLE, f"Redis at {self._session.url} cannot be used: {lost}{cure}")

    def _fail(self, code: Exit, message: str) -> None:
        self._events.emit("redis.failed", message=message)
        self.failure = code

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
            shard = self._session.shard if self._knows_shards else None
            self._events.emit("redis.connected", url=self._session.url, server=self._session.server, shard=shard)

    def on_lost(self, lost: LinkLost) -> None:
        if isinstance(lost, ShardsChanged) and not self._knows_shards:
            self._session.lose(at_once=True)  # it learns how many there are when it connects
            return
        retry_in_s = self._session.lose()
        self._is_away = self._session.has_begun or self._session.shard > 0
        where = f"shard {self._session.shard}: " if self._knows_shards else ""
        why = f"{where}{lost}"
        self._counts.link_lost = clock.monotonic(), why
        self._events.emit_throttled("redis.lost", why, retry_in_s=round(retry_in_s, 2))

    def _on_refused(self, script: str, message: str) -> None:
        """Redis has refused a command of an exchange."""
        if message.startswith("DEREGISTERED"):
            self._on_deregistered()
            return
        if ShardsChanged.is_refusal(message):
            self._say_moving()
        else:
            self._events.emit_throttled("redis.failed", f"Redis refused {script}: {message}")
        now_at = clock.monotonic()
        self._leasing.on_refused(now_at)
        self._idle_exit.put_off(now_at)

    def _say_moving(self) -> None:
        """Jobs are being moved, so this shard leases none. What runs goes on."""
        now_at = clock.monotonic()
        if now_at - self._moving_at >= _MOVING_S:
            self._moving_at = now_at
            self._events.emit("shards.moving")

    def follow_name(self) -> None:
        """Take the name that the worker has in other shards, once nothing is held here under the old one."""
        if self._session.identity.is_outdated and self._session.idle and not self._resuming.claims:
            self._on_deregistered()

    def _on_deregistered(self) -> None:
        """Redis has forgotten the worker: its leases are void, and it goes on under another name. Raises LinkLost."""
        old, is_told = self._session.worker, self._session.identity.is_outdated
        self._resuming.give_up_all()
        try:
            self._session.rename(self._on_resumed, self._on_deregistered)
        finally:
            if (new := self._session.worker) != old:  # else the connection was lost before
                self._events.set_worker(new)
                if not is_told:  # by another shard that takes the same name
                    self._events.emit("worker.deregistered", old=old, new=new)
        self._tell_speakers()
