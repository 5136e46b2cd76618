"""Zygotes and children from start to end: the zygotes are played, the children are processes."""

import math
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor import clock, messages
from supervisor.linux import kernel, removal, strays
from supervisor.master.inbox import Inbox
from supervisor.master.model import memory
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.reload_log import Reloads
from supervisor.master.model.states import ChildState, ZygoteState
from supervisor.master.model.zygote_handle import ZygoteHandle
from supervisor.master.processes import zygote_starts
from supervisor.master.processes.child_reader import ChildReader
from supervisor.master.processes.child_reaper import ChildReaper
from supervisor.master.processes.child_starts import ChildStarts
from supervisor.master.processes.crash_loop_guard import CrashLoopGuard
from supervisor.master.processes.edit_watch import EditWatch
from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.poison_detector import PoisonDetector
from supervisor.master.processes.process_manager import PROCESSES, ProcessManager
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.processes.zygote_manager import ZygoteManager
from supervisor.master.processes.zygote_reaper import ZygoteReaper
from supervisor.master.processes.zygote_starts import ZygoteStarts
from supervisor.master.processes.zygotes import Zygotes
from supervisor.messages import BootFailed, Ready, Reaped, Spawned
from tests.lengths import SOON_S
from tests.parts import Ends, Process, await_readable, lease_of, rest


class PlayedZygote(ZygoteHandle):
    """Reports what the test says. Its children are forks of the test."""

    def __init__(self, number, boot, _environment, deadline_at):
        self.number, self.workdir, self.directory = number, boot.workdir, boot.directory
        self.state, self.report, self.failure = ZygoteState.BOOTING, None, None
        self.unresponsive = self.status = None
        self.handlers, self.runs_hooks, self.inherited, self.next_sample_at = {}, False, memory.NOTHING, 0.0
        self.proven, self.ready_children, self.strangers = False, 0, kernel.children_of_self()
        self.started_at = self.heard_at = clock.monotonic()
        self.started_unix, self.deadline_at = clock.unix(), deadline_at
        self.control, self.stacks = SimpleNamespace(fileno=lambda: -1), SimpleNamespace(read=str, close=lambda: None)
        self.pid, self.is_killed = os.getpid(), False
        self.asked, self.reports = [], []

    def spawn(self, child, fds):
        self.asked.append(child)

    def read(self):
        reports, self.reports = self.reports, []
        yield from reports

    def finish(self):
        self.become(ZygoteState.LEAVING)

    def let_go(self):
        pass

    def kill(self):
        self.is_killed = True

    def write_stacks(self):
        pass


class Pool:
    """All parts that look after processes, on the deciding half of a master."""

    def __init__(self, desk, workdir):
        self.desk, self.inbox = desk, Inbox()
        self.later_s = 0.0  # how far the test's clock is ahead
        config, slots, timers, events, dispatcher = desk.config, desk.slots, desk.timers, desk.log, desk.dispatcher
        self.behave = working  # what children do that are requested from now on
        self.processes = {}  # of the children, by number of the zygote and of the child
        reload_log, guard = Reloads(events), CrashLoopGuard(events)
        self.zygotes = zygotes = Zygotes(desk.admission, desk.budget, events, reload_log)
        starts = ZygoteStarts(config, workdir, {}, events, zygotes, lambda _zygote: self.wake())
        reader = ChildReader(self.inbox, timers, dispatcher, guard, desk.counts, self.wake)
        self.children = children = ChildStarts(config, slots, events, zygotes, guard, reader, self.new_child)
        child_reaper = ChildReaper(self.inbox, events, zygotes, children, dispatcher, self.wake)
        files = FileWatcher()
        edits = EditWatch(config.watch, files, desk.admission, reload_log, self.wake)
        rolling_reload = RollingReload(
            reload_log, files, edits, zygotes, starts, children, desk.retirement
        )  # fmt: skip
        manager = ZygoteManager(events, zygotes, starts, guard, children, rolling_reload)
        detector = PoisonDetector(desk.admission)
        reaper = ZygoteReaper(self.inbox, events, zygotes, starts, child_reaper, rolling_reload, detector)
        self.manager = ProcessManager(timers, zygotes, manager, reaper, children, child_reaper, rolling_reload)

    def wake(self):
        self.desk.timers.set(PROCESSES, -math.inf, self.manager.run_due)

    def new_child(self, number, zygote):
        child = ChildHandle(number, zygote, lambda *_line: None, lambda *_planned: None)
        self.processes[zygote, number] = Process(lambda: self.behave(Ends(child)))
        return child

    def turn(self, later_s=0.0):
        """Take a turn, after so many seconds."""
        self.later_s += later_s
        self.desk.timers.run_due(clock.monotonic())
        self.manager.fill(clock.monotonic())

    def turn_until(self, holds):
        deadline_at = clock.monotonic() + SOON_S
        self.turn()
        while not holds():
            assert clock.monotonic() < deadline_at, "it has not come about in time"
            self.inbox.wait(clock.monotonic() + 0.05)
            self.turn()

    def report(self, zygote, report, *fds):
        zygote.reports.append((report, list(fds)))
        self.manager.read(zygote)

    def start(self):
        """Return the first zygote, whose children are idle."""
        self.manager.start()
        zygote = self.zygotes.current
        self.report(zygote, Ready({"k": {}}, [], []))
        self.turn()
        self.fork(zygote)
        return zygote

    def fork(self, zygote):
        """Report the forks that the zygote was asked for, and wait until the children are ready."""
        asked, zygote.asked = zygote.asked, []
        for number in asked:
            process = self.processes[zygote.number, number]
            self.report(zygote, Spawned(number, process.pid), os.dup(process.pidfd))
        children = [child for child in self.children.of(zygote) if child.number in asked]
        self.turn_until(lambda: all(child.state is not ChildState.SPAWNING for child in children))

    def run_job(self):
        """Return the child that runs a job from now on."""
        self.desk.give(lease_of(1))
        (busy,) = [child for child in self.desk.slots if child.sent]
        await_readable(busy.output.fd)
        return busy

    def end(self, zygote, number, status=None):
        """Kill a child's process. Return its end as the zygote reports it, or with another wait status."""
        process = self.processes[zygote.number, number]
        killed = process.end()
        return Reaped(number, process.pid, killed if status is None else status, 0.0, 0)

    def fail_start(self, zygote, number):
        """Report a child that was forked and has exited with status 1."""
        process = self.processes[zygote.number, number]
        self.report(zygote, Spawned(number, process.pid), os.dup(process.pidfd))
        self.report(zygote, self.end(zygote, number, status=1 << 8))

    def close(self):
        for process in self.processes.values():
            process.end()
        self.inbox.close()


@pytest.fixture
def pool(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(zygote_starts, "ZygoteHandle", PlayedZygote)
    monkeypatch.setattr(kernel, "allow_open_files", lambda: 1024)
    monkeypatch.setattr(strays, "end_strays", lambda _own, _until_at: None)
    monkeypatch.setattr(strays, "end_strays_of", lambda _pid, _living, _until_at: None)
    pool = Pool(desk(processes="2", jobs_per_child="1"), tmp_path)
    monotonic = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + pool.later_s)
    yield pool
    pool.close()


def states(pool):
    return [child.state for child in pool.desk.slots]


def never_ready(_ends):
    rest()


def working(ends):
    """Takes a job, prints so, and keeps it."""
    ends.talk.send(messages.pack_ready())
    ends.next_job()
    os.write(ends.out, b"has it\n")
    rest()


def test_first_zygote_is_asked_for_all_children(pool):
    zygote = pool.start()
    assert zygote.state is ZygoteState.CURRENT
    assert pool.zygotes.ready
    assert states(pool) == [ChildState.IDLE] * 2
    assert (zygote.proven, zygote.ready_children) == (True, 2)


def test_dead_child_is_settled_and_replaced(pool):
    zygote = pool.start()
    busy = pool.run_job()
    pool.report(zygote, pool.end(zygote, busy.number))
    assert busy.state is ChildState.GONE
    (outcome,) = pool.desk.outcomes()
    assert outcome.reason == "SIGKILL"
    pool.turn()
    assert zygote.asked == [busy.number]


def test_failed_start_delays_the_next_child(pool):
    pool.behave = never_ready
    pool.manager.start()
    zygote = pool.zygotes.current
    pool.report(zygote, Ready({"k": {}}, [], []))
    pool.turn()
    assert zygote.asked == [1, 2]
    pool.fail_start(zygote, 1)
    pool.turn()
    assert zygote.asked == [1, 2]
    pool.fail_start(zygote, 2)  # requested before the failure, so it counts no second time
    pool.turn(0.11)
    assert zygote.asked == [1, 2, 1]  # one at a time


def test_zygote_that_does_not_report_an_end_is_retired(pool):
    zygote = pool.start()
    pool.end(zygote, 1)
    pool.turn_until(lambda: pool.desk.slots.get(1).ended_at is not None)
    pool.turn(2.1)
    assert pool.zygotes.current is not zygote
    assert zygote.state is ZygoteState.RETIRED
    assert pool.desk.slots.get(1) is None
    (event,) = pool.desk.events("zygote.retired")
    assert event["reason"] == "it does not report the end of a child"


def test_zygote_that_does_not_fork_is_retired(pool):
    zygote = pool.start()
    pool.report(zygote, pool.end(zygote, 1))
    pool.turn()
    assert zygote.asked == [1]
    pool.turn(10.1)
    assert zygote.state is ZygoteState.RETIRED
    assert pool.desk.slots.get(1) is None
    pool.turn()
    assert pool.zygotes.current.number == 2


def test_zygote_that_the_kernel_does_not_let_go_of_holds_nothing_up(pool, monkeypatch):
    zygote = pool.start()
    stuck = Process(rest)
    monkeypatch.setattr(zygote, "pid", stuck.pid)
    monkeypatch.setattr(zygote, "await_end", lambda _timeout_s: None)  # in vain
    spared = []
    monkeypatch.setattr(strays, "end_strays", lambda own, _until_at: spared.append(own))
    pool.run_job()
    for number in (1, 2):
        pool.end(zygote, number)
    pool.report(zygote, None)
    assert zygote.state is ZygoteState.GONE
    (event,) = pool.desk.events("zygote.lost")
    assert event["status"] == "SIGKILL"
    assert [outcome.reason for outcome in pool.desk.outcomes()] == ["zygote-lost"]
    pool.turn()
    assert pool.zygotes.current.number == 2
    assert stuck.pid in spared[0], "a wait for its end would be in vain"
    assert os.waitstatus_to_exitcode(stuck.end()) == -signal.SIGKILL  # it was left for `reap`


def test_directory_of_a_lost_zygote_is_removed_beside_the_loop(pool, monkeypatch):
    may_end, remove = threading.Event(), removal.remove

    def remove_slowly(directory):
        assert may_end.wait(SOON_S)
        remove(directory)

    monkeypatch.setattr(removal, "remove", remove_slowly)
    zygote = pool.start()
    zygote.status = signal.SIGKILL
    pool.report(zygote, None)
    assert zygote.state is ZygoteState.GONE
    assert Path(zygote.workdir).is_dir()
    may_end.set()
    removal.finish(SOON_S)
    assert not Path(zygote.workdir).exists()


def test_lost_zygote_takes_its_children_along(pool):
    zygote = pool.start()
    pool.run_job()
    for number in (1, 2):
        pool.end(zygote, number)
    zygote.status = signal.SIGKILL
    pool.report(zygote, None)
    assert zygote.state is ZygoteState.GONE
    assert len(pool.desk.slots) == 0
    (outcome,) = pool.desk.outcomes()
    assert outcome.reason == "zygote-lost"
    pool.turn()
    assert pool.zygotes.current.number == 2


def test_first_zygote_that_fails_to_import_is_the_last(pool):
    pool.manager.start()
    zygote = pool.zygotes.current
    pool.report(zygote, BootFailed("no such module", ""))
    zygote.status = 1 << 8
    pool.report(zygote, None)
    pool.turn()
    assert pool.manager.has_failed
    assert pool.manager.boot_failure.message == "no such module"
    assert pool.zygotes.current is None


def test_candidate_takes_over_once_its_child_is_ready(pool):
    old = pool.start()
    told = []
    pool.manager.reload("a test", told.append)
    candidate = pool.zygotes.candidate
    pool.report(candidate, Ready({"new": {}}, [], []))
    assert (candidate.state, candidate.asked, set(pool.zygotes.handlers)) == (ZygoteState.PROVING, [3], {"k"})
    pool.fork(candidate)
    assert [each.zygote for each in told] == [candidate.number]
    assert pool.zygotes.current is candidate
    assert set(pool.zygotes.handlers) == {"new"}
    assert all(child.state is ChildState.LEAVING for child in pool.children.of(old))
    assert old.state is ZygoteState.KEPT
    pool.fork(candidate)
    assert old.state is ZygoteState.RETIRED


def test_old_code_comes_back_if_the_next_children_fail(pool):
    old = pool.start()
    pool.desk.slots.resize(3)
    pool.turn()
    pool.fork(old)
    pool.manager.reload("a test", None)
    candidate = pool.zygotes.candidate
    pool.report(candidate, Ready({"new": {}}, [], []))
    pool.behave = never_ready  # but for the probe, which is on its way
    pool.fork(candidate)
    assert (pool.zygotes.current, pool.zygotes.kept) == (candidate, old)
    for _ in range(7):  # the first two are requested together, and count once
        pool.turn(4)
        pool.fail_start(candidate, candidate.asked.pop())
    pool.turn()
    assert (pool.zygotes.current, candidate.state) == (old, ZygoteState.RETIRED)
    assert "the code before runs again" in pool.zygotes.last_reload["message"]


def test_drain_replaces_no_process(pool):
    zygote = pool.start()
    pool.manager.fork_no_more()
    pool.report(zygote, pool.end(zygote, 1))
    pool.turn()
    assert zygote.asked == []
    zygote.status = 0
    pool.report(zygote, None)
    pool.turn(60)
    assert pool.zygotes.current is None
