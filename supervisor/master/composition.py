"""Puts the parts of the master together, each after those that it is given. Runs in the master.

Only this module knows which part is made of which. It decides nothing, and starts nothing.
"""

import contextlib
import tempfile
from collections.abc import Iterator
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
from supervisor.master.model.slots import Slots
from supervisor.master.processes.scaling import Scaling
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.redis.backlog import Backlog
from supervisor.master.redis.chores import Chores
from supervisor.master.redis.demand import Demand
from supervisor.master.redis.grants import Grants
from supervisor.master.redis.idle_exit import IdleExit
from supervisor.master.redis.leasing import Leasing
from supervisor.master.redis.lookups import QueueLookup, TimesLookup
from supervisor.master.redis.maintenance import Maintenance
from supervisor.master.redis.redis_pump import RedisPump
from supervisor.master.redis.renewing import Renewing
from supervisor.master.redis.request_relay import RequestRelay
from supervisor.master.redis.resuming import Resuming
from supervisor.master.redis.settling import Settling
from supervisor.master.redis.waiting import Waiting
from supervisor.master.report.http_answers import HttpAnswers
from supervisor.master.report.metrics_snapshot import MetricsSnapshot
from supervisor.master.report.status import Status
from supervisor.master.report.title_and_notify import TitleAndNotify
from supervisor.master.requests.controls import Controls, Steered
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.stack_dump import StackDump
from supervisor.master.timers import Timers
from supervisor.ops.events import Events
from supervisor.ops.http_queries import HttpQueries


class Parts:
    def __init__(self, config: Config, events: Events, master: Steered) -> None:
        """Raises ConfigError if there is no place for the working directory."""
        assert config.redis_url is not None
        self.inbox = Inbox()
        self.timers = timers = Timers()
        queues = Queues(config.queue, config.order)
        self.session = Session(
            config.redis_url, Namespace(config.namespace), queues, config.lease_ttl_s, self.inbox, timers
        )
        for_handlers, self.held_back = environment.of(config)
        events.set_worker(self.session.worker)
        with place_for_workdir():
            self.workdir = (config.workdir or Path(tempfile.gettempdir())) / f"leasehold-{self.session.worker}"
        self.ledger = Ledger()
        self.counts = counts = Counts()
        pace = Pace()
        self.slots = Slots(config.processes, config.jobs_per_child, config.dispatch_ahead_s, pace)
        kills = cgroups.OomKills()
        self.job_cgroups, self.cells_where = JobCgroups.make()  # after the one, before a zygote is started
        budget, kernel_kills = Budget(config.memory_budget_bytes), KernelKills(kills, self.job_cgroups)
        self.dispatcher = Dispatcher(
            config, self.slots, self.ledger, pace, budget, kernel_kills.verdict, events, counts, timers
        )  # fmt: skip
        self.cut_off = CutOff(config, self.slots, self.ledger, self.dispatcher.interrupter, timers)
        disk = DiskUsage(config.workdir_limit_bytes, self.workdir, self.dispatcher.interrupter, events, timers)
        limits = JobLimits(
            config, self.slots, self.dispatcher, budget, kernel_kills, self.job_cgroups, disk, self.cut_off, timers
        )  # fmt: skip
        self.stack_dump = StackDump(timers)
        self.zygotes = ZygoteManager(
            config, self.slots, self.inbox, timers, events, self.workdir, budget, for_handlers,
            self.dispatcher.on_spoke, self.dispatcher.on_gone, self._on_line, limits.plan,
            self.dispatcher.on_reloaded,
        )  # fmt: skip
        if config.watch:
            self.dispatcher.placing.before_start = self.zygotes.rolling_reload.look_at_files
        self.scaling = Scaling(config, self.slots, self.dispatcher, budget, events, timers)
        self.backlog = Backlog(config.autoscale, self.scaling, self.slots)
        self.controls = Controls(master, self.zygotes, self.scaling, self.slots, self.stack_dump, events)
        self.demand = Demand(self.ledger, self.slots, self.zygotes, self.dispatcher.placing)
        failures = RecentFailures()
        self._config, self._events = config, events
        self.leasing, self.settling, self.pump = self._redis_pump(failures)
        self.drain = Drain(
            config, self.slots, self.session, self.zygotes, self.dispatcher, self.demand, self.settling,
            self.pump, events, timers,
        )  # fmt: skip
        self.status = Status(
            self.drain, self.session, self.slots, self.zygotes, self.scaling, self.demand, failures,
            self.backlog, counts,
        )  # fmt: skip
        figures = MetricsSnapshot(
            self.status, self.session, self.backlog, self.slots, self.zygotes, self.scaling, events, counts
        )  # fmt: skip
        self.title = TitleAndNotify(self.status, self.session.serving, self.zygotes, config.namespace, timers)
        self.queries = HttpQueries()
        self.answers = HttpAnswers(self.queries, self.status, self.backlog, figures.snapshot, events.warn, timers)

    def _redis_pump(self, failures: RecentFailures) -> tuple[Leasing, Settling, RedisPump]:
        session, ledger, demand, events, counts = self.session, self.ledger, self.demand, self._events, self.counts
        identity, serving, times, leaser = session.identity, session.serving, session.times, session.leaser
        pipeline, wakeups = session.pipeline, session.wakeups
        maintenance = Maintenance(events)
        renewing = Renewing(identity, ledger, times, pipeline, self.dispatcher, self.cut_off, counts)
        grants = Grants(ledger, self.dispatcher.placing, self.cut_off, renewing, self.backlog, events, counts)
        leasing = Leasing(demand, grants, maintenance, leaser, wakeups, pipeline)
        settling = Settling(identity, ledger, leasing, self.backlog, failures, events, counts)
        idle_exit = IdleExit(self._config.exit_when_idle_s, session, wakeups, demand, leasing)
        requests = OperatorRequests(self.controls, self.slots, self.stack_dump)
        relay = RequestRelay(identity, serving, requests, idle_exit)
        speakers = (
            renewing, settling, relay,
            Chores(identity, serving, times, demand, maintenance, self.backlog, counts),
            QueueLookup(identity, serving, times, demand, leasing, relay, events),
            TimesLookup(times, renewing), leasing,
        )  # fmt: skip
        waiting = Waiting(demand, leasing, renewing, serving, wakeups, session.listeners)
        resuming = Resuming(session, ledger, self.slots, self.dispatcher, renewing, events, counts)
        pump = RedisPump(session, speakers, leasing, grants, waiting, resuming, idle_exit, events, counts)
        return leasing, settling, pump

    def _on_line(self, child: ChildHandle, token: int, line: bytes) -> None:
        held = self.ledger.find(token)
        if held is None or held.child != child.number:  # a mark may be forged
            held = child.printing
        lease = held.lease if held is not None else None
        self._events.emit(
            "job.printed", jid=lease and lease.jid, klass=lease and lease.klass, child=child.number,
            line=line.decode(errors="replace"),
        )  # fmt: skip


@contextlib.contextmanager
def place_for_workdir() -> Iterator[None]:
    """Raises ConfigError where there is none."""
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{no_workdir(error)}."]) from error
