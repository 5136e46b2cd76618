"""The master: leases jobs, hands them to children, settles how they end. Runs as its own process, PID 1 in a container.

Owns the session with Redis, the zygotes, and every lease until it is settled or handed back. Must not import handlers,
block longer than its inbox lets it, or signal anything but its own children.
"""

import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from setproctitle import setproctitle

from supervisor import clock
from supervisor.config import Config, Exit, redacted
from supervisor.engine.commands import MOST
from supervisor.engine.jobs import Answer, LeaseRecord, Released, Unknown
from supervisor.engine.keys import Namespace
from supervisor.engine.link import LinkLost
from supervisor.engine.session import (
    BellRang,
    ConnectionMade,
    Granted,
    Left,
    Refused,
    Renewed,
    RepliesCame,
    Resumed,
    Session,
    Settled,
    Wanted,
)
from supervisor.ops.events import Events
from supervisor.pool import endings, environment, kernel, messages, settlements
from supervisor.pool.children import Child, Held
from supervisor.pool.drain import Ladder
from supervisor.pool.inbox import Inbox
from supervisor.pool.messages import (
    Boot,
    BootFailed,
    HandlerSettings,
    Notice,
    Ready,
    Reaped,
    Spawned,
    SpawnFailed,
    Verb,
)
from supervisor.pool.pace import Pace
from supervisor.pool.settlements import Ended, Tally, attempt_of
from supervisor.pool.slots import Slots
from supervisor.pool.states import PHASE_MOVES, ChildState, Phase, move
from supervisor.pool.zygotes import Zygote

#: Between the signal that writes a child's Python stacks and its kill.
_STACKS_S: Final = 0.1
#: A zygote that has not answered by then is retired; a child that has answered its last job must be gone by then.
_ANSWER_S: Final = 10.0
#: A child is dead: its zygote must have ended its leftovers and said so by then.
_REPORT_S: Final = 2.0
#: Back-off of a job whose klass no handler of ours has.
_UNKNOWN_S: Final = 10.0
#: A repeated TERM or INT within this is the same request: inits and shells double it.
_SAME_SIGNAL_S: Final = 1.0
#: How long every child has been busy before we wait for mail alone: shorter jobs never pay for it.
_MAIL_AFTER_S: Final = 0.05
_TITLE_S: Final = 0.2
_REFUSED_S: Final = 1.0


# What can become readable, beside the session's own events.


@dataclass(frozen=True, slots=True)
class SignalCame:
    pass


@dataclass(frozen=True, slots=True)
class ZygoteSpoke:
    zygote: Zygote


@dataclass(frozen=True, slots=True, eq=False)
class ChildSpoke:
    child: Child


@dataclass(frozen=True, slots=True, eq=False)
class ChildPrinted:
    child: Child


@dataclass(frozen=True, slots=True, eq=False)
class ChildEnded:
    child: Child


def run(config: Config) -> int:
    """Be the master until drained. Answers the exit code. `config.redis_url` is a real one by now."""
    events = Events(2, config.log, config.log_level)
    try:
        return Master(config, events).run()
    finally:
        events.close(1.0)


class Master:
    def __init__(self, config: Config, events: Events) -> None:
        assert config.redis_url is not None
        self._config = config
        self._events = events
        self._worker = f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._began_at = clock.monotonic()
        self._phase = Phase.SERVING
        self._exit = Exit.OK
        self._inbox: Inbox[Any] = Inbox()
        self._signals = kernel.SignalFd(kernel.HANDLED_SIGNALS)
        self._session = Session(
            config.redis_url, Namespace(config.namespace), self._worker, config.queue, config.lease_ttl_s, self._inbox
        )
        self._pace = Pace()
        self._slots = Slots(config.processes, config.jobs_per_child, config.dispatch_ahead_s, self._pace)
        self._handlers: dict[str, HandlerSettings] = {}
        self._zygotes: dict[int, Zygote] = {}
        self._current: Zygote | None = None
        self._zygotes_started = 0
        self._start_zygote_at: float | None = None
        self._boot_failure: BootFailed | None = None
        self._alone: tuple[str, int] = ("", 0)  # the job that ran alone at the last zygote losses, and how many
        self._exits: dict[int, int] = {}  # wait statuses of our own children, by pid
        self._workdir = Path(tempfile.gettempdir())
        self._environment: dict[str, str] = {}

        self._held: dict[int, Held] = {}  # by token, until its settlement is under way
        self._ready: deque[Held] = deque()  # leased, and sent to no child yet
        self._ended: deque[Ended] = deque()  # to be settled by the next exchange
        self._settling: list[Ended] = []  # by the one under way
        self._tell_started: list[Held] = []

        self._wanted = Wanted(0, 0)  # of the exchange under way
        self._connected_once = False
        self._ask = True  # there may be something to lease
        self._ask_at: float | None = None  # when there will be
        self._renew_at = 0.0
        self._full_since_at: float | None = None
        self._spawn_after_at = 0.0
        self._spawn_failures = 0
        self._ladder: Ladder | None = None
        self._title_at = 0.0
        self._title = ""
        self._tally = Tally()

    # the loop

    def run(self) -> int:
        try:
            self._open()
            while self._phase is not Phase.STOPPED:
                try:
                    self._turn()
                except LinkLost as lost:
                    self._on_link_lost(lost)
            return self._close()
        finally:
            shutil.rmtree(self._workdir, ignore_errors=True)

    def _turn(self) -> None:
        for event in self._inbox.wait(self._deadline_at()):
            self._handle(event)
        if self._phase is not Phase.STOPPED:
            self._keep_time(clock.monotonic())
        if self._phase is not Phase.STOPPED:
            self._fill_slots()
            self._converse()
        self._set_title()
        self._events.flush()

    def _handle(self, event: Any) -> None:
        match event:
            case ChildSpoke(child):
                self._on_child_spoke(child)
            case RepliesCame():
                self._on_replies()
            case ZygoteSpoke(zygote):
                self._on_zygote_spoke(zygote)
            case ChildPrinted(child):
                child.output.read()
            case ChildEnded(child):
                self._on_child_ended(child)
            case BellRang():
                self._on_bell()
            case SignalCame():
                for received in self._signals.read():
                    self._on_signal(received)
            case ConnectionMade():
                self._on_connection_made()

    # boot

    def _open(self) -> None:
        config = self._config
        kernel.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        self._inbox.watch(self._signals, SignalCame())
        base = config.workdir or Path(tempfile.gettempdir())
        self._workdir = base / f"leasehold-{self._worker}"
        self._workdir.mkdir(mode=0o700, parents=True)
        self._environment, held_back = environment.for_handlers(os.environ, config.redis_url or "")
        for warning in config.warnings:
            self._events.emit("master.warned", message=warning)
        if held_back:
            names = ", ".join(sorted(held_back))
            self._events.emit("master.warned", message=f"handlers do not get {names}: the value tells the Redis secret")
        self._start_zygote()
        self._session.connect()

    def _start_zygote(self) -> None:
        self._start_zygote_at = None
        self._zygotes_started += 1
        number = self._zygotes_started
        workdir = self._workdir / f"zygote-{number}"
        workdir.mkdir(mode=0o700)
        boot = Boot(self._config.handlers, str(workdir), self._config.jobs_per_child, self._config.on_error)
        zygote = Zygote(number, boot, self._environment, clock.monotonic() + self._config.boot_timeout_s)
        self._zygotes[number] = self._current = zygote
        self._inbox.watch(zygote.control, ZygoteSpoke(zygote))
        self._events.emit("zygote.spawned", zygote=number, pid=zygote.pid)

    # signals

    def _on_signal(self, received: kernel.Received) -> None:
        match received.signo:
            case signal.SIGTERM | signal.SIGINT:
                self._on_drain_signal(received)
            case signal.SIGQUIT:
                self._drain(received.signo.name, received.sender_pid)
                self._hurry(received)
            case signal.SIGCHLD:
                self._reap_own_children()

    def _on_drain_signal(self, received: kernel.Received) -> None:
        if self._ladder is None:
            self._drain(received.signo.name, received.sender_pid)
        elif clock.monotonic() - self._ladder.began_at > _SAME_SIGNAL_S:
            self._hurry(received)

    def _hurry(self, received: kernel.Received) -> None:
        assert self._ladder is not None
        self._ladder.hurry(clock.monotonic())
        self._events.emit("master.hurried", signal=received.signo.name, sender_pid=received.sender_pid)

    def _reap_own_children(self) -> None:
        """Our zygotes, and as PID 1 or subreaper whoever was left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if any(zygote.pid == pid for zygote in self._zygotes.values()):
                self._exits[pid] = status

    # zygotes

    def _on_zygote_spoke(self, zygote: Zygote) -> None:
        for report, fds in zygote.read():
            match report:
                case Spawned(number, pid):
                    self._on_spawned(zygote, number, pid, fds[0])
                case Reaped():
                    self._on_reaped(zygote, report)
                case Ready(handlers, threads):
                    self._on_ready(zygote, handlers, threads)
                case SpawnFailed(number, message):
                    self._on_spawn_failed(number, message)
                case BootFailed():
                    self._boot_failure = report
                case None:
                    self._on_zygote_lost(zygote)

    def _on_ready(self, zygote: Zygote, handlers: dict[str, dict[str, Any]], threads: list[str]) -> None:
        assert zygote.deadline_at is not None
        boot_s = clock.monotonic() - (zygote.deadline_at - self._config.boot_timeout_s)
        zygote.ready, zygote.deadline_at = True, None
        self._handlers = {name: HandlerSettings(**settings) for name, settings in handlers.items()}
        self._events.emit(
            "zygote.ready", zygote=zygote.number, pid=zygote.pid, handlers=sorted(self._handlers),
            boot_ms=round(boot_s * 1000), threads=threads or None,
        )  # fmt: skip
        if threads:
            names = ", ".join(threads)
            self._events.emit(
                "master.warned", message=f"the handlers start threads while they are imported ({names}):"
                " they do not exist in the children, and their locks may be held for ever",
            )  # fmt: skip

    def _on_zygote_lost(self, zygote: Zygote) -> None:
        """Its end takes its children along; what they ran is an interruption, for the cause lies elsewhere."""
        self._inbox.forget(zygote.control)
        zygote.let_go()
        del self._zygotes[zygote.number]
        status = self._wait_for(zygote)
        children = [child for child in self._slots if child.zygote == zygote.number]
        running = [child for child in children if child.sent]
        alone = self._count_alone(running)
        for child in children:
            child.kill("zygote-lost")
        kernel.await_ends([child.pidfd for child in children if child.pidfd is not None], _REPORT_S)
        self._end_strangers(zygote)
        for child in children:
            self._bury(child, None, "lost" if alone > 2 else "zygote-lost")
        shutil.rmtree(zygote.workdir, ignore_errors=True)
        if zygote is self._current:
            self._current = None
        if self._phase is not Phase.SERVING:
            return
        if zygote.ready:
            self._events.emit(
                "zygote.lost", zygote=zygote.number, status=endings.death_reason(status), running=len(running)
            )
            self._start_zygote_at = clock.monotonic() + min(10.0, 0.1 * 2 ** min(alone, 10) if alone > 1 else 0.0)
        else:
            self._on_boot_failed(status)

    def _wait_for(self, zygote: Zygote) -> int:
        """Its wait status; it may have closed its socket and live on."""
        if zygote.pid not in self._exits:
            zygote.kill()
            self._exits[zygote.pid] = os.waitpid(zygote.pid, 0)[1]
        return self._exits.pop(zygote.pid)

    def _count_alone(self, running: list[Child]) -> int:
        """How often in a row the one job that ran was the only one at a zygote's loss; 0: it was not alone."""
        head = running[0].head if len(running) == 1 else None
        if head is None:
            self._alone = ("", 0)
            return 0
        jid, times = self._alone
        self._alone = (head.lease.jid, times + 1 if jid == head.lease.jid else 1)
        return self._alone[1]

    def _end_strangers(self, zygote: Zygote) -> None:
        """What the lost zygote's children had started has come to us: end it before its jobs run again."""
        own = zygote.strangers | {other.pid for other in self._zygotes.values()}
        for pid in kernel.children_of_self() - own:
            os.kill(pid, signal.SIGKILL)

    def _on_boot_failed(self, status: int) -> None:
        failure = self._boot_failure or BootFailed(
            f"the zygote ended ({endings.death_reason(status)}) while it imported {self._config.handlers!r}", ""
        )
        self._boot_failure = failure
        self._exit = Exit.HANDLERS
        self._drain("", 0)

    def _retire(self, zygote: Zygote, reason: str) -> None:
        """It does not answer. Its children may go on; the next ones come from another."""
        if zygote is not self._current:
            return
        self._events.emit("zygote.retired", zygote=zygote.number, reason=reason)
        self._current = None
        self._start_zygote_at = clock.monotonic()

    # children

    def _fill_slots(self) -> None:
        zygote = self._current
        if self._phase is not Phase.SERVING or zygote is None or not zygote.ready:
            return
        if clock.monotonic() < self._spawn_after_at:
            return
        for _ in range(self._slots.missing()):
            number = self._slots.free_number()
            child = Child(number, zygote.number, self._on_line_of(number))
            self._slots.add(child)
            if not zygote.spawn(number, child.theirs):
                self._slots.remove(child)
                child.close_theirs()
                child.close()
                self._retire(zygote, "it does not read its requests")
                return
            child.close_theirs()
            self._inbox.watch(child.talk, ChildSpoke(child))
            self._inbox.watch(child.output.fd, ChildPrinted(child))

    def _on_line_of(self, number: int) -> Any:
        def on_line(token: int, line: bytes) -> None:
            child = self._slots.get(number)
            held = self._held.get(token) or (child.head if child is not None else None)
            self._events.emit(
                "job.printed",
                jid=held.lease.jid if held else None,
                klass=held.lease.klass if held else None,
                child=number,
                line=line.decode(errors="replace"),
            )

        return on_line

    def _on_spawned(self, zygote: Zygote, number: int, pid: int, pidfd: int) -> None:
        child = self._slots.get(number)
        if child is None or child.zygote != zygote.number:
            os.close(pidfd)
            return
        child.spawned(pid, pidfd)
        self._inbox.watch(pidfd, ChildEnded(child))
        self._events.emit("child.spawned", child=number, pid=pid)

    def _on_spawn_failed(self, number: int, message: str) -> None:
        self._events.emit("master.warned", message=f"no child can be forked: {message}; trying again in a second")
        self._spawn_after_at = clock.monotonic() + 1.0
        child = self._slots.get(number)
        if child is not None:
            self._forget_child(child)

    def _on_child_spoke(self, child: Child) -> None:
        try:
            for outcome in child.read_talk():
                if outcome.verb == Verb.READY:
                    self._on_child_ready(child)
                elif child.head is None or outcome.token != child.head.lease.token:
                    raise ValueError(f"an outcome for a job that is not in its hands: {outcome.token}")
                else:
                    self._on_outcome(child, outcome)
        except (ValueError, TypeError, KeyError) as error:
            # It may run hostile code: what it says never becomes an exception of ours.
            self._events.emit("child.killed", child=child.number, pid=child.pid, reason=f"it spoke nonsense: {error}")
            child.kill("it spoke nonsense on its socket")
        if child.at_end:
            self._inbox.forget(child.talk)

    def _on_child_ready(self, child: Child) -> None:
        if child.state is not ChildState.SPAWNING:
            return
        self._spawn_failures = 0
        child.become(ChildState.IDLE)
        self._events.emit("child.ready", child=child.number, pid=child.pid)
        self._place()

    def _on_outcome(self, child: Child, outcome: messages.Outcome) -> None:
        head = child.head
        assert head is not None
        lease = head.lease
        settings = self._handlers.get(lease.klass) or HandlerSettings()
        output = "" if outcome.verb == Verb.COMPLETED else child.output.last_of(lease.token)
        ending = endings.of_outcome(lease, outcome.verb, outcome.body, settings, output)
        child.answered()
        self._pace.learn(lease.klass, outcome.run_s)
        self._ended.append(Ended(ending, head, child.number, outcome.run_s))
        if child.state is ChildState.BUSY:
            self._next_state(child)

    def _next_state(self, child: Child) -> None:
        """It has answered: another job, another wait, or its exit."""
        if child.sent:
            self._say_started(child)
        elif self._slots.is_done(child):
            child.become(ChildState.LEAVING)
            child.kill_at, child.why_killed = clock.monotonic() + _ANSWER_S, "it did not exit after its last job"
        else:
            child.kill_at = child.why_killed = None
            child.become(ChildState.IDLE)

    def _on_child_ended(self, child: Child) -> None:
        """The kernel says so; its zygote, which ends what is left of it, must say so soon."""
        assert child.pidfd is not None
        self._inbox.forget(child.pidfd)
        child.report_by_at = clock.monotonic() + _REPORT_S

    def _on_reaped(self, zygote: Zygote, reaped: Reaped) -> None:
        self._events.emit(
            "child.reaped", child=reaped.child, pid=reaped.pid, status=endings.death_reason(reaped.status),
            cpu_ms=round(reaped.cpu_s * 1000), max_rss_bytes=reaped.max_rss_bytes,
        )  # fmt: skip
        child = self._slots.get(reaped.child)
        if child is not None and child.pid == reaped.pid and child.zygote == zygote.number:
            self._bury(child, reaped, child.why_killed)
        if zygote is not self._current and not any(other.zygote == zygote.number for other in self._slots):
            zygote.let_go()

    def _bury(self, child: Child, reaped: Reaped | None, why_killed: str | None) -> None:
        """A child is gone: read what it said, take back what it never received; what remains was in its hands."""
        self._on_child_spoke(child)
        back = child.take_back()
        for held in list(child.sent):
            self._on_death(child, child.answered(), reaped, why_killed)
        if child.state is ChildState.SPAWNING:
            self._spawn_failures += 1
            self._spawn_after_at = clock.monotonic() + min(10.0, 0.05 * 2 ** min(self._spawn_failures, 10))
        child.output.read_to_end()
        self._forget_child(child)
        self._take(back)

    def _forget_child(self, child: Child) -> None:
        self._inbox.forget(child.talk)
        self._inbox.forget(child.output.fd)
        if child.pidfd is not None:
            self._inbox.forget(child.pidfd)
        self._slots.remove(child)
        child.close()

    def _on_death(self, child: Child, held: Held, reaped: Reaped | None, why_killed: str | None) -> None:
        if held.lost:
            return  # somebody else has it: there is nothing of ours to settle
        lease = held.lease
        settings = self._handlers.get(lease.klass) or HandlerSettings()
        output = child.output.last_of(lease.token)
        ending = endings.of_death(lease, reaped, why_killed, settings, output, self._config.max_deaths)
        said: dict[str, Any] = {"reason": why_killed}
        if reaped is not None:
            said |= {"cpu_ms": round(reaped.cpu_s * 1000), "max_rss_bytes": reaped.max_rss_bytes}
        self._ended.append(Ended(ending, held, child.number, clock.monotonic() - held.started_at, said))

    # jobs

    def _on_granted(self, granted: Granted) -> None:
        grant = granted.grant
        wanted, starting = self._wanted.count, self._wanted.starting
        self._ask = len(grant.leases) >= wanted
        self._ask_at = None
        if not self._ask and grant.next_at_unix is not None:
            self._ask_at = clock.monotonic() + max(0.0, grant.next_at_unix - grant.now_unix)
            if not self._session.may_take_over:
                self._ask_at = max(self._ask_at, min(self._ask_at + 1.0, self._session.takeover_at))
        self._events.emit("lease.granted", count=len(grant.leases))
        for index, lease in enumerate(grant.leases):
            held = Held(lease, index < starting, self._pace.of(lease.klass))
            self._held[lease.token] = held
            if self._phase is not Phase.SERVING:
                self._hand_back(held, "drain")
            elif lease.klass not in self._handlers:
                self._ended.append(Ended(Unknown(lease, _UNKNOWN_S), held))
            else:
                self._ready.append(held)
        self._place()

    def _place(self) -> None:
        """Send what is leased to the children that may have it; what nobody may have now goes back uncounted."""
        while self._ready:
            child = self._slots.choose(self._ready[0])
            if child is None:
                break
            held = self._ready.popleft()
            child.send(held)
            if len(child.sent) == 1:
                self._say_started(child)
        self._return_ready()

    def _return_ready(self) -> None:
        while self._ready:
            self._hand_back(self._ready.popleft(), None)

    def _take(self, taken: list[Held]) -> None:
        """Jobs taken back from a child: to another one, or back to the front of their queue."""
        for held in reversed(taken):
            if held.lost:
                continue
            if self._phase is Phase.SERVING:
                self._ready.appendleft(held)
            else:
                self._hand_back(held, "drain")
        self._place()

    def _hand_back(self, held: Held, reason: str | None) -> None:
        self._ended.append(Ended(Released(held.lease, started=False), held, said={"reason": reason}))

    def _say_started(self, child: Child) -> None:
        head = child.head
        assert head is not None
        lease = head.lease
        self._events.emit(
            "job.started", jid=lease.jid, klass=lease.klass, queue=lease.queue, child=child.number,
            attempt=attempt_of(lease),
        )  # fmt: skip

    def _lose(self, held: Held) -> None:
        """The engine has given the job to somebody else: nothing that we do with it counts any more."""
        self._held.pop(held.lease.token, None)
        held.lost = True
        for child in self._slots:
            if held not in child.sent:
                continue
            self._events.emit("lease.lost", jid=held.lease.jid, klass=held.lease.klass, child=child.number)
            if held is not child.head:
                self._take(child.take_back())
            if held is child.head:
                self._stop(child, "lease-lost")
        if held in self._ready:
            self._ready.remove(held)

    def _stop(self, child: Child, why: str) -> None:
        """Have the running job's handler interrupted, and its process tree killed if that does not help."""
        head = child.head
        if head is None or child.kill_at is not None:
            return
        child.notify(Notice(head.lease.token, why))
        child.kill_at, child.why_killed = clock.monotonic() + self._config.term_grace_s, why

    # Redis

    def _on_connection_made(self) -> None:
        try:
            self._session.finish_connecting([held.lease for held in self._held.values()])
        except LinkLost as lost:
            if self._connected_once:
                raise
            self._fail_to_start(str(lost))
            return
        if not self._connected_once:
            self._connected_once = True
            self._say_hello()
        else:
            self._events.emit("redis.connected", url=redacted(self._config.redis_url or ""), server=self._session.server)
        self._ask, self._renew_at = True, clock.monotonic() + self._session.ttl_s / 3

    def _say_hello(self) -> None:
        config = self._config
        self._events.emit(
            "master.started", worker=self._worker, pid=os.getpid(), queues=list(config.queue),
            processes=config.processes, processes_reason=config.processes_reason,
            redis=redacted(config.redis_url or ""), server=self._session.server,
        )  # fmt: skip

    def _fail_to_start(self, message: str) -> None:
        url = redacted(self._config.redis_url or "")
        self._events.emit(
            "redis.failed", message=f"Redis at {url} cannot be used: {message}; check --redis-url and that it runs"
        )
        self._exit = Exit.UNREACHABLE
        self._phase = Phase.STOPPED

    def _on_link_lost(self, lost: LinkLost) -> None:
        retry_in_s = self._session.lose()
        self._events.emit("redis.lost", message=str(lost), retry_in_s=round(retry_in_s, 2))

    def _on_bell(self) -> None:
        if self._session.read_bell():
            self._session.mail.clear()
            self._ask = self._ask or self._session.rang

    def _on_replies(self) -> None:
        for answer in self._session.read():
            match answer:
                case Settled(_outcomes, answers):
                    settling, self._settling = self._settling, []
                    for ended, verdict in zip(settling, answers, strict=True):
                        self._on_settled(ended, verdict)
                case Granted():
                    self._on_granted(answer)
                case Renewed(leases, expires_unix) | Resumed(leases, expires_unix):
                    self._on_renewed(leases, expires_unix)
                case Refused(message):
                    self._events.emit("redis.failed", message=f"Redis refused a lease: {message}")
                    self._ask, self._ask_at = False, clock.monotonic() + _REFUSED_S
                case Left():
                    self._become(Phase.STOPPED)

    def _on_renewed(self, leases: Any, expires_unix: list[float]) -> None:
        for lease, expires in zip(leases, expires_unix, strict=True):
            held = self._held.get(lease.token)
            if expires == 0.0 and held is not None:
                self._lose(held)

    def _converse(self) -> None:
        """Start the next exchange if there is a reason for one, and wait for bells if there is none."""
        session = self._session
        if not session.idle:
            return
        now_at = clock.monotonic()
        if self._ladder is not None:
            self._leave_if_done(now_at)
            if not session.idle:
                return
        renewals = self._due_renewals(now_at)
        wanted = self._due_lease(now_at)
        if self._ended or renewals or wanted is not None:
            self._exchange(renewals, wanted)
        else:
            self._wait_for_bells(now_at)

    def _exchange(self, renewals: list[tuple[LeaseRecord, bool]], wanted: Wanted | None) -> None:
        batch = [self._ended.popleft() for _ in range(min(MOST, len(self._ended)))]
        for ended in batch:
            self._held.pop(ended.held.lease.token, None)
        self._settling = batch
        if wanted is not None:
            self._wanted = wanted
            self._ask, self._ask_at = False, None
        self._session.exchange([ended.outcome for ended in batch], renewals, wanted)

    def _due_renewals(self, now_at: float) -> list[tuple[LeaseRecord, bool]]:
        told = [(held.lease, True) for held in self._tell_started if held.lease.token in self._held]
        self._tell_started.clear()
        if now_at < self._renew_at:
            return told
        self._renew_at = now_at + self._session.ttl_s / 3
        return told + [(held.lease, False) for held in self._held.values()]

    def _due_lease(self, now_at: float) -> Wanted | None:
        if self._phase is not Phase.SERVING or self._current is None or not self._current.ready:
            return None
        if self._ask_at is not None and now_at >= self._ask_at:
            self._ask = True
        if not self._ask:
            return None
        count, starting = self._slots.capacity()
        if count == 0 and not self._session.rang:
            return None
        self._session.rang = False
        return Wanted(min(count, MOST), starting)

    def _wait_for_bells(self, now_at: float) -> None:
        """Wait for work where a child could take it; with all of them busy for a while, for mail alone."""
        session = self._session
        if self._phase is not Phase.SERVING:
            return
        if self._slots.idle():
            self._full_since_at = None
            if not session.waiting:
                session.wait_for_bells(queues=True)
            elif not session.waits_for_queues:
                session.stop_waiting()
        elif self._slots.busy and not session.waiting:
            self._full_since_at = self._full_since_at or now_at
            if now_at - self._full_since_at >= _MAIL_AFTER_S:
                session.wait_for_bells(queues=False)

    # the way down

    def _become(self, phase: Phase) -> None:
        self._phase = move(PHASE_MOVES, self._phase, phase)

    def _drain(self, signal_name: str, sender_pid: int) -> None:
        """Lease no more, hand back what has not started, let the rest finish. Idempotent."""
        if self._ladder is not None:
            return
        config = self._config
        self._ladder = Ladder.of(clock.monotonic(), config.drain_timeout_s, config.term_grace_s)
        self._become(Phase.DRAINING)
        self._events.emit(
            "master.draining", signal=signal_name or None, sender_pid=sender_pid or None,
            budget_s=config.drain_timeout_s + config.term_grace_s, running=self._slots.busy,
        )  # fmt: skip
        for child in self._slots:
            self._take(child.take_back())
        self._return_ready()
        if self._session.waiting and self._session.waits_for_queues:
            self._session.stop_waiting()

    def _climb_down(self, ladder: Ladder, now_at: float) -> None:
        if self._phase is Phase.DRAINING and now_at >= ladder.interrupt_at:
            self._become(Phase.INTERRUPTING)
            for child in self._slots:
                if child.head is not None:
                    child.notify(Notice(child.head.lease.token, "drain"))
        if self._phase is Phase.INTERRUPTING and now_at >= ladder.kill_at:
            self._become(Phase.KILLING)
            for child in self._slots:
                if child.sent:
                    child.kill("drain")
        if self._phase is Phase.KILLING and now_at >= ladder.hand_back_at:
            for child in self._slots:
                if child.sent:
                    self._bury(child, None, "drain")
        if now_at >= ladder.leave_by_at:
            self._give_up()

    def _give_up(self) -> None:
        """Redis does not answer: what we could not say is said by the expiry of our leases."""
        if self._phase is not Phase.LEAVING:
            self._exit = Exit.NOT_HANDED_BACK
            self._phase = Phase.LEAVING
        self._become(Phase.STOPPED)

    def _leave_if_done(self, now_at: float) -> None:
        assert self._ladder is not None
        if self._phase is not Phase.LEAVING:
            if self._held or self._ended or self._session.unsettled or self._slots.busy:
                return
            self._become(Phase.LEAVING)
            self._ladder.arrived(now_at)
        self._session.leave()

    def _close(self) -> int:
        self._session.close()
        for zygote in self._zygotes.values():
            self._inbox.forget(zygote.control)
            zygote.let_go()
        for zygote in self._zygotes.values():
            zygote.await_end(_REPORT_S)
        tally = self._tally
        self._events.emit(
            "master.stopped", exit_code=int(self._exit), completed=tally.completed, retried=tally.retried,
            failed=tally.failed, died=tally.died, released=tally.released,
            uptime_s=round(clock.monotonic() - self._began_at, 3),
        )  # fmt: skip
        if self._boot_failure is not None:
            failure = self._boot_failure
            self._events.emit(
                "zygote.failed", zygote=self._zygotes_started, message=failure.message, traceback=failure.traceback or None
            )
        return int(self._exit)

    # time

    def _deadline_at(self) -> float:
        """When something is due, if nothing happens before."""
        deadlines = [self._session.deadline_at]
        if self._session.reconnect_at is not None:
            deadlines.append(self._session.reconnect_at)
        if self._session.idle:
            deadlines.append(self._renew_at if self._held else self._ask_at or math.inf)
            if self._ask_at is not None:
                deadlines.append(self._ask_at)
            if self._full_since_at is not None and not self._session.waiting:
                deadlines.append(self._full_since_at + _MAIL_AFTER_S)
        if self._start_zygote_at is not None:
            deadlines.append(self._start_zygote_at)
        if self._ladder is not None:
            deadlines.append(self._ladder.next_at(self._phase))
        deadlines += [zygote.deadline_at for zygote in self._zygotes.values() if zygote.deadline_at is not None]
        deadlines += [self._child_deadline_at(child) for child in self._slots]
        if self._slots.missing():
            deadlines.append(max(self._spawn_after_at, clock.monotonic() + 0.01))
        return min(deadlines)

    def _child_deadline_at(self, child: Child) -> float:
        deadlines = [at for at in (child.kill_at, child.report_by_at) if at is not None]
        if child.state is ChildState.SPAWNING:
            deadlines.append(child.asked_at + _ANSWER_S)
        head = child.head
        if head is not None and child.state is ChildState.BUSY and child.kill_at is None:
            deadlines.append(head.started_at + (self._limit_s(head.lease) or math.inf))
            if not child.overran and (len(child.sent) > 1 or not head.told_started):
                deadlines.append(head.started_at + self._config.dispatch_ahead_s)
        return min(deadlines, default=math.inf)

    def _limit_s(self, lease: LeaseRecord) -> float:
        """How long a run may take; 0: as long as it likes."""
        if lease.timeout_s is not None:
            return lease.timeout_s
        handler_s = self._handlers[lease.klass].timeout_s
        return self._config.job_timeout_s if handler_s is None else handler_s

    def _keep_time(self, now_at: float) -> None:
        for child in self._slots:
            if now_at >= self._child_deadline_at(child):
                self._on_child_due(child, now_at)
        for zygote in list(self._zygotes.values()):
            if zygote.deadline_at is not None and now_at >= zygote.deadline_at:
                zygote.deadline_at = None
                self._boot_failure = BootFailed(
                    f"{self._config.handlers!r} was not imported within {self._config.boot_timeout_s:g} s"
                    " (--boot-timeout)", "",
                )  # fmt: skip
                zygote.kill()
        if self._start_zygote_at is not None and now_at >= self._start_zygote_at:
            self._start_zygote()
        if self._ladder is not None:
            self._climb_down(self._ladder, now_at)
        if self._session.reconnect_at is not None and now_at >= self._session.reconnect_at:
            self._session.connect()
        if now_at >= self._session.deadline_at:
            raise LinkLost("Redis has not answered in time")

    def _on_child_due(self, child: Child, now_at: float) -> None:
        if child.report_by_at is not None and now_at >= child.report_by_at:
            self._retire_of(child, "it does not report the end of a child")
            self._bury(child, None, child.why_killed)
            return
        if child.state is ChildState.SPAWNING and now_at >= child.asked_at + _ANSWER_S:
            self._retire_of(child, "it does not fork")
            child.kill("it was not ready in time")
        elif child.kill_at is not None and now_at >= child.kill_at:
            self._kill(child, child.why_killed or "it was due")
        elif (head := child.head) is not None and child.state is ChildState.BUSY:
            self._on_long_run(child, head, now_at)

    def _retire_of(self, child: Child, reason: str) -> None:
        zygote = self._zygotes.get(child.zygote)
        if zygote is not None:
            self._retire(zygote, reason)

    def _on_long_run(self, child: Child, head: Held, now_at: float) -> None:
        limit_s = self._limit_s(head.lease)
        if limit_s and now_at >= head.started_at + limit_s:
            child.write_stacks()
            child.kill_at, child.why_killed = now_at + _STACKS_S, "timeout"
        elif not child.overran and now_at >= head.started_at + self._config.dispatch_ahead_s:
            child.overran = True
            if not head.told_started:
                head.told_started = True
                self._tell_started.append(head)
            self._take(child.take_back())

    def _kill(self, child: Child, why: str) -> None:
        head = child.head
        self._events.emit(
            "child.killed", child=child.number, pid=child.pid, reason=why, jid=head.lease.jid if head else None
        )
        child.kill_at = None
        child.kill(why)

    def _set_title(self) -> None:
        now_at = clock.monotonic()
        if now_at < self._title_at:
            return
        self._title_at = now_at + _TITLE_S
        state = f"{self._slots.busy}/{self._slots.processes} busy"
        if self._ladder is not None:
            state += f", {self._phase.value}, {max(0.0, self._ladder.kill_at - now_at):.0f} s left"
        title = f"leasehold: master {','.join(self._config.queue)}  {state}"
        if title != self._title:
            self._title = title
            setproctitle(title)

    def _on_settled(self, ended: Ended, verdict: Answer) -> None:
        settlements.say(self._events, self._tally, ended, verdict)
