"""One worker's session with Redis: its numbered exchanges, and its way back after an outage.

Runs in master. Owns the connections and the worker's name. Must not block, must not decide what is leased or how a job
ended, and must not forget an outcome, nor a checkpoint: what was sent and not answered is sent again under the same
number, which changes nothing twice.
"""

import math
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import hiredis

from supervisor import clock
from supervisor.engine.commands import queries, writes
from supervisor.engine.commands.writes import Command, Grant, Renewal
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.outcomes import Outcome
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.validation import UNSET
from supervisor.engine.transport.link import CONNECT_S, Connector, Link, LinkLost
from supervisor.engine.worker.exchange import (
    SWEEP_COUNT,
    Answer,
    Asked,
    Changed,
    Chores,
    Confirmation,
    Deregistered,
    Desired,
    Due,
    Found,
    Full,
    Granted,
    Introduced,
    Left,
    Looked,
    Refused,
    Renewed,
    Reply,
    Resumed,
    Retired,
    Settled,
    Spawn,
    Tidied,
    Timed,
    Wanted,
)
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.engine.worker.wakeups import SILENT, PushListeners, Timers, Wakeups, Watcher, wait_s_of
from supervisor.redis_url import redacted

_LONGEST_SILENCE_S: Final = 5.0
_SHORTEST_SILENCE_S: Final = 0.3
#: The keys of timers.
_EXCHANGE: Final = "session.exchange"
_RECONNECT: Final = "session.reconnect"


@dataclass(slots=True)
class _Part:
    """One command of an exchange, what it is about, and its reply; or one beside it, whose answer says nothing."""

    command: Command[Any]
    subject: Any = None
    kind: type[Any] = object
    stores: bool = False  # a checkpoint
    must: bool = False  # a worker cannot go on where Redis refuses it
    reply: Any = None


class _Behind(NamedTuple):
    """The lease that stands behind a wait for bells: in whose name, whether lost workers' jobs may be had, and when the
    wait has begun and will end by itself (seconds of clock.boottime).
    """

    lease: Command[Grant]
    worker: str
    takeover: bool
    begun_at: float
    ends_at: float


def worker_name() -> str:
    """The name of a worker: host, pid, and what no other start on this host has."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}"


class Session:
    def __init__(
        self, url: str, namespace: Namespace, queues: Queues, ttl_s: float | None, watcher: Watcher, timers: Timers
    ) -> None:
        """`ttl_s`: of the leases; None: each queue's heartbeat in Redis."""
        self._url = url
        self._namespace = namespace
        self.worker = worker_name()
        self.serving = ServedQueues(queues)
        self._time_due = False
        self._time_at = 0.0  # when an exchange that renews asks how to time ourselves
        self._own_ttl_s = ttl_s
        self._watcher = watcher
        self._timers = timers
        self._connector: Connector | None = None
        self._link: Link | None = None
        self._number = 0
        self._parts: list[_Part] = []  # of the exchange under way
        self._awaited: deque[_Part | None] = deque()  # whose replies are to come; None: nobody's
        self._sent_at = 0.0  # when the exchange under way was sent (seconds of clock.boottime)
        self._unstored: list[_Part] = []  # with checkpoints; sent on a connection that was lost before the answer
        self._unsettled: _Part | None = None  # sent on a connection that was lost before the answer
        self._resumed = False
        self._highest_token = 0
        self._klasses: Collection[str] = ()
        self._skills_due = False
        self._takeover_at = 0.0
        self._grace_s = self._shortest_grace_s = 5.0
        self.ttl_s = ttl_s or 30.0
        self.server = ""
        self._lost_grant = False  # a connection was lost before the answer to a lease, and we have not resumed since
        self.bells = Wakeups(namespace, watcher, timers)
        self._behind: _Behind | None = None  # the wait that is under way
        self.doors = PushListeners(url, namespace, watcher, timers)

    # connecting

    @property
    def url(self) -> str:
        """Where the server is, as people may see it: without the secret."""
        return redacted(self._url)

    @property
    def namespace(self) -> str:
        return self._namespace.name

    @property
    def connected(self) -> bool:
        """Whether Redis was there at its last word."""
        return self._resumed

    @property
    def idle(self) -> bool:
        """Whether an exchange may be started."""
        return self._resumed and not self._parts

    def open(
        self, on_connection: Callable[[], None], on_replies: Callable[[], None], on_bell: Callable[[], None]
    ) -> None:
        """Start to connect. `on_connection` is called when that has succeeded or failed, to call `finish_connecting`;
        from then on `on_replies`, to call `read`, and `on_bell`, to call `hear`.
        """
        self._on_connection, self._on_replies, self._on_bell = on_connection, on_replies, on_bell
        self._connect(clock.monotonic())

    def _connect(self, _now_at: float) -> None:
        greeting: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", script.text) for script in scripts.OF_A_WORKER]
        greeting += [("INFO", "server"), self._timing().wire(self._namespace.prefix)]
        self._connector = Connector(self._url, 2, greeting, CONNECT_S)
        self._watcher.watch(self._connector, self._on_connection)

    def _timing(self) -> Command[queries.Timing]:
        # Globs that match nothing yet: no queue has this name, so what is found are the settings of all.
        return queries.timing(self.serving.names or ("*",))

    def finish_connecting(self, known: Sequence[LeaseRecord]) -> None:
        """Begin the session, or begin it again, with what this worker holds. Raises LinkLost."""
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        (self._link, bells), replies = connector.finish()
        self._watcher.watch(self._link, self._on_replies)
        self.bells.open(bells, self._on_bell)
        *loaded, info, timings = replies
        for reply in (*loaded, timings):
            if isinstance(reply, hiredis.ReplyError):
                raise LinkLost(f"Redis refused what every worker must do: {reply}")
        self.server = _checked_server(info)
        self._keep_timing(self._timing().parse(timings))
        self.serving.look_for_queues()
        self.serving.look_for_wish()  # the hint may have been lost with the connection
        # Nobody is robbed after an outage: the other workers, too, need a moment to renew what is theirs.
        self._takeover_at = clock.monotonic() + self._grace_s
        self._resume(known)

    def _resume(self, known: Sequence[LeaseRecord]) -> None:
        # In the order in which they were sent: a job's last checkpoint before its end.
        parts, self._unstored = self._unstored, []
        if self._unsettled is not None:
            parts = [*parts, self._unsettled]
        self._skills_due = True
        self._number += 1
        known_ids = [(lease.jid, lease.token) for lease in known]
        resume = writes.resume(self.worker, self._number, known_ids, highest=self._highest_token, ttl_s=self._own_ttl_s)
        self._start([*parts, _Part(resume, known, Resumed, must=True)])

    def _keep_timing(self, timing: queries.Timing) -> None:
        self.ttl_s, self._grace_s = self._own_ttl_s or timing.heartbeat_s, timing.grace_s
        self._shortest_grace_s = timing.shortest_grace_s
        self._time_due, self._time_at = False, clock.monotonic() + self.ttl_s / 4

    def rename(self) -> None:
        """On `Deregistered`: begin anew, under another name and with nothing held. Raises LinkLost."""
        if self.bells.waiting:
            self.stop_waiting()
        # What we have left under the old name since: a renewal, mail to end a wait that was over already.
        self._send_aside(writes.deregister(self.worker, own=True))
        self.worker = worker_name()
        self._number, self._unsettled, self._unstored = 0, None, []
        self.serving.forget_wish()
        self._resumed, self._lost_grant = False, False
        self._resume(())

    @property
    def longest_wait_s(self) -> float:
        """How long it takes at the most until a lost connection is made anew."""
        return self._grace_s / 2

    @property
    def may_hold_more(self) -> bool:
        """Whether a lease is unanswered: jobs may be held in our name that we do not know of.

        However the connection was lost, the server may have granted the lease behind a wait before that.
        """
        return self._lost_grant or self._behind is not None or any(part.kind is Granted for part in self._parts)

    def lose(self) -> float:
        """The connection is lost: keep what must be said again. Return in how many seconds to connect anew."""
        self._lost_grant = self.may_hold_more
        for part in self._parts:
            if part.kind is Settled:
                self._unsettled = part
            if part.stores:
                self._unstored.append(part)
            if part.kind is Reply:
                self.serving.forget_ask(part.subject)
        self._parts = []
        self._awaited.clear()
        self._behind = None
        self._resumed = False
        self.close()
        wait_s = random.uniform(0.1, 1.0) * self.longest_wait_s
        self._timers.set(_RECONNECT, clock.monotonic() + wait_s, self._connect)
        return wait_s

    def know_klasses(self, klasses: Collection[str]) -> None:
        """We have handlers for these from now on: the next exchange says so."""
        if klasses is not self._klasses:
            self._klasses, self._skills_due = klasses, True

    @property
    def skills_due(self) -> bool:
        """Whether the next exchange says what we have handlers for."""
        return self._skills_due

    # exchanges

    @property
    def may_take_over(self) -> bool:
        return clock.monotonic() >= self._takeover_at

    @property
    def takeover_at(self) -> float:
        """From when on other workers' expired leases may be taken over."""
        return self._takeover_at

    def drop_mail(self) -> None:
        """Forget the hints that have not been read: the next exchange, with all it renews, does what they ask for."""
        self._send([(None, ("UNLINK", self._namespace.mail(self.worker)))])
        if self.bells.waking:  # by one of them, perhaps
            self._send_aside(writes.tell(self.worker, b"wake"))
        self.serving.look_for_queues()
        self.serving.look_for_wish()

    def exchange(
        self,
        outcomes: Sequence[Outcome],
        renewals: Sequence[Due],
        wanted: Wanted | None,
        chores: Chores | None = None,
        replies: Sequence[Reply] = (),
    ) -> None:
        """Start one exchange: renew leases, settle at most 1,000 outcomes, answer what was asked, do the chores, lease.
        Raises LinkLost.
        """
        self._number += 1
        now_at = clock.monotonic()
        parts = []
        if self._skills_due:
            self._skills_due = False
            skills = writes.skills(self.worker, self._klasses, self.serving.names)
            parts.append(_Part(skills, None, Introduced))
        for first in range(0, len(renewals), writes.MOST):
            # Before they are settled: how far a job was is kept with it.
            some = renewals[first : first + writes.MOST]
            entries = [
                Renewal(due.lease.jid, due.lease.token, due.started, UNSET, due.progress, due.state) for due in some
            ]
            renew = writes.renew(self.worker, entries, number=self._number, ttl_s=self._own_ttl_s)
            stores = any(due.state for due in some)
            parts.append(_Part(renew, [due.lease for due in some], Renewed, stores, must=True))
        if outcomes:
            settle = writes.settle(self.worker, outcomes, number=self._number)
            parts.append(_Part(settle, outcomes, Settled, must=True))
        parts += [_Part(self._answering(reply), reply.ask, Reply) for reply in replies]
        chores = chores or Chores()
        if self._time_due or chores.sweep or (renewals and now_at >= self._time_at):
            parts.append(_Part(self._timing(), None, Timed))
        if self.serving.asks_for_names(wanted is not None, now_at):
            parts.append(_Part(queries.names(), None, Found))
        if self.serving.asks_for_wish():
            # In this order: whatever is asked after the second look has a number that the first has not seen.
            parts.append(_Part(queries.wish(self.worker), None, Changed))
            parts.append(_Part(queries.requests(self.worker), None, Asked))
        parts += self._chores(chores)
        if wanted is not None:
            parts.append(_Part(self._lease(wanted), None, Granted))
        self._start(parts)

    def _answering(self, reply: Reply) -> Command[bool]:
        try:
            return writes.answer(self.worker, reply.ask.id, reply.answer)
        except (TypeError, ValueError) as error:  # too long, or no JSON: better said than waited for
            return writes.answer(self.worker, reply.ask.id, {"error": str(error)})

    def _chores(self, chores: Chores) -> list[_Part]:
        parts = []
        if chores.sweep:
            sweep = writes.sweep(
                SWEEP_COUNT, takeover=self.may_take_over, offset=chores.offset, worker=self.worker,
                queues=self.serving.literals,
            )  # fmt: skip
            parts.append(_Part(sweep, None, Tidied))
        for due, times_unix, next_unix in chores.spawns:
            parts.append(_Part(writes.spawn(due, times_unix, next_unix), None, Spawn))
        if chores.look and self.serving.names:
            parts.append(_Part(queries.depths(self.serving.names), None, Looked))
        if chores.desired is not None:
            parts.append(_Part(writes.desire(*chores.desired), None, Desired))
        return parts

    def _lease(self, wanted: Wanted, waited: bool = False) -> Command[Grant]:
        return writes.lease(
            self.worker, self.serving.names, wanted.count, starting=wanted.starting, ttl_s=self._own_ttl_s,
            number=self._number, takeover=self.may_take_over, order=self.serving.order,
            woken=wanted.woken, waited=waited, weights=self.serving.weights, once=wanted.once,
        )  # fmt: skip

    def retire(self, soon_s: float) -> None:
        """Ask to be forgotten, as there is nothing to do: if that is so, and nothing will be within `soon_s`. Our wait
        must have ended, or it would take a token that is for others. Raises LinkLost.
        """
        assert not self.bells.waiting
        self._start([_Part(writes.retire(self.worker, self.serving.names, soon_s), None, Retired)])

    def leave(self) -> None:
        """The last exchange: nothing is held any more, and the worker is forgotten. Raises LinkLost."""
        self._start([_Part(writes.deregister(self.worker, own=True), None, Left, must=True)])

    def _start(self, parts: list[_Part]) -> None:
        assert not self._parts
        self._parts, self._sent_at = parts, clock.boottime()
        self._be_patient()
        self._send([(part, part.command.wire(self._namespace.prefix)) for part in parts])

    def _be_patient(self) -> None:
        """The deadline is on silence: a large payload may be under way for long."""
        silence_s = max(_SHORTEST_SILENCE_S, min(_LONGEST_SILENCE_S, self.ttl_s / 3))
        self._timers.set(_EXCHANGE, clock.monotonic() + silence_s, self._on_silence)

    def _on_silence(self, _now_at: float) -> None:
        """Raise LinkLost, but if the silence is ours: after a long turn the reply lies in the socket, to be read."""
        if self._link is None or not self._link.is_readable:
            raise LinkLost(SILENT)
        self._be_patient()

    def tell_started(self, leases: Sequence[LeaseRecord]) -> None:
        """These jobs start now. Beside any exchange. Raises LinkLost."""
        started = [Renewal(lease.jid, lease.token, started=True) for lease in leases]
        self._send_aside(writes.renew(self.worker, started, ttl_s=self._own_ttl_s))

    def _send_aside(self, command: Command[Any]) -> None:
        """It is no part of an exchange: all that matters is that it is carried out."""
        self._send([(_Part(command), command.wire(self._namespace.prefix))])

    def _send(self, wires: list[tuple[_Part | None, tuple[Any, ...]]]) -> None:
        """Send commands; None: nobody waits for the reply."""
        assert self._link is not None
        self._awaited.extend(part for part, _wire in wires)
        self._link.send([wire for _part, wire in wires])
        if self._link.wants_write:
            self._watcher.want_write(self._link, True)

    def read(self) -> list[Answer]:
        """Return the answers of the exchange, once all are here. Raises LinkLost."""
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
        self._parts = []
        self._timers.cancel(_EXCHANGE)
        return [answer for answer in answers if answer is not None]

    def _send_with_script(self, part: _Part) -> None:
        """The server has lost its scripts (restart, failover, SCRIPT FLUSH); the command was not carried out."""
        load = ("SCRIPT", "LOAD", part.command.script.text)
        self._send([(None, load), (part, part.command.wire(self._namespace.prefix))])

    def _answer(self, part: _Part) -> Answer | None:
        """None: nothing has changed."""
        if isinstance(part.reply, hiredis.ReplyError):
            return self._answer_error(part, str(part.reply))
        value = part.command.parse(part.reply)
        if part.kind is Settled:
            self._unsettled = None
            return Settled(value)
        if part.kind is Granted:
            return self._granted(value, self._sent_at)
        if part.kind is Renewed:
            return Renewed(part.subject, value, self._confirmation(self._sent_at, value.now_unix))
        if part.kind is Resumed:
            self._resumed, self._lost_grant = True, False
            confirmation = self._confirmation(self._sent_at, value.now_unix)
            return Resumed(part.subject, value.expires, value.handed_back, confirmation)
        if part.kind is Found:
            return self._with_time_due(self.serving.take_names(value))
        if part.kind is Changed:
            return self._with_time_due(self.serving.take_wish(value))
        if part.kind is Asked:
            return self.serving.take_asks(value)
        if part.kind is Reply:
            self.serving.forget_ask(part.subject)
            return None
        if part.kind is Timed:
            self._keep_timing(value)
            return Timed()
        if part.kind is Tidied:
            return Tidied(value)
        if part.kind is Looked:
            return Looked(value)
        if part.kind is Retired:
            return Retired(value)
        return None if part.kind in (Spawn, Desired, Introduced) else Left()

    def _confirmation(self, sent_at: float, now_unix: float) -> Confirmation:
        return Confirmation(sent_at, now_unix, self._shortest_grace_s)

    def _granted(self, grant: Grant, sent_at: float) -> Granted:
        """`sent_at`: the lease was carried out then or later (seconds of clock.boottime)."""
        self.serving.heard_of_wish(grant.wish_number)
        if grant.leases:
            self._highest_token = max(self._highest_token, grant.leases[-1].token)
        ttl_s = min((lease.expires_unix for lease in grant.leases), default=math.inf) - grant.now_unix
        return Granted(grant, self._confirmation(sent_at, grant.now_unix), late=clock.boottime() >= sent_at + ttl_s)

    def _with_time_due(self, change: Found | Changed | None) -> Found | Changed | None:
        """Other queues may have another heartbeat."""
        self._time_due = self._time_due or change is not None
        self._skills_due = self._skills_due or change is not None
        return change

    def _answer_error(self, part: _Part, message: str) -> Answer:
        if message.startswith("DEREGISTERED") and part.kind in (Granted, Resumed):
            return Deregistered()
        if message.startswith("OOM") and part.kind is Settled and part.command.script is not scripts.SETTLE:
            self._unsettled = None
            return Full()
        if part.must:
            raise LinkLost(f"Redis refused {part.command.script.name}: {message}")
        return Refused(part.command.script.name, message)

    # waiting

    def wait_for_bells(self, queues: bool, wanted: Wanted | None = None) -> None:
        """Begin to wait for mail, and with `queues` for their bells; `hear` says when it has ended. With `wanted` the
        server leases that as soon as the wait has ended, by whatever: who waits for a job is spared an exchange after
        he was woken. Raises LinkLost.
        """
        wire = None
        now_at, wait_s = clock.boottime(), wait_s_of(self.ttl_s)
        # Globs may match nothing yet. A lease that is shorter than the wait might have run out when we hear of it.
        if wanted is not None and self.serving.names and wait_s <= self.ttl_s:
            lease = self._lease(wanted, waited=True)
            self._behind = _Behind(lease, self.worker, self.may_take_over, now_at, now_at + wait_s)
            wire = lease.wire(self._namespace.prefix)
        self.bells.wait(self.worker, self.serving.names if queues else None, wait_s, wire)

    def hear(self) -> tuple[bool, Granted | None]:
        """Return whether the wait has ended, and what was leased with that. Raises LinkLost."""
        if not self.bells.read():
            return False, None
        behind, self._behind = self._behind, None
        answer, self.bells.answer = self.bells.answer, None  # it has the payloads
        if behind is None:
            return True, None
        is_ours = behind.worker == self.worker  # else it went back with all that our old name held
        self.bells.rang = not is_ours or isinstance(answer, hiredis.ReplyError)
        if self.bells.rang:
            return True, None  # what is wrong with it, the exchange that asks anew is told as well
        grant = behind.lease.parse(answer)
        return True, self._granted(grant, behind.ends_at if self.bells.timed_out else behind.begun_at)

    @property
    def leases_when_woken(self) -> bool:
        """Whether the wait leases for us as soon as it ends."""
        return self.bells.waiting and self._behind is not None and self._behind.worker == self.worker

    @property
    def leases_all_when_woken(self) -> bool:
        """Whether it then leases all that could be had now."""
        if self._behind is None or not self.leases_when_woken:
            return False
        return self._behind.takeover == self.may_take_over and not self.waits_for_others

    @property
    def waits_for_others(self) -> bool:
        """Whether the bells that we wait for are not those of the queues that we lease from now."""
        return self.bells.waits_for_queues and self.bells.names != self.serving.names

    def stop_waiting(self) -> None:
        """Have the wait end before anything that is sent from now on is carried out. Raises LinkLost.

        By mail to ourselves: a bell that we ring would else be taken by our own waiting connection.
        """
        if self.bells.must_be_woken():
            self._send_aside(writes.tell(self.worker, b"wake"))

    def close(self) -> None:
        if self._link is not None:
            self._watcher.forget(self._link)
            self._link.close()
        self._link = None
        self._timers.cancel(_EXCHANGE)
        self.bells.close()
        self.doors.close()


def _checked_server(info: bytes | hiredis.ReplyError) -> str:
    """Name and version of the server. Raises LinkLost where it is too old for our scripts."""
    if isinstance(info, hiredis.ReplyError):
        return "unknown"  # an ACL may forbid INFO; that the scripts were loaded says enough
    try:
        return scripts.check_server(info)
    except StoreUnavailable as error:
        raise LinkLost(str(error)) from error
