"""Which outcomes and checkpoints too few replicas have acknowledged. Runs in each worker. Does no I/O.

A failover loses what only the primary had. An outcome therefore counts once enough replicas have it, and so does a
checkpoint, or the lease of a job that must not start twice. What lacks replicas has been carried out: it is not sent
again but after an outage, when the server may be another one. The master asks again how many replicas there are by now.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import hiredis

from supervisor import clock
from supervisor.engine.commands import leasing
from supervisor.engine.commands.acknowledge import Acknowledgement
from supervisor.engine.commands.command import Command, SentBehind
from supervisor.engine.commands.leasing import Grant, Renewal, Renewals
from supervisor.engine.commands.payloads import once_jobs
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.lease_times import LeaseTimes

#: While replicas are short, the master asks for them so often, and waits for so long: they must have all that the
#: connection has written by then, so the answer takes a round trip to them.
_LOOK_S: Final = 1.0
_LOOK_WAIT_S: Final = 0.1
#: The longest wait as a part of the TTL. Renewals are due every third of it, and an exchange may wait twice.
_PART_OF_TTL: Final = 1 / 6


class Acknowledging:
    def __init__(self, own_replicas: int | None, times: LeaseTimes, known: Sequence[str] = ()) -> None:
        """`own_replicas`: how many must have each outcome; None: as Redis has it configured.

        `known`: the keys of each script behind the prefix, of Namespace.keys.
        """
        self._own_replicas = own_replicas
        self.known = known
        self._times = times
        self._lacking: list[Part] = []  # parts that were carried out, and that too few replicas have
        self.is_short = False  # the latest exchange has left some
        self._asked = Acknowledgement(0, 0.0)  # by the latest WAIT of an exchange
        self._acknowledged: object = 0  # the reply to it, if the exchange under way has one
        self.look_at = math.inf  # when to ask again for what is lacking (monotonic s)

    @property
    def replicas(self) -> int:
        """How many must have each outcome."""
        return self._times.acknowledgement.replicas if self._own_replicas is None else self._own_replicas

    @property
    def wanted(self) -> Acknowledgement:
        """How long a connection waits for replicas: leases must be renewed meanwhile."""
        within_s = _LOOK_WAIT_S if self.is_short else self._times.acknowledgement.within_s
        return Acknowledgement(self.replicas, min(within_s, self._times.ttl_s * _PART_OF_TTL))

    @property
    def longest_wait_s(self) -> float:
        """How much longer than others an exchange may be silent."""
        return max(_LOOK_WAIT_S, self.wanted.within_s) if self.replicas else 0.0

    @property
    def count(self) -> int:
        """How many replicas had acknowledged the latest exchange. 0 if it did not ask."""
        return self._acknowledged if isinstance(self._acknowledged, int) else 0

    @property
    def said(self) -> str:
        """Say what the server has answered to that."""
        if isinstance(self._acknowledged, hiredis.ReplyError):
            return f"WAIT failed: {self._acknowledged}"
        replicas, within_s = self._asked
        return f"{self.count} of {replicas} replicas have acknowledged within {within_s:g} s"

    # an exchange

    def command_behind(self, parts: Sequence[Part]) -> tuple[Any, ...] | None:
        """Return what must follow an exchange of these parts. None: no replica must have it, or it is asked for later.

        While replicas are short only a look waits for them, because each wait holds up the exchange.
        """
        if self.is_short:
            now_at = clock.monotonic()
            if now_at < self.look_at:
                return None
            self.look_at = now_at + _LOOK_S
        elif not self.replicas or not any(part.again for part in parts):
            return None
        return self._ask()

    def command_behind_repeated(self, part: Part) -> tuple[Any, ...] | None:
        """Return what must follow a part that is sent for the second time: the WAIT of before was for less."""
        return self._ask() if self.replicas and part.again else None

    def _ask(self) -> tuple[Any, ...]:
        self._asked = self.wanted
        return self._asked.command

    def take(self, reply: object) -> None:
        """Keep the reply to the command behind an exchange."""
        self._acknowledged = reply

    def sort(self, parts: Sequence[Part]) -> tuple[Sequence[Part], list[Part]]:
        """Return the parts of an answered exchange that count now, and those that lack replicas.

        What Redis has refused has changed nothing, and counts.
        """
        if self.wanted.is_met(self._acknowledged):
            return parts, []
        counting: list[Part] = []
        lacking: list[Part] = []
        for part in parts:
            (lacking if part.again and not isinstance(part.reply, hiredis.ReplyError) else counting).append(part)
        return counting, lacking

    def set_aside(self, lacking: list[Part]) -> None:
        """Keep the parts that lack replicas until the next exchange, or until the connection is lost."""
        self._lacking = lacking
        self._set_short(bool(lacking))

    def _set_short(self, is_short: bool) -> None:
        if is_short != self.is_short:
            self.is_short = is_short
            self.look_at = clock.monotonic() + _LOOK_S if is_short else math.inf

    def take_lacking(self) -> list[Part]:
        """Return the parts that lack replicas, for the exchange that begins."""
        lacking, self._lacking, self._acknowledged = self._lacking, [], 0
        return lacking

    def lose(self) -> list[Part]:
        """The connection is lost. Return the parts that lack replicas, to be sent again."""
        self._set_short(False)
        return self.take_lacking()

    # a lease

    def once_acknowledged(self, lease: Command[Grant], worker: str) -> Command[Grant]:
        """Return the lease with a wait for replicas behind it, if it gives jobs that must not start twice."""
        if not self.replicas:
            return lease
        return _OnceAcknowledged(lease, partial(self._starts, worker), lambda: self.wanted, self.known).command

    def _starts(self, worker: str, jobs: Sequence[tuple[str, int]]) -> Command[Renewals]:
        starts = [Renewal(jid, token, started=True) for jid, token in jobs]
        return leasing.renew(worker, starts, ttl_s=self._times.own_ttl_s)


class _OnceAcknowledged:
    """A lease, and what is sent behind it.

    The replicas must know of each such job that it has started: who takes it over after a failover, while this worker
    is lost as well, has nothing else to go by.
    """

    def __init__(
        self,
        lease: Command[Grant],
        starts: Callable[[Sequence[tuple[str, int]]], Command[Renewals]],
        wanted: Callable[[], Acknowledgement],
        known: Sequence[str],
    ) -> None:
        """`starts(jobs)` makes the command that tells their starts, by jid and token."""
        self._known = known
        self._lease = lease
        self._starts = starts
        self._wanted = wanted
        self._asked = Acknowledgement(0, 0.0)
        self._is_acknowledged = True
        self.commands: Sequence[tuple[Any, ...]] = ()
        self.command = replace(lease, parse=self._parse, left_out=self._left_out)

    def _left_out(self, prefix: str, reply: Any) -> SentBehind:
        assert self._lease.left_out is not None
        self._payloads = self._lease.left_out(prefix, reply)
        jobs = once_jobs(reply)
        if not jobs:
            return self._payloads
        self._asked = self._wanted()
        self.commands = (*self._payloads.commands, self._starts(jobs).wire(prefix, *self._known), self._asked.command)
        return self

    def fill(self, replies: Sequence[Any]) -> None:
        *payloads, _started, count = replies
        self._is_acknowledged = self._asked.is_met(count)
        if payloads:
            self._payloads.fill(payloads)

    def _parse(self, reply: Any) -> Grant:
        return replace(self._lease.parse(reply), acknowledged=self._is_acknowledged)
