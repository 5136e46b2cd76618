"""One worker's session with Redis: its numbered exchanges, its wait for bells, its way back after an outage.

Runs in master. Owns both connections. Must not block, must not decide what is leased or how a job ended, and must not
forget an outcome: what was sent and not answered is sent again under the same number, which changes nothing twice.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import hiredis
import redis

from supervisor import clock
from supervisor.engine import commands, scripts
from supervisor.engine.commands import Command, Grant, Renewal
from supervisor.engine.errors import StoreUnavailable
from supervisor.engine.jobs import LeaseRecord, Outcome
from supervisor.engine.keys import Namespace
from supervisor.engine.link import Connector, Link, LinkLost

#: A wait for bells ends after this and asks once without being told to: wake-ups that a dying connection took are lost.
WAIT_S: Final = 30.0
_LONGEST_SILENCE_S: Final = 5.0
_CONNECT_S: Final = 5.0
#: Beyond the end of a wait, before the server's silence means that the connection is gone.
_SLACK_S: Final = 5.0


class Watcher(Protocol):
    """What the session asks of the master's inbox."""

    def watch(self, source: Any, event: Any) -> None: ...
    def forget(self, source: Any) -> None: ...
    def want_write(self, source: Any, wanted: bool) -> None: ...


# What becomes readable, as events of the inbox.


@dataclass(frozen=True, slots=True)
class ConnectionMade:
    """Call `finish_connecting`."""


@dataclass(frozen=True, slots=True)
class RepliesCame:
    """Call `read`."""


@dataclass(frozen=True, slots=True)
class BellRang:
    """Call `read_bell`."""


# What an exchange answers.


@dataclass(slots=True)
class Settled:
    outcomes: Sequence[Outcome]
    answers: list[Any]


@dataclass(slots=True)
class Renewed:
    leases: Sequence[LeaseRecord]
    expires_unix: list[float]  # 0.0: lost


@dataclass(slots=True)
class Granted:
    grant: Grant


@dataclass(slots=True)
class Refused:
    """A lease was answered with an error; nothing was leased."""

    message: str


@dataclass(slots=True)
class Resumed:
    leases: Sequence[LeaseRecord]
    expires_unix: list[float]  # 0.0: lost
    handed_back: int


@dataclass(slots=True)
class Left:
    """The worker is forgotten."""


Answer = Left | Settled | Renewed | Granted | Refused | Resumed


@dataclass(slots=True)
class _Part:
    """One command of an exchange, what it is about, and its reply."""

    command: Command[Any]
    subject: Any
    kind: type[Any]
    reply: Any = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the next exchange is to lease: at most `count`, of which the first `starting` will start at once."""

    count: int
    starting: int


class Session:
    def __init__(self, url: str, namespace: Namespace, worker: str, queues: Sequence[str], ttl_s: float | None,
                 watcher: Watcher) -> None:  # fmt: skip
        """`ttl_s`: of the leases; None: each queue's heartbeat in Redis."""
        self._url = url
        self._namespace = namespace
        self._worker = worker
        self._queues = tuple(queues)
        self._own_ttl_s = ttl_s
        self._watcher = watcher
        self._connector: Connector | None = None
        self._link: Link | None = None
        self._bells: Link | None = None
        self._number = 0
        self._parts: list[_Part] = []  # of the exchange under way
        self._awaited: deque[_Part | None] = deque()  # whose replies are to come; None: nobody's
        self._exchange_deadline_at: float | None = None
        self._unsettled: _Part | None = None  # sent on a connection that was lost before the answer
        self._resumed = False
        self._silent_at: float | None = None  # while we wait for bells: when that must have ended
        self._takeover_at = 0.0
        self._grace_s = 5.0
        self.ttl_s = ttl_s or 30.0
        self.server = ""
        self._reconnect_at: float | None = None
        self.mail: list[bytes] = []
        self.waits_for_queues = False
        self.may_hold_more = False  # a lease was not answered: jobs may be held in our name that we do not know of
        self.rang = False  # a bell has been taken, or waited for in vain, and no lease was tried since
        self._waking = False

    # connecting

    @property
    def connected(self) -> bool:
        """Whether Redis was there at its last word."""
        return self._resumed

    @property
    def idle(self) -> bool:
        """Whether an exchange may be started."""
        return self._resumed and not self._parts

    def connect(self) -> None:
        """Start to connect; `ConnectionMade` comes when it has succeeded or failed."""
        self._reconnect_at = None
        greeting: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", script.text) for script in scripts.ALL]
        greeting += [("INFO", "server"), commands.timing(self._queues).wire(self._namespace.prefix)]
        self._connector = Connector(self._url, 2, greeting, _CONNECT_S)
        self._watcher.watch(self._connector, ConnectionMade())

    def finish_connecting(self, known: Sequence[LeaseRecord]) -> None:
        """On `ConnectionMade`: begin the session, or begin it again, with what this worker holds. Raises LinkLost."""
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        (self._link, self._bells), replies = connector.finish()
        self._watcher.watch(self._link, RepliesCame())
        self._watcher.watch(self._bells, BellRang())
        *loaded, info, timings = replies
        for reply in (*loaded, timings):
            if isinstance(reply, redis.ResponseError):
                raise LinkLost(f"Redis refused what every worker must do: {reply}")
        self.server = _checked_server(info)
        timing = commands.timing(self._queues).parse(timings)
        self.ttl_s, self._grace_s = self._own_ttl_s or timing.heartbeat_s, timing.grace_s
        # Nobody is robbed after an outage: the other workers, too, need a moment to renew what is theirs.
        self._takeover_at = clock.monotonic() + self._grace_s
        self._resume(known)

    def _resume(self, known: Sequence[LeaseRecord]) -> None:
        parts = [] if self._unsettled is None else [self._unsettled]
        self._number += 1
        known_ids = [(lease.jid, lease.token) for lease in known]
        resume = commands.resume(self._worker, self._number, known_ids, ttl_s=self._own_ttl_s)
        self._start([*parts, _Part(resume, known, Resumed)])

    def lose(self) -> float:
        """The connection is lost: keep what must be said again. Answers in how many seconds to connect anew."""
        for part in self._parts:
            if part.kind is Settled:
                self._unsettled = part
            self.may_hold_more = self.may_hold_more or part.kind is Granted
        self._parts, self._exchange_deadline_at = [], None
        self._awaited.clear()
        self._resumed, self._silent_at, self._waking = False, None, False
        self.close()
        wait_s = random.uniform(0.1, 1.0) * self._grace_s / 2
        self._reconnect_at = clock.monotonic() + wait_s
        return wait_s

    # exchanges

    @property
    def may_take_over(self) -> bool:
        return clock.monotonic() >= self._takeover_at

    @property
    def takeover_at(self) -> float:
        """From when on other workers' expired leases may be taken over."""
        return self._takeover_at

    def exchange(
        self, outcomes: Sequence[Outcome], renewals: Sequence[tuple[LeaseRecord, bool]], wanted: Wanted | None
    ) -> None:
        """Start one exchange: settle at most 1,000 outcomes, renew leases (True: its job is known to have started by
        now), lease. Raises LinkLost."""
        self._number += 1
        parts = []
        if outcomes:
            settle = commands.settle(self._worker, outcomes, number=self._number)
            parts.append(_Part(settle, outcomes, Settled))
        for first in range(0, len(renewals), commands.MOST):
            some = renewals[first : first + commands.MOST]
            entries = [Renewal(lease.jid, lease.token, started) for lease, started in some]
            renew = commands.renew(self._worker, entries, ttl_s=self._own_ttl_s)
            parts.append(_Part(renew, [lease for lease, _started in some], Renewed))
        if wanted is not None:
            lease = commands.lease(
                self._worker, self._queues, wanted.count, starting=wanted.starting, ttl_s=self._own_ttl_s,
                number=self._number, takeover=self.may_take_over,
            )  # fmt: skip
            parts.append(_Part(lease, None, Granted))
        self._start(parts)

    def leave(self) -> None:
        """The last exchange: nothing is held any more, and the worker is forgotten. Raises LinkLost."""
        self._start([_Part(commands.deregister(self._worker), None, Left)])

    def _start(self, parts: list[_Part]) -> None:
        assert not self._parts
        self._parts = parts
        self._be_patient()
        self._send([(part, part.command.wire(self._namespace.prefix)) for part in parts])

    def _be_patient(self) -> None:
        """The deadline is on silence: a large payload may be under way for long."""
        self._exchange_deadline_at = clock.monotonic() + min(_LONGEST_SILENCE_S, self.ttl_s / 3)

    def _send(self, wires: list[tuple[_Part | None, tuple[Any, ...]]]) -> None:
        """Send commands; None: nobody waits for the reply."""
        assert self._link is not None
        self._awaited.extend(part for part, _wire in wires)
        self._link.send([wire for _part, wire in wires])
        if self._link.wants_write:
            self._watcher.want_write(self._link, True)

    def read(self) -> list[Answer]:
        """On `RepliesCame`: the answers of the exchange, once all are here. Raises LinkLost."""
        assert self._link is not None
        if self._parts:
            self._be_patient()
        if self._link.wants_write:
            self._link.flush()
            self._watcher.want_write(self._link, self._link.wants_write)
        for reply in self._link.receive():
            part = self._awaited.popleft()
            if part is None:
                continue
            part.reply = reply
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                self._send_with_script(part)
        if not self._parts or any(self._awaited):
            return []
        # If one is refused, the parts stay: what was settled beside it is said again, and answered as now.
        answers = [self._answer(part) for part in self._parts]
        self._parts, self._exchange_deadline_at = [], None
        return answers

    def _send_with_script(self, part: _Part) -> None:
        """The server has lost its scripts (restart, failover, SCRIPT FLUSH); the command was not carried out."""
        load = ("SCRIPT", "LOAD", part.command.script.text)
        self._send([(None, load), (part, part.command.wire(self._namespace.prefix))])

    def _answer(self, part: _Part) -> Answer:
        if isinstance(part.reply, hiredis.ReplyError):
            if part.kind is not Granted:
                raise LinkLost(f"Redis refused {part.command.script.name}: {part.reply}")
            return Refused(str(part.reply))
        value = part.command.parse(part.reply)
        if part.kind is Settled:
            self._unsettled = None
            return Settled(part.subject, value)
        if part.kind is Granted:
            return Granted(value)
        if part.kind is Renewed:
            return Renewed(part.subject, value)
        if part.kind is Resumed:
            self._resumed, self.may_hold_more = True, False
            return Resumed(part.subject, value.expires, value.handed_back)
        return Left()

    # waiting

    @property
    def waiting(self) -> bool:
        return self._silent_at is not None

    def wait_for_bells(self, queues: bool) -> None:
        """Begin to wait for mail, and with `queues` for their bells; `BellRang` ends it. Raises LinkLost."""
        assert self._bells is not None and not self.waiting
        bells = [self._namespace.bell(queue) for queue in self._queues] if queues else []
        # Not beyond a TTL: what others have leased since we asked is in no time that we know of.
        wait_s = min(WAIT_S, self.ttl_s)
        self._bells.send([("BLPOP", self._namespace.mail(self._worker), *bells, f"{wait_s:.3f}")])
        self._silent_at = clock.monotonic() + wait_s + _SLACK_S
        self.waits_for_queues = queues

    def stop_waiting(self) -> None:
        """Have the wait end before anything that is sent from now on is carried out. Raises LinkLost.

        By mail to ourselves: a bell that we ring would else be taken by our own waiting connection.
        """
        if not self._waking:
            self._waking = True
            self._send([(None, commands.tell(self._worker, b"wake").wire(self._namespace.prefix))])

    def read_bell(self) -> bool:
        """On `BellRang`: whether the wait has ended. What came by mail is in `mail`. Raises LinkLost."""
        assert self._bells is not None
        replies = self._bells.receive()
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise LinkLost(f"Redis refused to wait: {reply}")
            if reply is not None and reply[0] == self._namespace.mail(self._worker).encode():
                self.mail.append(reply[1])
            else:
                self.rang = True  # or the time is over: wake-ups that a dying connection took are lost
        if not replies:
            return False
        self._silent_at, self._waking = None, False
        return True

    # time

    @property
    def deadline_at(self) -> float:
        """When something of the session is due (monotonic s)."""
        return min(self._silence_at, math.inf if self._reconnect_at is None else self._reconnect_at)

    @property
    def _silence_at(self) -> float:
        """When the server's silence means that the connection is lost."""
        exchange_at = math.inf if self._exchange_deadline_at is None else self._exchange_deadline_at
        return min(exchange_at, math.inf if self._silent_at is None else self._silent_at)

    def keep_time(self, now_at: float) -> None:
        """Connect again when it is time. Raises LinkLost where the server has been silent for too long."""
        if self._reconnect_at is not None and now_at >= self._reconnect_at:
            self.connect()
        if now_at >= self._silence_at:
            raise LinkLost("Redis has not answered in time")

    def close(self) -> None:
        for link in (self._link, self._bells):
            if link is not None:
                self._watcher.forget(link)
                link.close()
        self._link = self._bells = None


def _checked_server(info: bytes | redis.ResponseError) -> str:
    """Name and version of the server. Raises LinkLost where it is too old for our scripts."""
    if isinstance(info, redis.ResponseError):
        return "unknown"  # an ACL may forbid INFO; that the scripts were loaded says enough
    try:
        return scripts.check_server(info)
    except StoreUnavailable as error:
        raise LinkLost(str(error)) from error
