"""Puts the parts of the master together, each after those that it is given. Runs in the master.

Only this module knows which part is made of which. It decides nothing, and starts nothing.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from supervisor.config import Config, ConfigError, no_workdir
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.worker.session import Session
from supervisor.linux import cgroups
from supervisor.master.drain import Drain
from supervisor.master.inbox import Inbox
from supervisor.master.jobs.cut_off import CutOff
from supervisor.master.jobs.disk_usage import DiskUsage
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.jobs.job_cgroups import JobCgroups
from supervisor.master.jobs.job_limits import JobLimits, KernelKills
from supervisor.master.model import environment
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import Counts
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
from supervisor.master.redis.connection import Connection
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.departure import Departure
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.lookups import QueueLookup, TimesLookup
from supervisor.master.redis.maintenance import Maintenance
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.settling import Settling
from supervisor.master.redis.waiting import Waiting
from supervisor.master.report.http_answers import HttpAnswers
from supervisor.master.report.http_listener import HttpListener
from supervisor.master.report.metrics_snapshot import (
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
    def __init__(self, config: Config, events: Events) -> None:
        """Raises ConfigError if there is no place for the working directory."""
        self._config = config
        self._events = events
        self._make_model()
        self._make_jobs()
        self._make_processes()
        self._make_redis()
        self._make_controls()
        self._make_report()
        self._make_connection()

    def _make_model(self) -> None:
        """What the master knows, and whom its loop listens to."""
        config = self._config
        assert config.redis_url is not None
        self.inbox, self.timers = Inbox(), Timers()
        queues, namespace = Queues(config.queue, config.order), Namespace(config.namespace)
        self.session = Session(config.redis_url, namespace, queues, config.lease_ttl_s, self.inbox, self.timers)
        self._events.set_worker(self.session.worker)
        with place_for_workdir():
            self.workdir = (config.workdir or Path(tempfile.gettempdir())) / f"leasehold-{self.session.worker}"
        self.ledger, self.counts, self.failures = Ledger(), Counts(), RecentFailures()
        self.pace, self.budget = Pace(), Budget(config.memory_budget_bytes)
        self.slots = Slots(config.processes, config.jobs_per_child, config.dispatch_ahead_s, self.pace)

    def _make_jobs(self) -> None:
        """What happens to a job that is leased."""
        config, slots, events, timers = self._config, self.slots, self._events, self.timers
        oom_kills = cgroups.OomKills()  # first, because the next line may move the master to another cgroup
        self.job_cgroups, self.cells_where = JobCgroups.make()
        kernel_kills = KernelKills(oom_kills, self.job_cgroups)
        self.dispatcher = Dispatcher(
            config, slots, self.ledger, self.pace, self.budget, kernel_kills.verdict, events, self.counts, timers
        )  # fmt: skip
        self.cut_off = CutOff(config, slots, self.ledger, self.dispatcher.interrupter, timers)
        disk = DiskUsage(config.workdir_limit_bytes, self.workdir, self.dispatcher.interrupter, events, timers)
        self.limits = JobLimits(
            config, slots, self.dispatcher, self.budget, kernel_kills, self.job_cgroups, disk, self.cut_off, timers
        )  # fmt: skip

    def _make_processes(self) -> None:
        """Which zygotes and children live."""
        config, slots, inbox, timers, events = self._config, self.slots, self.inbox, self.timers, self._events
        dispatcher, guard, reload_log = self.dispatcher, CrashLoopGuard(events), Reloads(events)
        self.zygotes = zygotes = Zygotes(slots, self.budget, events, reload_log)
        for_handlers, self.held_back = environment.of(config)
        starts = ZygoteStarts(config, self.workdir, for_handlers, events, zygotes, self._watch_zygote)
        reader = ChildReader(inbox, timers, dispatcher, guard, self.counts, self._wake_processes)
        on_line = PrintedLines(self.ledger, events).on_line
        new_child = partial(ChildHandle, on_line=on_line, on_planned=self.limits.plan)
        children = ChildStarts(config, slots, events, zygotes, guard, reader, new_child)
        child_reaper = ChildReaper(inbox, events, zygotes, children, dispatcher, self._wake_processes)
        rolling_reload = RollingReload(config, slots, reload_log, zygotes, starts, children, dispatcher)
        zygote_manager = ZygoteManager(events, zygotes, starts, guard, children, rolling_reload)
        poison_detector = PoisonDetector(slots)
        zygote_reaper = ZygoteReaper(inbox, events, zygotes, starts, child_reaper, rolling_reload, poison_detector)
        self.processes = ProcessManager(
            timers, zygotes, zygote_manager, zygote_reaper, children, child_reaper, rolling_reload
        )  # fmt: skip
        if config.watch:
            dispatcher.placing.before_start = rolling_reload.look_at_files
        room = MachineRoom(config, self.budget, zygotes)
        self.scaling = Scaling(config, slots, dispatcher, zygotes, room, events, timers)

    def _watch_zygote(self, zygote: ZygoteHandle) -> None:
        self.inbox.watch(zygote.control, partial(self.processes.read, zygote))
        self._wake_processes()

    def _wake_processes(self) -> None:
        """Have the process manager look at all processes in this turn, or at once in the next one."""
        self.timers.set(PROCESSES, -math.inf, self.processes.run_due)

    def _make_redis(self) -> None:
        """What the master says to Redis, and when."""
        session, ledger, dispatcher, cut_off = self.session, self.ledger, self.dispatcher, self.cut_off
        identity, pipeline, wakeups = session.identity, session.pipeline, session.wakeups
        events, counts = self._events, self.counts
        self.demand = demand = Demand(ledger, self.slots, self.zygotes, dispatcher.placing)
        self.backlog = backlog = Backlog(self._config.autoscale, self.scaling, self.slots)
        self.maintenance = Maintenance(events)
        self.renewing = renewing = Renewing(identity, ledger, session.times, pipeline, dispatcher, cut_off, counts)
        self.grants = Grants(ledger, dispatcher.placing, cut_off, renewing, backlog, events, counts)
        self.leasing = Leasing(demand, self.grants, self.maintenance, session.leaser, wakeups, pipeline)
        self.settling = Settling(identity, ledger, self.leasing, backlog, self.failures, events, counts)
        self.idle_exit = IdleExit(self._config.exit_when_idle_s, session, wakeups, demand, self.leasing)

    def _make_controls(self) -> None:
        """What the master can be told to do."""
        config, slots, processes, events = self._config, self.slots, self.processes, self._events
        departure = Departure(self.session, self.demand, self.settling)
        self.drain = Drain(config, slots, processes, self.dispatcher, departure, events, self.timers)
        self.stack_dump = StackDump(self.timers)
        self.controls = Controls(self.drain, processes, self.scaling, self.demand, self.leasing, slots, events)
        self.signals = OperatorSignals(self.inbox, self.controls, processes, self.stack_dump, slots, events)

    def _make_report(self) -> None:
        """What the master shows."""
        config, session, slots, zygotes = self._config, self.session, self.slots, self.zygotes
        state = State(self.drain, session, zygotes, self.demand, slots)
        jobs = JobStatus(self.counts, self.failures, self.backlog)
        self.status = Status(state, session, slots, zygotes, self.scaling, jobs)
        snapshot = MetricsSnapshot((
            CountMetrics(self.counts), EventMetrics(self._events), MasterMetrics(state, session),
            ProcessMetrics(slots, zygotes, self.scaling, self.counts), QueueMetrics(self.backlog),
        ))  # fmt: skip
        queries = HttpQueries()
        answers = HttpAnswers(
            queries, state, self.status.status, snapshot.take, self.backlog, self._events, self.timers
        )  # fmt: skip
        self.http = HttpListener(config, self.inbox, queries, answers, self._events)
        self.title = TitleAndNotify(state, session.serving, config.namespace, self.timers)

    def _make_connection(self) -> None:
        """The exchanges with Redis, of all that speak in them."""
        session, demand, leasing, renewing = self.session, self.demand, self.leasing, self.renewing
        identity, serving, times = session.identity, session.serving, session.times
        events, counts = self._events, self.counts
        requests = OperatorRequests(self.controls, self.status.status, self.slots, self.stack_dump)
        relay = RequestRelay(identity, serving, requests, self.idle_exit)
        speakers = (  # in the order in which Redis carries out what they say
            renewing, self.settling, relay,
            Chores(identity, serving, times, demand, self.maintenance, self.backlog, counts),
            QueueLookup(identity, serving, times, demand, leasing, relay.on_requests, events),
            TimesLookup(times, renewing), leasing,
        )  # fmt: skip
        waiting = Waiting(demand, leasing, renewing, serving, session.wakeups, session.listeners, self.idle_exit)
        self.pump = RedisPump(session, speakers, leasing, self.grants, waiting, counts)
        resuming = Resuming(self.ledger, self.slots, self.dispatcher, renewing, events, counts)
        self.connection = Connection(session, self.pump, speakers, resuming, leasing, self.idle_exit, events)


@contextlib.contextmanager
def place_for_workdir() -> Iterator[None]:
    """Raises ConfigError where there is none."""
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{no_workdir(error)}."]) from error
