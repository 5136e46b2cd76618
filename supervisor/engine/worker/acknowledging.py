"""Which outcomes and checkpoints too few replicas have acknowledged. Runs in the master. Does no I/O.

A failover loses what only the primary had. An outcome therefore counts once enough replicas have it, and so does a
checkpoint, or the lease of a job that must not start twice. What lacks replicas has been carried out: it is not sent
again but after an outage, when the server may be another one. The master asks again how many replicas there are by now.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import hiredis

from supervisor import clock
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.payloads import SentBehind, gives_once_jobs
from supervisor.engine.commands.queries import Timing
from supervisor.engine.commands.writes import Command, Grant
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.lease_times import LeaseTimes

#: While replicas are short, the master asks for them so often, and without a wait.
_LOOK_S: Final = 1.0
_AT_ONCE_S: Final = 0.001


class Acknowledging:
    def __init__(self, own_replicas: int | None, times: LeaseTimes) -> None:
        """`own_replicas`: how many must have each outcome; None: as Redis has it configured."""
        self._own_replicas = own_replicas
        self.replicas = own_replicas or 0
        self._times = times
        self._timeout_s = 1.0
        self._lacking: list[Part] = []  # parts that were carried out, and that too few replicas have
        self._acknowledged: object = 0  # the reply to the latest WAIT of an exchange
        self.look_at = math.inf  # when to ask again for what is lacking (monotonic s)

    def keep(self, timing: Timing) -> None:
        """Redis has answered what is configured."""
        self.replicas = timing.acknowledge if self._own_replicas is None else self._own_replicas
        self._timeout_s = timing.acknowledge_timeout_s

    @property
    def within_s(self) -> float:
        """How long a connection waits for replicas: leases must be renewed meanwhile."""
        return min(self._timeout_s, self._times.ttl_s / 3)

    @property
    def longest_wait_s(self) -> float:
        """How much longer than others an exchange may be silent."""
        return self.within_s if self.replicas else 0.0

    @property
    def is_short(self) -> bool:
        """True between exchanges while something lacks replicas: until then no further outcome may be sent."""
        return bool(self._lacking)

    @property
    def count(self) -> int:
        """How many replicas had acknowledged the latest exchange that asked for it."""
        return self._acknowledged if isinstance(self._acknowledged, int) else 0

    @property
    def said(self) -> str:
        """Say what the server has answered to that."""
        if isinstance(self._acknowledged, hiredis.ReplyError):
            return f"WAIT failed: {self._acknowledged}"
        return f"{self.count} of {self.replicas} replicas have acknowledged within {self.within_s:g} s"

    # an exchange

    def command_behind(self, parts: Sequence[Part]) -> tuple[Any, ...] | None:
        """Return what must follow an exchange of these parts. None: no replica must have it."""
        if self._lacking:
            return Acknowledgement(self.replicas, _AT_ONCE_S).command
        if self.replicas and any(part.again for part in parts):
            return Acknowledgement(self.replicas, self.within_s).command
        return None

    def take(self, reply: object) -> None:
        """Keep the reply to the command behind an exchange."""
        self._acknowledged = reply

    def sort(self, parts: Sequence[Part]) -> tuple[Sequence[Part], list[Part]]:
        """Return the parts of an answered exchange that count now, and those that lack replicas.

        What Redis has refused has changed nothing, and counts.
        """
        if not self.replicas or self.count >= self.replicas:
            return parts, []
        counting: list[Part] = []
        lacking: list[Part] = []
        for part in parts:
            (lacking if part.again and not isinstance(part.reply, hiredis.ReplyError) else counting).append(part)
        return counting, lacking

    def set_aside(self, lacking: list[Part]) -> None:
        """Keep the parts that lack replicas until the next exchange asks for them, or the connection is lost."""
        self._lacking = lacking
        self.look_at = clock.monotonic() + _LOOK_S if lacking else math.inf

    def take_lacking(self) -> list[Part]:
        lacking = self._lacking
        self.set_aside([])
        return lacking

    # a lease

    def once_acknowledged(self, lease: Command[Grant]) -> Command[Grant]:
        """Return the lease with a wait for replicas behind it, if it gives jobs that must not start twice."""
        if not self.replicas:
            return lease
        return _OnceAcknowledged(lease, Acknowledgement(self.replicas, self.within_s)).command


class _OnceAcknowledged:
    """A lease, and what is sent behind it."""

    def __init__(self, lease: Command[Grant], wanted: Acknowledgement) -> None:
        self._lease = lease
        self._wanted = wanted
        self._is_acknowledged = True
        self.commands: Sequence[tuple[Any, ...]] = ()
        self.command = replace(lease, parse=self._parse, left_out=self._left_out)

    def _left_out(self, prefix: str, reply: Any) -> SentBehind:
        assert self._lease.left_out is not None
        self._payloads = self._lease.left_out(prefix, reply)
        if not gives_once_jobs(reply):
            return self._payloads
        self.commands = (*self._payloads.commands, self._wanted.command)
        return self

    def fill(self, replies: Sequence[Any]) -> None:
        *payloads, count = replies
        self._is_acknowledged = count >= self._wanted.replicas
        if payloads:
            self._payloads.fill(payloads)

    def _parse(self, reply: Any) -> Grant:
        return replace(self._lease.parse(reply), acknowledged=self._is_acknowledged)
