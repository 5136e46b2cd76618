"""Parts of the master's tests: leases without an engine, processes that end with the test, and half a master."""

import contextlib
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor import messages
from supervisor.config import RunConfig
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.linux import foreign_files, kernel
from supervisor.linux.cgroups import OomKills
from supervisor.master.jobs.admission import FIND_ROOM, Admission
from supervisor.master.jobs.capacity import Capacity
from supervisor.master.jobs.child_choice import ChildChoice
from supervisor.master.jobs.cut_off import CUT_OFF, CutOff
from supervisor.master.jobs.disk_usage import DISK, DiskUsage
from supervisor.master.jobs.dispatcher import Dispatcher
from supervisor.master.jobs.intake import Intake
from supervisor.master.jobs.interrupter import Interrupter
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
from supervisor.master.jobs.unstarted import HAND_BACK, Unstarted
from supervisor.master.model.budget import Budget
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.counts import MasterCounts
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.job_log import JobLog
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from supervisor.master.timers import Timers
from supervisor.messages import HandlerSettings, Verb
from supervisor.ops.events import Events
from tests.lengths import SOON_S


def grant_of(leases: Sequence[LeaseRecord], starting: int = 0) -> Grant:
    return Grant(0.0, None, list(leases), [], starting=starting)


def lease_of(
    token: int, klass: str = "k", raw: bytes = b"1", *, is_bytes: bool = False, failures: int = 0, deaths: int = 0,
    interruptions: int = 0, timeout_ms: int | None = None, lane: str | None = None, persistent: bool = False,
    at_most_once: bool = False, was_lost: bool = False,
) -> LeaseRecord:  # fmt: skip
    """A lease as the engine's answer makes it."""
    timeout = None if timeout_ms is None else str(timeout_ms).encode()
    counts = [str(count).encode() if count else None for count in (failures, deaths, interruptions)]
    own = b"1" if is_bytes else None
    marks = (b"p" if persistent else b"") + (b"o" if at_most_once else b"") + (b"w" if was_lost else b"")
    rest = [None, None, timeout, None, own, *counts, None, lane.encode() if lane else None, marks or None, None, None]
    return LeaseRecord("w", token, f"j{token}".encode(), klass.encode(), b"q", raw, 0, rest=rest)


def held_of(token: int, estimate_s: float | None = None, *, start_reported: bool = False, **lease: Any) -> HeldLease:
    return HeldLease(lease_of(token, **lease), HandlerSettings(), 60.0, estimate_s, start_reported)


def open_fds() -> int:
    assert foreign_files.finish(SOON_S)
    gc.collect()  # what earlier tests have left to the collector is not counted
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Lower this process's limit of open files, so that it can open none meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refused(times: int, number: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call as a kernel makes it that refuses it at first, with this errno."""
    refusals = [number] * times

    def make(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise OSError(refusals.pop(), os.strerror(number))
        return call(*arguments, **options)

    return make


class Sender:
    """A socket whose kernel lacks memory for the first packets that are sent."""

    def __init__(self, sock: socket.socket, times: int) -> None:
        self._sock = sock
        self.send = refused(times, errno.ENOBUFS, sock.send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def until(happened: Callable[[], Any], timeout_s: float = SOON_S) -> None:
    """Look again and again, for a condition of which the kernel sends no event."""
    deadline_at = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline_at, "it has not come about in time"
        time.sleep(0.0005)


def await_readable(source: Any, timeout_s: float = SOON_S) -> None:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    assert poll.poll(timeout_s * 1000), "nothing came in time"


def state_of(pid: int) -> str:
    """The process's state as one letter: R, S, T, Z …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def rest() -> NoReturn:
    """Wait to be killed; a minute at the most, so that a test that fails leaves nothing behind."""
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    while True:
        signal.pause()


class Process:
    """A fork of the test that runs one function and ends; killed and reaped by `end`."""

    def __init__(self, run: Callable[[], Any]) -> None:
        # Signals are blocked until the fork has dropped the handlers that other tests left in this process: a signal
        # that comes before would be caught by such a handler, and be lost.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            for signo in (signal.SIGTERM, kernel.NOTICE_SIGNAL, kernel.STACKS_SIGNAL):
                signal.signal(signo, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _run(run)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None

    def await_end(self, timeout_s: float = SOON_S) -> int:
        """Wait for the end of the process, and return its wait status."""
        assert kernel.await_ends([self.pidfd], timeout_s), "it has not ended in time"
        return self.end()

    def end(self) -> int:
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.status = os.waitpid(self.pid, 0)[1]
            os.close(self.pidfd)
        return self.status


def _run(run: Callable[[], Any]) -> NoReturn:
    status = 99
    try:
        run()
        status = 0
    except BaseException:  # noqa: BLE001  the process's boundary
        traceback.print_exc()
    finally:
        os._exit(status)


def in_fork(run: Callable[[], Any], timeout_s: float = SOON_S) -> None:
    """Run in a process of its own what would change this one; whatever it raises is the test's failure."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def tell() -> None:
        said = b"done"
        try:
            run()
        except BaseException:  # noqa: BLE001  told to the test
            said = traceback.format_exc().encode()
        theirs.send(said[-100_000:])

    process = Process(tell)
    theirs.close()
    try:
        await_readable(ours, timeout_s)
        said = ours.recv(100_000).decode()
        assert said == "done", said
    finally:
        process.end()
        ours.close()


def close_all_but(*kept: int) -> None:
    """Let a fork hold nothing of its test's but these descriptors and the standard ones."""
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 4096)


class Ends:
    """A child's ends of its sockets and output, in a process that stands in for one."""

    def __init__(self, child: ChildHandle) -> None:
        jobs_fd, talk_fd, self.out, self.stacks = child.child_ends
        close_all_but(jobs_fd, talk_fd, self.out, self.stacks)
        self.jobs = socket.socket(fileno=jobs_fd)
        self.talk = socket.socket(fileno=talk_fd)

    def say(self, verb: int, token: int, body: bytes = b"", run_s: float = 0.001) -> None:
        self.talk.send(messages.pack_outcome(verb, token, run_s, body))

    def say_with(self, fd: int, verb: int, token: int, body: bytes = b"") -> None:
        kernel.send(self.talk, messages.pack_outcome(verb, token, 0.001, body), (fd,))

    def next_job(self) -> messages.JobMessage:
        packet, fds = kernel.receive(self.jobs, messages.MAX_PACKET_BYTES, 1)
        for fd in fds:
            os.close(fd)
        return messages.unpack_job(packet)


Behaviour = Callable[[Ends], Any]


def honest(ends: Ends) -> NoReturn:
    """Completes whatever it gets."""
    ends.talk.send(messages.pack_ready())
    while True:
        ends.say(Verb.COMPLETED, ends.next_job().token)


def never_reading(ends: Ends) -> NoReturn:
    """Says that it is ready, and takes no job."""
    ends.talk.send(messages.pack_ready())
    rest()


def holding(ends: Ends) -> NoReturn:
    """Takes one job and keeps it."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    rest()


class Desk:
    """The part of a master that decides about jobs: without Redis, without a zygote."""

    def __init__(self, log: Path, flags: dict[str, str]) -> None:
        given = {"redis-url": "redis://localhost", "jobs-per-child": "0", "processes": "2", "dispatch-ahead": "1s"}
        names = {name.replace("_", "-"): value for name, value in flags.items()}
        self.config = RunConfig.load({**given, **names}, {}, terminal=False)
        self._log = log
        self._log_fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.log = Events(self._log_fd, "json", "debug")
        config, ahead_s = self.config, self.config.dispatch_ahead_s
        self.timers = timers = Timers()
        self.counts = counts = MasterCounts()
        self.ledgers = ledgers = Ledgers()
        self.ledger = ledgers.by_shard[0]
        self.slots = slots = Slots(config.processes, config.jobs_per_child)
        self.budget = budget = Budget(config.memory_budget_bytes)
        self.pace = pace = Pace()
        log_jobs = JobLog(self.log, counts)
        self.admission = admission = Admission(slots, ledgers, budget, timers)
        self.capacity = Capacity(slots, admission, pace, ahead_s)
        self.interrupter = interrupter = Interrupter(config, slots, admission, self.log)
        choice = ChildChoice(slots, admission, pace, ahead_s)
        self.suspects = suspects = Suspects()
        unstarted = Unstarted(slots, ledgers, budget, timers, interrupter, ahead_s, log_jobs)
        room = RoomMaker(slots, ledgers, budget, admission, choice, interrupter, self.log)
        self.report: Callable[[Sequence[LeaseRecord]], bool] = lambda _started: True  # to Redis
        self.starts = starts = StartReports(lambda started: self.report(started))
        self.placing = placing = Placing(ledgers, admission, choice, room, unstarted, interrupter, starts, log_jobs)
        self.intake = intake = Intake(config, ledgers, pace, admission, suspects)
        reload_s = config.reload_timeout_s
        self.retirement = Retirement(intake, unstarted, placing, interrupter, reload_s)
        self.shutdown = JobShutdown(slots, admission, placing, interrupter)
        self.answers = LeaseAnswers(slots, ledgers, placing, interrupter, self.log, counts)
        self.oom_kills: list[str] = []  # what the kernel says, each once
        verdict = lambda _child: self.oom_kills.pop() if self.oom_kills else None  # noqa: E731
        outcomes = JobOutcomes(ledgers, pace, budget, admission, verdict, config.max_deaths, suspects, log_jobs)
        self.dispatcher = Dispatcher(
            ReadyChildren(admission, interrupter, pace, self.log, counts),
            JobReports(ledgers),
            outcomes,
            SharedDeaths(outcomes, suspects, self.log),
            NextStep(slots, admission, Recycling(config, slots), interrupter),
            interrupter, admission, placing,
        )  # fmt: skip
        self.cut_off = CutOff(config, slots, ledgers, interrupter, timers)
        disk = DiskUsage(config.workdir_limit_bytes, log.parent, interrupter, self.log, timers)
        memory = MemoryLimits(slots, budget, interrupter, KernelKills(OomKills(), None), None)
        self.limits = JobLimits(config, placing, interrupter, memory, disk, self.cut_off, timers)
        self.processes: dict[int, Process] = {}
        self.printed: list[tuple[int, int, bytes]] = []

    def child(self, behave: Behaviour, ready: bool = True) -> ChildHandle:
        """A child whose process does what `behave` says."""
        on_line = lambda *said: self.printed.append((said[0].number, *said[1:]))  # noqa: E731
        child = ChildHandle(self.slots.free_number(), 1, on_line, self.limits.plan)
        process = Process(lambda: behave(Ends(child)))
        child.close_child_ends()
        child.spawned(process.pid, os.dup(process.pidfd))
        self.processes[child.number] = process
        self.slots.add(child)
        if ready:
            self.turn(lambda: child.state is not ChildState.SPAWNING)
        return child

    def give(self, *leases: LeaseRecord, starting: int | None = None, **settings: Any) -> list[HeldLease]:
        """Leases come from the engine; answers those that are held now."""
        known = {lease.klass: HandlerSettings(**settings) for lease in leases if lease.klass != "unknown"}
        self.intake.accept(grant_of(leases, len(leases) if starting is None else starting), known)
        self.placing.place()
        held = [self.ledger.find(lease.token) for lease in leases]
        return [each for each in held if each is not None]

    def turn(self, happened: Callable[[], Any], timeout_s: float = SOON_S) -> None:
        """Read what children say until it has happened."""
        deadline_at = time.monotonic() + timeout_s
        while not happened():
            poll = select.poll()
            by_fd = {child.talk.fd: child for child in self.slots if not child.talk.at_end}
            for fd in by_fd:
                poll.register(fd, select.POLLIN)
            ready = poll.poll(max(0.0, deadline_at - time.monotonic()) * 1000)
            assert ready, "nothing came in time"
            for fd, _events in ready:
                self.dispatcher.on_spoke(by_fd[fd])

    def reap(self, child: ChildHandle, why: str | None = None) -> int:
        """The child's process has ended, by itself or killed: settle it as the zygote's report would."""
        status = self.processes[child.number].await_end()
        reaped = messages.Reaped(child.number, child.pid, status, 0.5, 4096)
        self.dispatcher.on_gone(child, reaped, why or child.why_killed)
        self.slots.remove(child)
        child.close()
        return status

    def keep_time(self, now_at: float) -> None:
        self.timers.run_due(now_at)

    def deadline_at(self) -> float:
        """Return when the first timer is due. `Timers.due_at` may be sooner."""
        runs = [(child, run.held.lease.token) for child in self.slots for run in child.runs]
        return min(map(self.timers.at, (HAND_BACK, FIND_ROOM, DISK, CUT_OFF, *self.slots, *runs)))

    def outcomes(self) -> list[Any]:
        """Return the outcomes that go with the next exchange."""
        outcomes = self.ledger.settle_next(1000)
        self.ledger.settled()
        return outcomes

    def events(self, name: str) -> list[dict[str, Any]]:
        self.log.flush()
        said = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [event for event in said if event["event"] == name]

    def close(self) -> None:
        for process in self.processes.values():
            process.end()
        for child in self.slots:
            child.close()
        self.log.close(1.0)
        os.close(self._log_fd)
