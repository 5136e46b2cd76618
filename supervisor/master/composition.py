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
from supervisor.master.model.ledger import Ledger
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
        self._make_connection()

    def _make_model(self) -> None:
        """The loop's tools, the session, and the master's knowledge of jobs and children."""
        config = self._config
        assert config.redis_url is not None
        self.inbox, self.timers = Inbox(), Timers()
        queues, namespace = Queues(config.queue, config.order), Namespace(config.namespace)
        dialer = Dialer(config.redis_url, namespace.prefix, load_credentials(config.redis_credentials))
        self.session = Session(
            dialer, namespace, queues, config.lease_ttl_s, config.acknowledge, self.inbox, self.timers,
            config.redis_poll_s,
        )  # fmt: skip
        self._events.set_worker(self.session.worker)
        with place_for_workdir():
            self.workdir = (config.workdir or Path(tempfile.gettempdir())) / f"leasehold-{self.session.worker}"
        self.ledger, self.counts, self.failures = Ledger(), MasterCounts(), RecentFailures()
        self.pace, self.budget, self.suspects = Pace(), Budget(config.memory_budget_bytes), Suspects()
        self.slots = Slots(config.processes, config.jobs_per_child)

    def _make_starts(self) -> None:
        """The way of a leased job to a child."""
        config, slots, ledger, pace, budget = self._config, self.slots, self.ledger, self.pace, self.budget
        events, timers, ahead_s = self._events, self.timers, config.dispatch_ahead_s
        self.job_log = JobLog(events, self.counts)
        self.admission = admission = Admission(slots, ledger, budget, timers)
        self.files, self.reload_log = FileWatcher(), Reloads(events)
        self.edits = edits = EditWatch(config.watch, self.files, admission, self.reload_log, self._wake_processes)
        look_at_code = edits.look if config.watch else None
        self.capacity = Capacity(slots, admission, pace, ahead_s)
        self.interrupter = interrupter = Interrupter(config, slots, admission, events)
        choice = ChildChoice(slots, admission, pace, ahead_s)
        unstarted = Unstarted(slots, ledger, budget, timers, interrupter, ahead_s, self.job_log)
        room = RoomMaker(slots, ledger, budget, admission, choice, interrupter, events)
        self.start_reports = starts = StartReports(self.session.report_starts)
        self.placing = placing = Placing(
            ledger, admission, choice, room, unstarted, interrupter, starts, self.job_log, look_at_code
        )
        self.intake = intake = Intake(config, ledger, pace, admission, self.suspects, look_at_code)
        self.retirement = Retirement(intake, unstarted, placing, interrupter, config.reload_timeout_s)

    def _make_ends(self) -> None:
        """The way back of an outcome, and all that stops a job."""
        config, slots, ledger, pace, budget = self._config, self.slots, self.ledger, self.pace, self.budget
        admission, placing, interrupter, log = self.admission, self.placing, self.interrupter, self.job_log
        events, timers, counts = self._events, self.timers, self.counts
        oom_kills = cgroups.OomKills()  # first, because the next line may move the master to another cgroup
        self.job_cgroups, self.cells_where = JobCgroups.make()
        kernel_kills = KernelKills(oom_kills, self.job_cgroups)
        ready = ReadyChildren(admission, interrupter, pace, events, counts)
        verdict, suspects = kernel_kills.verdict, self.suspects
        outcomes = JobOutcomes(ledger, pace, budget, admission, verdict, config.max_deaths, suspects, log)
        shared_deaths = SharedDeaths(outcomes, suspects, events)
        next_step = NextStep(slots, admission, Recycling(config, slots), interrupter)
        self.dispatcher = Dispatcher(
            ready, JobReports(ledger), outcomes, shared_deaths, next_step, interrupter, admission, placing
        )  # fmt: skip
        self.lease_answers = LeaseAnswers(slots, ledger, placing, interrupter, events, counts)
        self.cut_off = CutOff(config, slots, ledger, interrupter, timers)
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
        on_line = PrintedLines(self.ledger, events).on_line
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
        """The parts that speak to Redis, and their reasons."""
        session, ledger, answers, cut_off = self.session, self.ledger, self.lease_answers, self.cut_off
        identity, pipeline, wakeups = session.identity, session.pipeline, session.wakeups
        events, counts = self._events, self.counts
        self.demand = demand = Demand(ledger, self.admission, self.capacity, self.zygotes)
        self.backlog = backlog = Backlog(self._config.autoscale, self.scaling, self.slots, demand)
        self.concerns, self.maintenance = ConcernsWatch(), Maintenance(events)
        self.renewing = renewing = Renewing(identity, ledger, session.times, pipeline, answers, cut_off, counts)
        self.grants = Grants(
            self.intake, self.placing, cut_off, renewing, self.start_reports, backlog, events, counts
        )  # fmt: skip
        self.leasing = Leasing(demand, self.grants, self.maintenance, session.leaser, wakeups, pipeline)
        self.settling = Settling(identity, ledger, self.leasing, backlog, self.failures, events, counts)
        self.idle_exit = IdleExit(self._config.exit_when_idle_s, session, wakeups, demand, self.leasing)

    def _make_controls(self) -> None:
        """The end of the master, and the requests of operators."""
        config, slots, processes, events = self._config, self.slots, self.processes, self._events
        departure = Departure(self.session, self.demand, self.settling)
        jobs = JobShutdown(slots, self.admission, self.placing, self.interrupter)
        self.drain = Drain(config, slots, processes, jobs, departure, events)
        self.stack_dump = StackDump(self.timers)
        self.own_acts = OwnActs(self.session.identity)
        self.controls = Controls(
            self.drain, processes, self.scaling, self.placing, self.leasing, slots, self.own_acts, events
        )  # fmt: skip
        self.signals = OperatorSignals(self.inbox, self.controls, processes, self.stack_dump, slots, events)

    def _make_report(self) -> None:
        """Status, metrics, HTTP and title."""
        config, session, slots, zygotes = self._config, self.session, self.slots, self.zygotes
        state = State(self.drain, session, zygotes, self.admission, slots)
        jobs = JobStatus(self.counts, self.failures, self.backlog, self._events)
        self.status = Status(state, session, slots, zygotes, self.scaling, self.admission, jobs)
        snapshot = MetricsSnapshot((
            CountMetrics(self.counts), EventMetrics(self._events), MasterMetrics(state, session),
            ProcessMetrics(slots, zygotes, self.scaling, self.counts), QueueMetrics(self.backlog),
            ConcernMetrics(self.concerns),
        ))  # fmt: skip
        queries = HttpQueries()
        answers = HttpAnswers(
            queries, state, self.status.status, snapshot.take, self.backlog, self._events, self.timers
        )  # fmt: skip
        self.http = HttpListener(config, self.inbox, queries, answers, self._events)
        self.title = TitleAndNotify(state, session.serving, config.namespace, self.timers)

    def _make_connection(self) -> None:
        """The exchanges with Redis, and the session."""
        session, demand, leasing, renewing = self.session, self.demand, self.leasing, self.renewing
        identity, serving, times = session.identity, session.serving, session.times
        events, counts = self._events, self.counts
        requests = OperatorRequests(self.controls, self.status.status, self.slots, self.stack_dump)
        relay = RequestRelay(identity, serving, requests, self.idle_exit)
        doors = DoorTaking(serving, times, demand, leasing, session.door_listeners)
        speakers = (  # in the order in which Redis carries out what they say
            renewing, Streaming(identity, self.ledger.chunks, self.lease_answers, renewing), self.settling, relay,
            ResultsReading(self.ledger, self.lease_answers),
            Chores(
                identity, serving, times, self.admission, self.maintenance, self.backlog, self.concerns, counts, events
            ),
            QueueLookup(identity, serving, times, demand, leasing, relay.on_requests, events),
            Declaring(identity, demand, events), self.own_acts, doors, TimesLookup(times, renewing), leasing,
        )  # fmt: skip
        waiting = Waiting(demand, leasing, renewing, serving, session.wakeups, session.listeners, doors, self.idle_exit)
        replicas = ReplicaWatch(session.acknowledging, events)
        self.pump = RedisPump(session, speakers, leasing, self.grants, waiting, replicas, counts, self.inbox.give_way)
        resuming = Resuming(self.ledger, self.slots, self.lease_answers, renewing, events, counts)
        self.connection = Connection(session, self.pump, speakers, resuming, leasing, self.idle_exit, counts, events)


@contextlib.contextmanager
def place_for_workdir() -> Iterator[None]:
    """Raises ConfigError where there is none."""
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{no_workdir(error)}."]) from error
