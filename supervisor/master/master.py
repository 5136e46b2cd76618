"""The master: leases jobs, hands them to children, settles how they end. A process of its own, PID 1 in a container.

Owns the loop and the signals. Must not import handlers, nor block longer than its inbox
lets it.
"""

import contextlib
import gc
import importlib.util
import os
import signal
import socket
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final

from supervisor import clock
from supervisor.config import Config, ConfigError, Exit
from supervisor.engine.transport.link import LinkLost
from supervisor.linux import cgroups, foreign_files, kernel, removal
from supervisor.master.composition import Parts, place_for_workdir
from supervisor.master.model import environment
from supervisor.master.model.signals import By
from supervisor.master.model.states import Phase
from supervisor.master.report.title_and_notify import SHOW_S
from supervisor.ops import metrics
from supervisor.ops.events import Events

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


class Master:
    def __init__(self, config: Config, events: Events, listening: socket.socket | None) -> None:
        assert config.redis_url is not None
        self._config = config
        self._events = events
        self._began_at = clock.monotonic()
        self._served = False  # Redis has been there
        self._away = False  # and has been lost

        self._parts = parts = Parts(config, events, self)
        self._inbox, self._timers, self._session, self._pump = parts.inbox, parts.timers, parts.session, parts.pump
        self._slots, self._counts, self._dispatcher = parts.slots, parts.counts, parts.dispatcher
        self._zygotes, self._scaling, self._demand = parts.zygotes, parts.scaling, parts.demand
        self._leasing, self._settling, self._drain = parts.leasing, parts.settling, parts.drain
        self._status, self._title = parts.status, parts.title
        self._signals = kernel.SignalFd(kernel.HANDLED_SIGNALS)
        self._listening = listening

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
            removal.remove(str(self._parts.workdir))

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
            self._parts.controls.on_signal(received)

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
        listener = http.Listener(self._listening, self._parts.queries, page, self._config.http_name)
        self._inbox.watch(self._parts.queries, lambda: self._parts.answers.on_asked(clock.monotonic()))
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
        with place_for_workdir():
            self._parts.workdir.mkdir(mode=0o700, parents=True)
        for warning in self._config.warnings:
            self._events.warn(warning)
        if self._parts.held_back:
            self._events.warn(environment.why_held_back(self._parts.held_back))
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
            memory_budget_reason=config.memory_budget_reason, cells=self._parts.cells_where, redis=self._session.url,
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
        left = self._parts.job_cgroups.close() if self._parts.job_cgroups is not None else []
        if left:
            self._events.warn(f"cgroups of ours cannot be removed: {', '.join(map(str, left))}")

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
