"""The master: leases jobs, hands them to children, settles how they end. A process of its own, PID 1 in a container.

Owns the loop and the signals, and puts the parts together. Must not import handlers, nor block longer than its inbox
lets it.
"""

import contextlib
import gc
import importlib.util
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config, ConfigError, Exit, no_workdir
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.session import Session
from supervisor.linux import cgroups, foreign_files, kernel, removal
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
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import Phase
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
from supervisor.master.report.title_and_notify import SHOW_S, TitleAndNotify
from supervisor.master.requests.controls import Controls
from supervisor.master.requests.operator_requests import OperatorRequests
from supervisor.master.requests.stack_dump import StackDump
from supervisor.master.timers import Timers
from supervisor.ops import metrics
from supervisor.ops.events import Events
from supervisor.ops.http_queries import HttpQueries

#: A repeated TERM or INT within this is the same request: inits and shells double it.
_SAME_SIGNAL_S: Final = 1.0
_LAST_LINES_S: Final = 1.0
_LAST_CLOSES_S: Final = 1.0
#: What zygotes get to end at the least, however late it is.
_ZYGOTES_S: Final = 1.0
#: The key of the timer.
_FLUSH: Final = "events.flush"
_NO_METRICS: Final = "metrics need the package prometheus-client: pip install 'leasehold[metrics]'"
#: The listener only has to let go.
_LISTENER_S: Final = 0.5


def run(config: Config) -> int:
    """Be the master until drained. Answers the exit code. `config.redis_url` is a real one by now. Raises ConfigError
    where it cannot listen.
    """
    gc.freeze()
    gc.enable()
    listening = _listen(config)
    kernel.forbid_dumping(config.sandbox != "none")
    events = Events(2, config.log, config.log_level)
    try:
        return Master(config, events, listening).run()
    finally:
        events.close(_LAST_LINES_S)


def _listen(config: Config) -> socket.socket | None:
    if config.http is None:
        return None
    from supervisor.ops import http

    try:
        return http.listen(config.http)
    except http.Unavailable as error:
        raise ConfigError([f"{error}."]) from error


@contextlib.contextmanager
def _place_for_workdir() -> Iterator[None]:
    """Raises ConfigError where there is none."""
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{no_workdir(error)}."]) from error


class Master:
    def __init__(self, config: Config, events: Events, listening: socket.socket | None) -> None:
        assert config.redis_url is not None
        self._config = config
        self._events = events
        self._began_at = clock.monotonic()
        self._served = False  # Redis has been there
        self._away = False  # and has been lost

        self._inbox = Inbox()
        self._timers = timers = Timers()
        queues = Queues(config.queue, config.order)
        self._session = Session(
            config.redis_url, Namespace(config.namespace), queues, config.lease_ttl_s, self._inbox, timers
        )
        for_handlers, self._held_back = environment.of(config)
        events.set_worker(self._session.worker)
        with _place_for_workdir():
            self._workdir = (config.workdir or Path(tempfile.gettempdir())) / f"leasehold-{self._session.worker}"
        self._signals = kernel.SignalFd(kernel.HANDLED_SIGNALS)
        self._ledger = Ledger()
        self._counts = counts = Counts()
        pace = Pace()
        self._slots = Slots(config.processes, config.jobs_per_child, config.dispatch_ahead_s, pace)
        kills = cgroups.OomKills()
        self._job_cgroups, self._cells_where = JobCgroups.make()  # after the one, before a zygote is started
        budget, kernel_kills = Budget(config.memory_budget_bytes), KernelKills(kills, self._job_cgroups)
        self._dispatcher = Dispatcher(
            config, self._slots, self._ledger, pace, budget, kernel_kills.verdict, events, counts, timers
        )  # fmt: skip
        self._cut_off = CutOff(config, self._slots, self._ledger, self._dispatcher.interrupter, timers)
        disk = DiskUsage(config.workdir_limit_bytes, self._workdir, self._dispatcher.interrupter, events, timers)
        limits = JobLimits(
            config, self._slots, self._dispatcher, budget, kernel_kills, self._job_cgroups, disk, self._cut_off, timers
        )  # fmt: skip
        self._stack_dump = StackDump(timers)
        self._zygotes = ZygoteManager(
            config, self._slots, self._inbox, timers, events, self._workdir, budget, for_handlers,
            self._dispatcher.on_spoke, self._dispatcher.on_gone, self._on_line, limits.plan,
            self._dispatcher.on_reloaded,
        )  # fmt: skip
        if config.watch:
            self._dispatcher.placing.before_start = self._zygotes.rolling_reload.look_at_files
        self._scaling = Scaling(config, self._slots, self._dispatcher, budget, events, timers)
        self._backlog = Backlog(config.autoscale, self._scaling, self._slots)
        self._controls = Controls(self, self._zygotes, self._scaling, self._slots, self._stack_dump, events)
        self._demand = Demand(self._ledger, self._slots, self._zygotes, self._dispatcher.placing)
        failures = RecentFailures()
        self._leasing, self._settling, self._pump = self._redis_pump(failures)
        self._drain = Drain(
            config, self._slots, self._session, self._zygotes, self._dispatcher, self._demand, self._settling,
            self._pump, events, timers,
        )  # fmt: skip
        self._status = Status(
            self._drain, self._session, self._slots, self._zygotes, self._scaling, self._demand, failures,
            self._backlog, counts,
        )  # fmt: skip
        figures = MetricsSnapshot(
            self._status, self._session, self._backlog, self._slots, self._zygotes, self._scaling, events, counts
        )  # fmt: skip
        self._title = TitleAndNotify(self._status, self._session.serving, self._zygotes, config.namespace, timers)
        self._listening = listening
        self._queries = HttpQueries()
        self._answers = HttpAnswers(
            self._queries, self._status, self._backlog, figures.snapshot, self._events.warn, timers
        )  # fmt: skip

    def _redis_pump(self, failures: RecentFailures) -> tuple[Leasing, Settling, RedisPump]:
        session, ledger, demand, events, counts = self._session, self._ledger, self._demand, self._events, self._counts
        identity, serving, times, leaser = session.identity, session.serving, session.times, session.leaser
        pipeline, wakeups = session.pipeline, session.wakeups
        maintenance = Maintenance(events)
        renewing = Renewing(identity, ledger, times, pipeline, self._dispatcher, self._cut_off, counts)
        grants = Grants(ledger, self._dispatcher.placing, self._cut_off, renewing, self._backlog, events, counts)
        leasing = Leasing(demand, grants, maintenance, leaser, wakeups, pipeline)
        settling = Settling(identity, ledger, leasing, self._backlog, failures, events, counts)
        idle_exit = IdleExit(self._config.exit_when_idle_s, session, wakeups, demand, leasing)
        requests = OperatorRequests(self._controls, self._slots, self._stack_dump)
        relay = RequestRelay(identity, serving, requests, idle_exit)
        speakers = (
            renewing, settling, relay,
            Chores(identity, serving, times, demand, maintenance, self._backlog, counts),
            QueueLookup(identity, serving, times, demand, leasing, relay, events),
            TimesLookup(times, renewing), leasing,
        )  # fmt: skip
        waiting = Waiting(demand, leasing, renewing, serving, wakeups, session.listeners)
        resuming = Resuming(session, ledger, self._slots, self._dispatcher, renewing, events, counts)
        pump = RedisPump(session, speakers, leasing, grants, waiting, resuming, idle_exit, events, counts)
        return leasing, settling, pump

    # the loop

    def run(self) -> int:
        try:
            with self._listener():
                self._open()
                while self._drain.phase is not Phase.STOPPED:
                    try:
                        self._turn()
                    except LinkLost as lost:
                        self._on_link_lost(lost)
                return self._close()
        except ConfigError:
            raise
        except Exception as error:
            self._events.emit("master.crashed", message=f"{error!r}", traceback=traceback.format_exc())
            raise
        finally:
            # What is open at the exit the kernel closes, and then nothing interrupts a close that waits.
            foreign_files.finish(_LAST_CLOSES_S)
            removal.remove(str(self._workdir))

    def _turn(self) -> None:
        """Read all that has come, then see to what is due, then to what follows from both.

        Messages come first: one that makes a deadline void is read before the deadline is acted on.
        """
        # The pump is asked in each turn, because its deadline depends on the content of the ledger at this instant.
        self._inbox.wait(min(self._timers.due_at, self._pump.deadline_at()))
        if self._away and self._session.connected:
            self._say_return()
        now_at = clock.monotonic()
        if self._session.wakeups.woken:
            self._pump.step(now_at)  # a job waits for this lease, and for nothing else of this turn
        self._timers.run_due(now_at)
        self._follow_up(now_at)
        self._counts.turned(self._inbox.heard_at, clock.monotonic())

    def _follow_up(self, now_at: float) -> None:
        """What each turn ends with. Each step sees what those before it have done."""
        # Before jobs are placed: a child that is asked for now is under way by then.
        self._zygotes.fill(now_at)
        # After all that frees a child or makes a job ready, and before the lease that asks how many are free.
        self._dispatcher.placing.place()
        # After the placing: only then it is known who is idle, and surplus.
        self._scaling.keep_time(now_at)
        # After all that ends jobs, so that one exchange settles them all and leases for all that are idle.
        self._pump.step(now_at)
        # Redis has its work: now there is time for what nobody waits for.
        self._settling.log_completed()
        # After the exchange has begun: what is in it is on its way, and no step of the drain waits for it.
        self._drain_if_due(now_at)
        # After all that says something.
        self._events.flush()
        if self._events.pending:
            self._timers.set(_FLUSH, now_at + SHOW_S, lambda _now_at: None)  # the turn comes here
        # Last: title and status show what has become of it all.
        self._title.follow(now_at)

    def _drain_if_due(self, now_at: float) -> None:
        if self._drain.schedule is None:
            if self._pump.retired:
                self._events.emit("master.idle", idle_s=self._config.exit_when_idle_s)
                self._drain.begin(None)
            elif self._zygotes.failed:
                self._drain.begin(None, Exit.HANDLERS)
        self._drain.advance(now_at, self._served)

    def _on_signals(self) -> None:
        for received in self._signals.read():
            self._controls.on_signal(received)

    # beginning

    @contextlib.contextmanager
    def _listener(self) -> Iterator[None]:
        """Served from before the first zygote is started until after the last one has ended."""
        if self._listening is None:
            yield
            return
        from supervisor.ops import http

        has_metrics = importlib.util.find_spec("prometheus_client") is not None
        page = metrics.render if has_metrics else _NO_METRICS
        listener = http.Listener(self._listening, self._queries, page, self._config.http_name)
        self._inbox.watch(self._queries, lambda: self._answers.on_asked(clock.monotonic()))
        listener.start()
        self._events.emit("http.listening", address=str(listener.address), port=listener.address.port)
        if not has_metrics:
            self._events.warn(f"/metrics is not served: {_NO_METRICS}")
        try:
            yield
        finally:
            listener.close(_LISTENER_S)

    def _open(self) -> None:
        self._title.begin(self._config.boot_timeout_s)
        kernel.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        self._inbox.watch(self._signals, self._on_signals)
        with _place_for_workdir():
            self._workdir.mkdir(mode=0o700, parents=True)
        for warning in self._config.warnings:
            self._events.warn(warning)
        if self._held_back:
            self._events.warn(environment.why_held_back(self._held_back))
        if shell := environment.shell_above():
            self._events.warn(shell)
        if cgroups.kills_as_group():
            self._events.warn(
                "memory.oom.group is 1: if the kernel's OOM killer ends one process of this container it ends all; give"
                " jobs a --memory-limit, or the handlers memory=, so that ours comes first"
            )
        self._zygotes.start_zygote()
        self._session.open(self._on_connection, self._pump.on_replies, self._pump.on_wakeup)

    def _on_connection(self) -> None:
        try:
            self._pump.resume()
        except LinkLost as lost:
            if self._served:
                raise
            self._fail_to_start(lost)
            return
        if self._served:
            return
        self._served = True
        config = self._config
        self._events.emit(
            "master.started", worker=self._session.worker, pid=os.getpid(),
            queues=list(config.queue), order=config.order, processes=config.processes,
            processes_reason=config.processes_reason, memory_budget_mb=config.memory_budget_bytes >> 20 or None,
            memory_budget_reason=config.memory_budget_reason, cells=self._cells_where, redis=self._session.url,
            server=self._session.server,
        )  # fmt: skip

    def _fail_to_start(self, lost: LinkLost) -> None:
        message = f"Redis at {self._session.url} cannot be used: {lost}; check --redis-url and that the server runs"
        self._events.emit("redis.failed", message=message)
        self._drain.begin(None, Exit.UNREACHABLE)

    def _on_link_lost(self, lost: LinkLost) -> None:
        retry_in_s = self._session.lose()
        self._away = self._served
        self._events.emit_throttled("redis.lost", str(lost), retry_in_s=round(retry_in_s, 2))

    def _say_return(self) -> None:
        """Redis is back once it has let us resume: a replica, or the wrong node of a Cluster, only lets us connect."""
        self._away = False
        self._events.end_throttling("redis.lost")
        self._events.emit("redis.connected", url=self._session.url, server=self._session.server)

    def _close_cells(self) -> None:
        left = self._job_cgroups.close() if self._job_cgroups is not None else []
        if left:
            self._events.warn(f"cgroups of ours cannot be removed: {', '.join(map(str, left))}")

    # what people see

    def _on_line(self, child: ChildHandle, token: int, line: bytes) -> None:
        held = self._ledger.find(token)
        if held is None or held.child != child.number:  # a mark may be forged
            held = child.printing
        lease = held.lease if held is not None else None
        self._events.emit(
            "job.printed", jid=lease and lease.jid, klass=lease and lease.klass, child=child.number,
            line=line.decode(errors="replace"),
        )  # fmt: skip

    # what it is told to do

    def pause(self) -> bool:
        if self._demand.paused:
            return False
        self._demand.pause()
        return True

    def resume(self) -> bool:
        if not self._demand.paused:
            return False
        self._demand.resume()
        self._leasing.ask()
        return True

    def status(self) -> Mapping[str, Any]:
        return self._status.tell()

    @property
    def draining(self) -> bool:
        return self._drain.schedule is not None

    def drain(self, by: By) -> str:
        left_s = self._drain.begin(by).left_s(clock.monotonic())
        return f"drains: {_jobs(self._slots.busy)} running, it ends within {left_s:g} s"

    def drain_again(self, by: By) -> str:
        schedule = self._drain.schedule
        assert schedule is not None
        if self._inbox.oldest_at <= schedule.began_at + _SAME_SIGNAL_S:
            return "nothing: within a second it is the same request"
        return self.hurry(by)

    def hurry(self, by: By) -> str:
        left_s = self._drain.hurry(by).left_s(clock.monotonic())
        return f"hurries: what runs is killed, it ends within {left_s:g} s"

    # the end

    def _close(self) -> int:
        self._session.close()
        schedule, code = self._drain.schedule, self._drain.exit
        left_s = schedule.left_s(clock.monotonic()) if schedule is not None else 0.0
        self._zygotes.close(max(_ZYGOTES_S, left_s))
        self._close_cells()
        self._events.emit(
            "master.stopped", exit_code=int(code), **self._counts.ended,
            uptime_s=round(clock.monotonic() - self._began_at, 3), reload=self._why_reload_failed(),
        )  # fmt: skip
        failure = self._zygotes.boot_failure
        if failure is not None and code is not Exit.OK:
            self._events.emit("zygote.failed", message=failure.message, traceback=failure.traceback or None)
        return int(code)

    def _why_reload_failed(self) -> str | None:
        """Of the last one: whoever looks at why we have ended is to see that it was not the code that he meant."""
        last = self._zygotes.last_reload
        return last["message"] or None if last is not None else None


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
