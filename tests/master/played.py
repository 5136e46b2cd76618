"""A master that speaks to a real server, and whose children and zygotes are played."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from supervisor import clock
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.session import Session
from supervisor.engine.worker.wait import WaitsFor
from supervisor.master.drain import Drain
from supervisor.master.inbox import Inbox
from supervisor.master.jobs.job_shutdown import JobShutdown
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.model.states import Phase
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.chores import Chores
from supervisor.master.redis.concerns_watch import ConcernsWatch
from supervisor.master.redis.connection import Connection
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.departure import Departure
from supervisor.master.redis.door_taking import DoorTaking
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.lookups import QueueLookup, TimesLookup
from supervisor.master.redis.maintenance import Maintenance
from supervisor.master.redis.own_acts import OwnActs
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.replica_watch import ReplicaWatch
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.settling import Settling
from supervisor.master.redis.side_loop import SideLoop
from supervisor.master.redis.sides import Side, Sides
from supervisor.master.redis.waiting import Waiting
from supervisor.master.requests.controls import Controls
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.request_relay import RequestRelay
from supervisor.master.requests.stack_dump import StackDump
from supervisor.messages import HandlerSettings
from tests.lengths import SOON_S
from tests.parts import Desk


class PlayedMaster:
    """The parts of a master. `turn_until` does what its loop does."""

    def __init__(self, desk: Desk, url: str, namespace: str, idle_s: float, acknowledge: int = 0) -> None:
        self.desk = desk
        self.zygotes: Any = SimpleNamespace(
            ready=True, reloading=False, handlers={"k": HandlerSettings()}, once=(), recurrences={}, release="",
            schemas={},
        )  # fmt: skip
        self._inbox = inbox = Inbox()
        ledger, slots, events, counts = desk.ledger, desk.slots, desk.log, desk.counts
        loop = SideLoop(inbox, desk.timers, 0)
        answers, cut_off = desk.answers, desk.cut_off
        self.session = session = Session(
            Dialer(url, "k"), Namespace(namespace), Queues(["q"], "strict"), None, acknowledge, loop, loop
        )  # fmt: skip
        identity, serving, times, pipeline = session.identity, session.serving, session.times, session.pipeline
        wakeups = session.wakeups
        self.demand = demand = Demand(desk.ledgers, desk.admission, desk.capacity, self.zygotes)
        backlog = Backlog("", SimpleNamespace(most=2), slots, SimpleNamespace(concurrency=1, handlers={}))
        concerns, maintenance = ConcernsWatch(), Maintenance(events)
        self.renewing = renewing = Renewing(identity, ledger, times, pipeline, answers, cut_off, counts)
        desk.report = session.report_starts
        grants = Grants(desk.intake, desk.placing, cut_off, renewing, desk.starts, backlog, events, counts)
        self.leasing = leasing = Leasing(demand, ledger, grants, maintenance, session.leaser, wakeups, pipeline)
        self.settling = Settling(identity, desk.ledgers, leasing, backlog, RecentFailures(), events, counts)
        self.idle_exit = IdleExit(idle_s, session, wakeups, demand, leasing)
        self.processes: Any = SimpleNamespace(fork_no_more=lambda: None, abandon=self._abandon)
        jobs = JobShutdown(slots, desk.admission, desk.placing, desk.interrupter)
        self.sides = sides = Sides()
        departure = Departure(sides, desk.ledgers)
        self.drain = Drain(desk.config, slots, self.processes, jobs, departure, events)
        scaling: Any = None
        own_acts = OwnActs(identity)
        self.controls = controls = Controls(
            self.drain, self.processes, scaling, desk.placing, leasing.lease_soon, slots, own_acts, events
        )  # fmt: skip
        requests = OperatorRequests(controls, lambda: {"state": "serving"}, slots, StackDump(desk.timers))
        relay = RequestRelay(identity, serving, requests, self.idle_exit)
        speakers = (
            renewing, self.settling, relay,
            Chores(identity, serving, times, desk.admission, maintenance, backlog, concerns, counts, events),
            QueueLookup(identity, serving, times, demand, leasing, relay.on_requests, events),
            own_acts, TimesLookup(times, renewing), leasing,
        )  # fmt: skip
        replicas = ReplicaWatch(session.acknowledging, events)
        doors = DoorTaking(serving, times, demand, leasing, session.door_listeners)
        waiting = Waiting(demand, leasing, renewing, serving, wakeups, session.listeners, doors, self.idle_exit)
        self.pump = RedisPump(session, speakers, leasing, grants, waiting, replicas, counts, inbox.give_way)
        resuming = Resuming(ledger, slots, answers, renewing, events, counts)
        self.connection = Connection(
            session, self.pump, speakers, resuming, leasing, self.idle_exit, counts, events, self._divide
        )  # fmt: skip
        loop.on_lost = self.connection.on_lost
        sides.add(Side(loop, session, leasing, self.settling, concerns, self.pump, self.connection))
        for child in slots:
            inbox.watch(child.talk.fd, partial(desk.dispatcher.on_spoke, child))

    def start(self) -> "PlayedMaster":
        self.connection.open(lambda: None)
        self.turn_until(lambda: self.is_waiting or self.session.has_left)
        return self

    @property
    def is_waiting(self) -> bool:
        """True if Redis knows all outcomes, and the master waits for a wake-up with a lease behind the wait."""
        return self.session.idle and self.session.wakeups.waiting and self.session.wakeups.waits_for is WaitsFor.QUEUES

    def turn_until(self, holds: Callable[[], Any]) -> None:
        deadline_at = clock.monotonic() + SOON_S
        while not holds():
            assert clock.monotonic() < deadline_at, "it has not happened in time"
            self._inbox.wait(min(self.pump.deadline_at(), clock.monotonic() + 0.05))
            self.desk.timers.run_due(clock.monotonic())
            self.sides.step(clock.monotonic())
            self.sides.log_completed()
            if self.drain.has_begun and self.drain.phase is not Phase.STOPPED:
                self.drain.advance(clock.monotonic())

    def lose_connection(self) -> None:
        """Lose the connection, as LinkLost in the loop does, and make it anew."""
        self.connection.on_lost(LinkLost("cut"))
        self.desk.timers.run_due(clock.monotonic() + 10.0)  # when the pause before the next attempt is over
        self.turn_until(lambda: self.session.idle)

    def _divide(self, shards: int, is_start: bool) -> None:
        raise AssertionError(f"a namespace of these tests has {shards} shards")

    def _abandon(self, why: str) -> None:
        for child in self.desk.slots:
            self.desk.dispatcher.on_gone(child, None, why)

    def close(self) -> None:
        self.session.close()
        self._inbox.close()
