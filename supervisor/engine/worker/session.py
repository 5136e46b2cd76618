"""One worker's session with Redis: makes its connections, and resumes after an outage. Runs in the master.

Owns the connections and the worker's identity in one shard of a namespace. Must not block, must not decide what is
leased or how a job ended, and must not forget an outcome or a checkpoint: it sends both again under their old number,
which changes nothing twice.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

from supervisor import clock
from supervisor.engine.commands import dividing, leasing, workers
from supervisor.engine.commands.leasing import ResumeResult
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.link import CONNECT_S, Connector, LayoutRefused, LinkLost
from supervisor.engine.worker import known_leases
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.exchange import Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.looks import Looks
from supervisor.engine.worker.pipeline import DeadlineTimers, Pipeline, Refusal, Watcher
from supervisor.engine.worker.push_listeners import MOST_LISTENERS, PushListeners
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.engine.worker.shards_changed import DivisionRefused, ShardsChanged
from supervisor.engine.worker.successor_watch import SuccessorWatch
from supervisor.engine.worker.wait import LeaseBehind, Wait
from supervisor.engine.worker.wakeups import Wakeups

OnResumed = Callable[[Sequence[LeaseRecord], ResumeResult], None]
Callback = Callable[[], None]

_RECONNECT: Final = "session.reconnect"  # the key of a timer


class Session:
    def __init__(
        self,
        dialer: Dialer,
        namespace: Namespace,
        queues: Queues,
        ttl_s: float | None,
        acknowledge: int | None,
        watcher: Watcher,
        timers: DeadlineTimers,
        poll_s: float = 0.0,
        identity: Identity | None = None,
        shards: int | None = None,
    ) -> None:
        """`ttl_s`: of the leases; None: each queue's heartbeat in Redis.

        `acknowledge`: how many replicas must have each outcome; None: as Redis has it configured.
        `poll_s`: how often an idle worker looks for work; 0: it waits in Redis.
        `shards`: the number that a new namespace is given; None: what Redis says.
        """
        self._dialer = dialer
        self._may_lack_commands = poll_s > 0  # a proxy that lets nothing wait may refuse SCRIPT LOAD and INFO, too
        self._namespace = namespace
        self._wanted_shards = shards
        self._watcher = watcher
        self._timers = timers
        self.identity = identity or Identity()
        self.serving = ServedQueues(queues)
        self.times = LeaseTimes(ttl_s, self.serving, dialer.patience)
        self.acknowledging = Acknowledging(acknowledge, self.times, namespace.keys[1:])
        self.leaser = Leaser(self.identity, self.serving, self.times, self.acknowledging)
        self.pipeline = Pipeline(namespace, self.identity, self.times, self.acknowledging, watcher, timers)
        self.wakeups: Wait
        if poll_s:
            self.wakeups, listeners = Looks(poll_s, namespace, self.identity, self.leaser, self.pipeline, timers), 0
        else:
            self.wakeups = Wakeups(namespace, self.identity, self.leaser, self.pipeline, watcher, timers)
            listeners = 0 if namespace.shard else MOST_LISTENERS  # plain pushes go to the first shard
        self.listeners = PushListeners(dialer, namespace.incoming, watcher, timers, listeners)
        self.door_listeners = PushListeners(dialer, str, watcher, timers, listeners)
        self._successor_watch = SuccessorWatch(dialer, watcher, timers)
        self.server = ""  # name and version
        self._connector: Connector | None = None
        self.has_begun = False  # a connection was made and could be used
        self.has_left = False  # Redis has forgotten the worker, as it was asked to
        self._resumed = False
        self._lost_grant = False  # the answer to a lease was lost, and the session has not resumed since
        self._unanswered: list[Part] = []  # of lost connections, to be sent again

    @property
    def worker(self) -> str:
        return self.identity.name

    @property
    def url(self) -> str:
        """The server's address, without its secret."""
        return self._dialer.shown

    @property
    def namespace(self) -> str:
        return self._namespace.name

    @property
    def shard(self) -> int:
        return self._namespace.shard

    @property
    def shards(self) -> int:
        """How many shards the namespace has, as far as this session knows."""
        return self._namespace.shards

    @property
    def connected(self) -> bool:
        """True if Redis has let the worker resume, and the connection is not known to be lost."""
        return self._resumed

    @property
    def idle(self) -> bool:
        """True if an exchange may be started."""
        return self._resumed and not self.pipeline.parts and not self.has_left

    # exchanges

    def exchange(self, parts: Sequence[Part]) -> None:
        """Start an exchange. Raises LinkLost."""
        self.pipeline.exchange(parts)

    def report_starts(self, leases: Sequence[LeaseRecord]) -> bool:
        """Tell Redis at once, beside any exchange, that these jobs start; nothing while Redis is away.

        Return False if the connection proves to be lost. To read from it raises LinkLost then, so the loop meets it.
        """
        if self._resumed:
            starts = [known_leases.started(lease) for lease in leases]
            try:
                self.pipeline.send_aside(leasing.renew(self.worker, starts, ttl_s=self.times.own_ttl_s))
            except LinkLost:
                return False
        return True

    def read(self) -> None:
        """Read replies of the exchange. Raises LinkLost."""
        self.pipeline.read()
        self._successor_watch.watch(self.acknowledging.is_short)

    # connecting

    def open(self, on_connection: Callback, on_replies: Callback, on_wakeup: Callback, on_refused: Refusal) -> None:
        """Start to connect.

        Raises LinkLost if not even that can begin.

        `on_connection` is called when that has succeeded or failed, to call `finish_connecting`; from then on
        `on_replies` is called to call `read`, and `on_wakeup` to call `Wakeups.read`. `on_refused(script, message)` is
        called for an error reply that no part of an exchange expects.
        """
        self._on_connection, self._on_replies, self._on_wakeup = on_connection, on_replies, on_wakeup
        self._on_refused = on_refused
        self._connect(clock.monotonic())

    def _connect(self, _now_at: float) -> None:
        greeting: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", script.text) for script in scripts.OF_A_WORKER]
        if self._wanted_shards is not None:
            greeting.append(dividing.divide(self._wanted_shards).wire_with_script(self._namespace.prefix))
        greeting += [("INFO", "server"), self.times.query().wire(*self._namespace.keys)]
        self._connector = Connector(self._dialer, 1 + self.wakeups.links, greeting, CONNECT_S)
        self._watcher.watch(self._connector, self._on_connection)

    def finish_connecting(self, known: Sequence[LeaseRecord], on_resumed: OnResumed, on_deregistered: Callback) -> None:
        """Begin the session, or resume it with the leases that this worker holds. Raises LinkLost.

        `on_resumed(known, answer)`, or `on_deregistered()` if Redis does not know the worker any more, is to follow.
        """
        connector, self._connector = self._connector, None
        assert connector is not None
        self._watcher.forget(connector)
        (link, *waiting_links), replies = connector.finish()
        self.pipeline.open(link, self._on_replies, self._on_refused)
        self._successor_watch.open(link)
        self.wakeups.open(waiting_links, self._on_wakeup)
        *loaded, info, timings = replies
        self.server = _checked_server(info)
        LayoutRefused.check(timings)
        if self._wanted_shards is not None:
            *loaded, divided = loaded
            self._check_division(divided)
        self._learn_shards(timings)
        for reply in (*loaded, timings):
            if isinstance(reply, hiredis.ReplyError) and not self._is_bearable(reply):
                raise LinkLost(f"Redis refused what every worker must do: {reply}")
        if isinstance(timings, hiredis.ReplyError):
            self.times.read_again()
        else:
            self.times.keep(self.times.query().parse(timings))
        self.times.spare_peers()
        # Mail may have been lost with the connection.
        self.serving.look_for_queues()
        self.serving.look_for_requests()
        self._resume(known, on_resumed, on_deregistered)
        self.has_begun = True

    def _is_bearable(self, refusal: hiredis.ReplyError) -> bool:
        """Return True if the first exchange can do without: it brings the scripts along that the server lacks."""
        if ShardsChanged.refusal(refusal) is not None:
            return True  # it knows better by now
        return self._may_lack_commands and not str(refusal).startswith("NOPERM")

    # shards

    def _check_division(self, reply: Any) -> None:
        """Raises LinkLost if the namespace has another number of shards than it was to be given."""
        if isinstance(reply, hiredis.ReplyError):
            raise LinkLost(f"Redis refused to divide the namespace: {reply}")
        try:
            dividing.divide(self._wanted_shards).parse(reply)
        except OtherShards:
            pass  # its jobs are being moved to a number that it has later
        except LeaseholdError as refused:
            raise DivisionRefused(str(refused)) from refused
        self._wanted_shards = None

    def _learn_shards(self, reply: Any) -> None:
        """Go on as the first of several shards, if the reply says so to a caller of one. Raises ShardsChanged."""
        refusal = ShardsChanged.refusal(reply)
        if refusal is None or refusal.count is None:
            return
        if self._namespace.shards > 1:
            raise ShardsChanged(refusal, refusal.count.number)
        self._namespace = Namespace(self._namespace.name, 0, refusal.count.number)
        self.pipeline.keys, self.acknowledging.known = self._namespace.keys, self._namespace.keys[1:]

    def _resume(self, known: Sequence[LeaseRecord], on_resumed: OnResumed, on_deregistered: Callback) -> None:
        def resumed(answer: ResumeResult) -> None:
            self._resumed, self._lost_grant = True, False
            on_resumed(known, answer)

        def deregistered(_message: str) -> None:
            on_deregistered()

        resume = known_leases.resume(self.identity, self.times, known)
        # The parts keep their order: a job's last checkpoint comes before its outcome.
        again, self._unanswered = self._unanswered, []
        self.pipeline.exchange([*again, Part(resume, resumed, {"DEREGISTERED": deregistered}, must=True)])

    def rename(self, on_resumed: OnResumed, on_deregistered: Callback) -> None:
        """Begin anew under another name and with no lease, because Redis has forgotten the worker. Raises LinkLost."""
        if self.wakeups.waiting:
            self.wakeups.end_wait()
        # Renewals and mail to itself may have made another record of the worker meanwhile.
        self.pipeline.send_aside(workers.deregister(self.identity.name, own=True))
        self.identity.rename()
        self.serving.forget_requests()
        self._resumed = self._lost_grant = False
        self._unanswered.clear()
        self._resume((), on_resumed, on_deregistered)

    # the last exchange

    def retire(self, soon_s: float, refused: Callable[[str], None]) -> None:
        """Leave, unless something is to be done now or within `soon_s`: `refused(why)` is called then. Raises LinkLost.

        No wait may be under way: it would take a wake-up that is for others.
        """
        assert not self.wakeups.waiting

        def answered(why: str) -> None:
            if why:
                refused(why)
            else:
                self.has_left = True

        self.pipeline.exchange([Part(workers.retire(self.identity.name, self.serving.names, soon_s), answered)])

    def leave(self) -> None:
        """Have Redis forget the worker, which holds nothing any more. Raises LinkLost."""

        def left(_jobs: Any) -> None:
            self.has_left = True

        self.pipeline.exchange([Part(workers.deregister(self.identity.name, own=True), left, must=True)])

    # outages

    @property
    def longest_reconnect_s(self) -> float:
        """A lost connection is made anew within this time."""
        return min(self.times.grace_s / 2, self._dialer.patience.pause_s)

    @property
    def may_hold_more(self) -> bool:
        """True if a lease is unanswered: the server may have granted jobs that this worker does not know of."""
        return self._lost_grant or self.wakeups.lease_behind is not LeaseBehind.NONE or self.pipeline.is_leasing

    def lose(self, at_once: bool = False) -> float:
        """The connection is lost: keep what must be sent again. Return in how many seconds to connect anew.

        `at_once`: there is no reason to wait.
        """
        self._lost_grant, self._resumed = self.may_hold_more, False
        for part in self.pipeline.close():
            if part.again:
                self._unanswered.append(part)
            if part.lost is not None:
                part.lost()
        self.close()
        wait_s = 0.0 if at_once else random.uniform(0.1, 1.0) * self.longest_reconnect_s
        self._timers.set(_RECONNECT, clock.monotonic() + wait_s, self._connect)
        return wait_s

    def close(self) -> None:
        self.pipeline.close()
        self.wakeups.close()
        self.listeners.close()
        self.door_listeners.close()
        self._successor_watch.close()


def _checked_server(info: bytes | hiredis.ReplyError) -> str:
    """Return name and version of the server. Raises LinkLost if it is too old for the scripts."""
    if isinstance(info, hiredis.ReplyError):
        return "unknown"  # an ACL may forbid INFO, and the scripts were loaded
    try:
        return scripts.check_server(info)
    except StoreUnavailable as error:
        raise LinkLost(str(error)) from error
