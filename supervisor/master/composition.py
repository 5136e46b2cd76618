"""Puts the parts of the master together, each after those that it is given. Runs in the master.

Only this module knows which part is made of which. It decides nothing, and starts nothing.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from supervisor.config import ConfigError, RunConfig, no_workdir
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.credentials import load as load_credentials
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.worker.identity import Identity, WorkerName
from supervisor.engine.worker.session import Session
from supervisor.linux import cgroups
from supervisor.master.drain import Drain
from supervisor.master.inbox import Inbox
from supervisor.master.jobs.admission import Admission
from supervisor.master.jobs.capacity import Capacity
from supervisor.master.jobs.child_choice import ChildChoice
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.disk_usage import DiskUsage
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.jobs.intake import Intake
from supervisor.master.jobs.interrupter import Interrupter
from supervisor.master.jobs.job_cgroups import JobCgroups
from supervisor.master.jobs.job_limits import JobLimits
from supervisor.master.jobs.job_outcomes import JobOutcomes
from supervisor.master.jobs.job_reports import JobReports
from supervisor.master.jobs.job_shutdown import JobShutdown
from supervisor.master.jobs.kernel_kills import KernelKills
from supervisor.master.jobs.lease_answers import LeaseAnswers
from supervisor.master.jobs.memory_limits import MemoryLimits
from supervisor.master.jobs.next_step import NextStep
from supervisor.master.jobs.placing import Placing
from supervisor.master.jobs.ready_children import ReadyChildren
from supervisor.master.jobs.recycling import Recycling
from supervisor.master.jobs.retirement import Retirement
from supervisor.master.jobs.room import RoomMaker
from supervisor.master.jobs.shared_deaths import SharedDeaths
from supervisor.master.jobs.start_reports import StartReports
from supervisor.master.jobs.suspects import Suspects
from supervisor.master.jobs.unstarted import Unstarted
from supervisor.master.model import environment
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.job_log import JobLog
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.pace import Pace
from supervisor.master.model.recent_failures import RecentFailures
from supervisor.master.model.reload_log import Reloads
from supervisor.master.model.slots import Slots
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes.child_reader import ChildReader
from supervisor.master.processes.child_reaper import ChildReaper
from supervisor.master.processes.child_starts import ChildStarts
from supervisor.master.processes.crash_loop_guard import CrashLoopGuard
from supervisor.master.processes.edit_watch import EditWatch
from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.load_follower import LoadFollower
from supervisor.master.processes.machine_room import MachineRoom
from supervisor.master.processes.poison_detector import PoisonDetector
from supervisor.master.processes.process_manager import PROCESSES, ProcessManager
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.processes.zygote_reaper import ZygoteReaper
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.chores import Chores
from supervisor.master.redis.concerns_watch import ConcernsWatch
from supervisor.master.redis.connection import Connection
from supervisor.master.redis.declaring import Declaring
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
from supervisor.master.redis.results_reading import ResultsReading
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.settling import Settling
from supervisor.master.redis.side_loop import SideLoop
from supervisor.master.redis.sides import Side, Sides
from supervisor.master.redis.speaker import Speaker
from supervisor.master.redis.streaming import Streaming
from supervisor.master.redis.waiting import Waiting
from supervisor.master.report.http_answers import HttpAnswers
from supervisor.master.report.http_listener import HttpListener
from supervisor.master.report.metrics_snapshot import (
    ConcernMetrics,
    CountMetrics,
    EventMetrics,
    MasterMetrics,
    MetricsSnapshot,
    ProcessMetrics,
    QueueMetrics,
)
from supervisor.master.report.printed_lines import PrintedLines
from supervisor.master.report.state import State
from supervisor.master.report.status import JobStatus, Status
from supervisor.master.report.title_and_notify import TitleAndNotify
from supervisor.master.requests.controls import Controls
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.operator_signals import OperatorSignals
from supervisor.master.requests.request_relay import RequestRelay
from supervisor.master.requests.stack_dump import StackDump
from supervisor.master.timers import Timers
from supervisor.ops.events import Events
from supervisor.ops.http_queries import HttpQueries


class Parts:
    def __init__(self, config: RunConfig, events: Events) -> None:
        """Raises ConfigError if there is no place for the working directory."""
        self._config = config
        self._events = events
        self._make_model()
        self._make_starts()
        self._make_ends()
        self._make_processes()
        self._make_redis()
        self._make_controls()
        self._make_report()
        self._make_first_side()

    def _make_model(self) -> None:
        """The loop's tools, the session, and the master's knowledge of jobs and children."""
        config = self._config
        self.inbox, self.timers, self.sides = Inbox(), Timers(), Sides()
        self._credentials, self._worker_name = load_credentials(config.redis_credentials), WorkerName()
        self._loop = SideLoop(self.inbox, self.timers, 0)
        self.session = self._new_session(Namespace(config.namespace), self._loop, config.shards)
        self._events.set_worker(self.session.worker)
        with place_for_workdir():
            self.workdir = (config.workdir or Path(tempfile.gettempdir())) / f"leasehold-{self.session.worker}"
        self.ledgers, self.counts, self.failures = Ledgers(), MasterCounts(), RecentFailures()
        self.pace, self.budget, self.suspects = Pace(), Budget(config.memory_budget_bytes), Suspects()
        self.slots = Slots(config.processes, config.jobs_per_child)

    def _make_starts(self) -> None:
        """The way of a leased job to a child."""
        config, slots, ledgers, pace, budget = self._config, self.slots, self.ledgers, self.pace, self.budget
        events, timers, ahead_s = self._events, self.timers, config.dispatch_ahead_s
        self.job_log = JobLog(events, self.counts)
        self.admission = admission = Admission(slots, ledgers, budget, timers)
        self.files, self.reload_log = FileWatcher(), Reloads(events)
        self.edits = edits = EditWatch(config.watch, self.files, admission, self.reload_log, self._wake_processes)
        look_at_code = edits.look if config.watch else None
        self.capacity = Capacity(slots, admission, pace, ahead_s)
        self.interrupter = interrupter = Interrupter(config, slots, admission, events)
        choice = ChildChoice(slots, admission, pace, ahead_s)
        unstarted = Unstarted(slots, ledgers, budget, timers, interrupter, ahead_s, self.job_log)
        room = RoomMaker(slots, ledgers, budget, admission, choice, interrupter, events)
        self.start_reports = starts = StartReports(self.sides.report_starts)
        self.placing = placing = Placing(
            ledgers, admission, choice, room, unstarted, interrupter, starts, self.job_log, look_at_code
        )
        self.intake = intake = Intake(config, ledgers, pace, admission, self.suspects, look_at_code)
        self.retirement = Retirement(intake, unstarted, placing, interrupter, config.reload_timeout_s)

    def _make_ends(self) -> None:
        """The way back of an outcome, and all that stops a job."""
        config, slots, ledgers, pace, budget = self._config, self.slots, self.ledgers, self.pace, self.budget
        admission, placing, interrupter, log = self.admission, self.placing, self.interrupter, self.job_log
        events, timers, counts = self._events, self.timers, self.counts
        oom_kills = cgroups.OomKills()  # first, because the next line may move the master to another cgroup
        self.job_cgroups, self.cells_where = JobCgroups.make()
        kernel_kills = KernelKills(oom_kills, self.job_cgroups)
        ready = ReadyChildren(admission, interrupter, pace, events, counts)
        verdict, suspects = kernel_kills.verdict, self.suspects
        outcomes = JobOutcomes(ledgers, pace, budget, admission, verdict, config.max_deaths, suspects, log)
        shared_deaths = SharedDeaths(outcomes, suspects, events)
        next_step = NextStep(slots, admission, Recycling(config, slots), interrupter)
        self.dispatcher = Dispatcher(
            ready, JobReports(ledgers), outcomes, shared_deaths, next_step, interrupter, admission, placing
        )  # fmt: skip
        self.lease_answers = LeaseAnswers(slots, ledgers, placing, interrupter, events, counts)
        self.cut_off = CutOff(config, slots, ledgers, interrupter, timers)
        disk = DiskUsage(config.workdir_limit_bytes, self.workdir, interrupter, events, timers)
        memory = MemoryLimits(slots, budget, interrupter, kernel_kills, self.job_cgroups)
        self.limits = JobLimits(config, placing, interrupter, memory, disk, self.cut_off, timers)

    def _make_processes(self) -> None:
        """The starts and ends of zygotes and children."""
        config, slots, inbox, timers, events = self._config, self.slots, self.inbox, self.timers, self._events
        dispatcher, guard, reload_log = self.dispatcher, CrashLoopGuard(events), self.reload_log
        self.zygotes = zygotes = Zygotes(self.admission, self.budget, events, reload_log)
        for_handlers, self.held_back = environment.of(config)
        starts = ZygoteStarts(config, self.workdir, for_handlers, events, zygotes, self._watch_zygote)
        reader = ChildReader(inbox, timers, dispatcher, guard, self.counts, self._wake_processes)
        on_line = PrintedLines(self.ledgers, events).on_line
        new_child = partial(ChildHandle, on_line=on_line, on_planned=self.limits.plan)
        children = ChildStarts(config, slots, events, zygotes, guard, reader, new_child)
        child_reaper = ChildReaper(inbox, events, zygotes, children, dispatcher, self._wake_processes)
        rolling_reload = RollingReload(
            reload_log, self.files, self.edits, zygotes, starts, children, self.retirement
        )  # fmt: skip
        zygote_manager = ZygoteManager(events, zygotes, starts, guard, children, rolling_reload)
        poison_detector = PoisonDetector(self.admission)
        zygote_reaper = ZygoteReaper(inbox, events, zygotes, starts, child_reaper, rolling_reload, poison_detector)
        self.processes = ProcessManager(
            timers, zygotes, zygote_manager, zygote_reaper, children, child_reaper, rolling_reload
        )  # fmt: skip
        room = MachineRoom(config, self.budget, zygotes)
        load = LoadFollower(slots, self.pace, self.admission, timers)
        self.scaling = Scaling(config, slots, load, self.admission, self.retirement, room, events)

    def _watch_zygote(self, zygote: ZygoteHandle) -> None:
        self.inbox.watch(zygote.control, partial(self.processes.read, zygote))
        self._wake_processes()

    def _wake_processes(self) -> None:
        """Have the process manager look at all processes in this turn, or at once in the next one."""
        self.timers.set(PROCESSES, -math.inf, self.processes.run_due)

    def _make_redis(self) -> None:
        """Make the parts that the sides of all shards share."""
        config = self._config
        self.demand = demand = Demand(self.ledgers, self.admission, self.capacity, self.zygotes)
        self.backlog = Backlog(config.autoscale, self.scaling, self.slots, demand)

    def _make_controls(self) -> None:
        """The end of the master, and the requests of operators."""
        config, slots, processes, events = self._config, self.slots, self.processes, self._events
        departure = Departure(self.sides, self.ledgers)
        jobs = JobShutdown(slots, self.admission, self.placing, self.interrupter)
        self.drain = Drain(config, slots, processes, jobs, departure, events)
        self.stack_dump = StackDump(self.timers)
        self.own_acts = OwnActs(self.session.identity)
        self.controls = Controls(
            self.drain, processes, self.scaling, self.placing, self.sides.lease_soon, slots, self.own_acts, events
        )  # fmt: skip
        self.signals = OperatorSignals(self.inbox, self.controls, processes, self.stack_dump, slots, events)

    def _make_report(self) -> None:
        """Status, metrics, HTTP and title."""
        config, sides, slots, zygotes = self._config, self.sides, self.slots, self.zygotes
        state = State(self.drain, sides, zygotes, self.admission, slots)
        jobs = JobStatus(self.counts, self.failures, self.backlog, self._events)
        self.status = Status(state, sides, slots, zygotes, self.scaling, self.admission, jobs)
        snapshot = MetricsSnapshot((
            CountMetrics(self.counts), EventMetrics(self._events), MasterMetrics(state, sides),
            ProcessMetrics(slots, zygotes, self.scaling, self.counts), QueueMetrics(self.backlog),
            ConcernMetrics(sides),
        ))  # fmt: skip
        queries = HttpQueries()
        answers = HttpAnswers(
            queries, state, self.status.status, snapshot.take, self.backlog, self._events, self.timers
        )  # fmt: skip
        self.http = HttpListener(config, self.inbox, queries, answers, self._events)
        self.title = TitleAndNotify(state, self.session.serving, config.namespace, self.timers)

    def _make_first_side(self) -> None:
        """The side of the first shard, with what there is only once: requests, doors and the end of an idle master."""
        requests = OperatorRequests(self.controls, self.status.status, self.slots, self.stack_dump)
        self._make_side(self.session, self._loop, requests)

    def _divide(self, shards: int, is_start: bool) -> None:
        """The namespace has so many shards: make the sides of the further ones. Raises ValueError if that cannot be."""
        if self._config.exit_when_idle_s:
            why = (
                f"namespace {self._config.namespace} has {shards} shards, and no step tells whether all of them are"
                " idle: --exit-when-idle holds in a namespace of one shard only"
            )
            if is_start:
                raise ValueError(why)
            self._events.warn(why)
            self._idle_exit.is_on = False
        if not is_start:
            self._events.emit("shards.changed", shards=shards)
        self.ledgers.divide(shards)
        self.backlog.divide(shards)
        for shard in range(1, shards):
            loop = SideLoop(self.inbox, self.timers, shard)
            session = self._new_session(Namespace(self._config.namespace, shard, shards), loop)
            self._make_side(session, loop).connection.open(lambda: None)

    def _new_session(self, namespace: Namespace, loop: SideLoop, shards: int | None = None) -> Session:
        config = self._config
        assert config.redis_url is not None
        dialer = Dialer(config.redis_url, namespace.prefix, self._credentials)
        queues = self.sides.first.session.serving.queues if len(self.sides) else Queues(config.queue, config.order)
        return Session(
            dialer, namespace, queues, config.lease_ttl_s, config.acknowledge, loop, loop, config.redis_poll_s,
            Identity(self._worker_name), shards,
        )  # fmt: skip

    def _make_side(self, session: Session, loop: SideLoop, requests: OperatorRequests | None = None) -> Side:
        """The session with one shard, and the parts that speak in it, with their reasons.

        `requests`: of operators; None: they stand in another shard.
        """
        shard, ledger = session.shard, self.ledgers.by_shard[session.shard]
        identity, serving, times, pipeline = session.identity, session.serving, session.times, session.pipeline
        wakeups, answers, cut_off, demand = session.wakeups, self.lease_answers, self.cut_off, self.demand
        backlog, events, counts, is_first = self.backlog, self._events, self.counts, requests is not None
        concerns, maintenance = ConcernsWatch(), Maintenance(events)
        renewing = Renewing(identity, ledger, times, pipeline, answers, cut_off, counts)
        grants = Grants(
            self.intake, self.placing, cut_off, renewing, self.start_reports, backlog, events, counts, shard
        )  # fmt: skip
        leasing = Leasing(demand, ledger, grants, maintenance, session.leaser, wakeups, pipeline)
        settling = Settling(identity, self.ledgers, leasing, backlog, self.failures, events, counts, shard)
        idle_exit = IdleExit(self._config.exit_when_idle_s if is_first else 0.0, session, wakeups, demand, leasing)
        doors = DoorTaking(serving, times, demand, leasing, session.door_listeners) if is_first else None
        relay = RequestRelay(identity, serving, requests, idle_exit) if requests is not None else None
        lookup = QueueLookup(
            identity, serving, times, demand, leasing, relay.on_requests if relay is not None else None, events
        )  # fmt: skip
        chores = Chores(
            identity, serving, times, self.admission, maintenance, backlog, concerns, counts, events, shard
        )  # fmt: skip
        speakers: list[Speaker | None] = [  # in the order in which Redis carries out what they say
            renewing, Streaming(identity, ledger.chunks, answers, renewing), settling, relay,
            ResultsReading(ledger, answers), chores, lookup,
            Declaring(identity, demand, events, shard, lambda: session.shards),
            self.own_acts if is_first else None, doors, TimesLookup(times, renewing), leasing,
        ]  # fmt: skip
        speaking = [speaker for speaker in speakers if speaker is not None]
        waiting = Waiting(demand, leasing, renewing, serving, wakeups, session.listeners, doors, idle_exit)
        replicas = ReplicaWatch(session.acknowledging, events)
        pump = RedisPump(session, speaking, leasing, grants, waiting, replicas, counts, self.inbox.give_way)
        resuming = Resuming(ledger, self.slots, answers, renewing, events, counts)
        connection = Connection(session, pump, speaking, resuming, leasing, idle_exit, counts, events, self._divide)
        loop.on_lost = connection.on_lost
        if is_first:
            self._idle_exit = idle_exit
        side = Side(loop, session, leasing, settling, concerns, pump, connection)
        self.sides.add(side)
        return side


@contextlib.contextmanager
def place_for_workdir() -> Iterator[None]:
    """Raises ConfigError where there is none."""
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{no_workdir(error)}."]) from error
