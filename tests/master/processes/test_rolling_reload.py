"""Reloads asked for during a reload: which candidate is discarded, which waits, and what each asker is told."""

import json
import math
import os
from types import SimpleNamespace

import pytest

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.budget import Budget
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.reload_log import Reloads
from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ZygoteState
from supervisor.master.processes.edit_watch import EditWatch
from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.master.timers import Timers
from supervisor.messages import BootFailed
from supervisor.ops.events import Events


class Zygote(SimpleNamespace):
    def become(self, state):
        self.state = state


class PlayedZygotes:
    """Plays `Zygotes`, `ZygoteStarts`, `ChildStarts` and `Retirement`. Zygotes boot when the test says so."""

    def __init__(self):
        self.handlers, self.failure = {}, None
        self.current, self.candidate, self.kept = self._new(), None, None
        self.proven, self.lies_in = True, ""
        self.started, self.discarded = [], []

    def __iter__(self):
        return iter(())

    def _new(self, directory=""):
        return Zygote(
            number=0, directory=directory, proven=True, state=ZygoteState.CURRENT, failure=None, handlers={},
            started_at=clock.monotonic(), started_unix=clock.unix(), report=SimpleNamespace(files=[]), ready_children=9,
        )  # fmt: skip

    def code_directory(self):
        return self.lies_in

    def start_candidate(self):
        zygote = self.candidate = self._new(self.lies_in)
        zygote.number, zygote.proven, zygote.state = len(self.started) + 1, False, ZygoteState.BOOTING
        self.started.append(zygote)

    def discard(self, zygote):
        self.discarded.append(zygote.number)

    def make_current(self, zygote):
        self.current, zygote.state = zygote, ZygoteState.CURRENT

    def use_code_of(self, zygote):
        pass

    def on_takeover(self, *_new):
        pass

    def on_reloaded(self, outdated, handlers):
        pass

    def give_up(self, failure):
        self.failure = failure


class Pool:
    def __init__(self, events, watch, files=()):
        self.zygotes = zygotes = PlayedZygotes()
        self.admission = Admission(Slots(2, 1), Ledgers(), Budget(0), Timers())
        children = SimpleNamespace(
            failure=None, on_takeover=zygotes.on_takeover, is_pool_filled_by=lambda _zygote: True
        )  # fmt: skip
        reload_log, files_of_handlers = Reloads(events), FileWatcher()
        self.edits = EditWatch(watch, files_of_handlers, self.admission, reload_log, lambda: None)
        self.reload = RollingReload(
            reload_log, files_of_handlers, self.edits, zygotes, zygotes, children, zygotes
        )  # fmt: skip
        self.told = []
        if files:
            self._boot_with(files)

    def _boot_with(self, files):
        zygote = self.zygotes.current
        zygote.report.files, zygote.started_unix = list(map(str, files)), clock.unix() + 1
        self.reload.use_successor(zygote)

    def ask(self, asker):
        self.reload.ask(asker, lambda done: self.told.append((asker, done.zygote or done.message)))

    def boot(self):
        """The candidate's first child gets ready."""
        candidate = self.zygotes.candidate
        candidate.proven, candidate.report.files = True, self.zygotes.current.report.files
        self.reload.run_due(clock.monotonic())


@pytest.fixture
def events():
    reads, writes = os.pipe()
    events = Events(writes, "json", "debug")
    os.close(writes)
    yield events
    events.close(0.0)
    assert all(json.loads(line) for line in os.read(reads, 65536).splitlines())
    os.close(reads)


@pytest.fixture
def pool(events):
    return Pool(events, watch=False)


def test_requests_during_a_reload_share_the_next_one(pool):
    for asker in "abc":
        pool.ask(asker)
    assert len(pool.zygotes.started) == 1
    pool.boot()
    assert pool.told == [("a", 1)]
    assert len(pool.zygotes.started) == 2
    pool.boot()
    assert pool.told[1:] == [("b", 2), ("c", 2)]
    assert pool.zygotes.candidate is None
    assert pool.zygotes.discarded == []


def test_next_reload_begins_after_a_failed_one(pool):
    pool.zygotes.current, pool.zygotes.proven = None, False
    pool.ask("a")
    pool.ask("b")
    pool.reload.fail(BootFailed("no such thing", ""))
    assert pool.told == [("a", "no such thing")]
    assert pool.zygotes.failure is None  # the next reload may succeed
    pool.reload.fail(BootFailed("nor this", ""))
    assert pool.zygotes.failure.message == "nor this"
    assert len(pool.zygotes.started) == 2


def test_newer_code_replaces_at_most_three_candidates_in_a_row(pool):
    pool.ask("a")
    for release in range(1, 6):
        pool.zygotes.lies_in = str(release)
        pool.ask(release)
    assert pool.zygotes.discarded == [1, 2, 3]
    pool.boot()
    assert pool.told == [("a", 4), (1, 4), (2, 4), (3, 4)]
    assert pool.zygotes.started[-1].directory == "5"
    pool.zygotes.lies_in = "6"
    pool.ask(6)
    assert pool.zygotes.discarded == [1, 2, 3, 5]
    pool.boot()
    assert pool.told[4:] == [(4, 6), (5, 6), (6, 6)]


def test_edited_file_or_slow_import_replaces_the_candidate(events, tmp_path):
    file = tmp_path / "app.py"
    file.write_text("1")
    pool = Pool(events, watch=False, files=[file])
    pool.ask("a")
    pool.ask("b")
    assert pool.zygotes.discarded == []
    file.write_text("22")
    pool.ask("c")
    assert pool.zygotes.discarded == [1]
    pool.zygotes.candidate.started_at -= 1000
    pool.ask("d")
    assert pool.zygotes.discarded == [1, 2]
    pool.boot()
    assert {done for _asker, done in pool.told} == {3}


def test_drain_answers_every_request(pool):
    pool.ask("a")
    pool.ask("b")
    pool.reload.close()
    pool.ask("c")
    assert [asker for asker, done in pool.told if "drains" in done] == ["a", "b", "c"]
    assert pool.zygotes.discarded == [1]
    assert len(pool.zygotes.started) == 1


def test_jobs_wait_until_the_last_edit_is_loaded(events, tmp_path):
    file = tmp_path / "app.py"
    file.write_text("")
    pool = Pool(events, watch=True, files=[file])
    for edit in range(1, 6):
        file.write_text("x" * edit)
        pool.edits.look()
        assert pool.admission.awaits_reload
        pool.reload.run_due(clock.monotonic())
        assert pool.admission.awaits_reload
    assert pool.zygotes.discarded == [1, 2, 3]
    pool.boot()
    assert pool.admission.awaits_reload  # the fifth edit is not loaded yet
    pool.boot()
    assert not pool.admission.awaits_reload


@pytest.fixture
def edited(events, tmp_path):
    """A pool with `--watch` that has loaded a file, and a function that edits the file."""
    file = tmp_path / "app.py"
    file.write_text("")
    return Pool(events, watch=True, files=[file]), lambda: file.write_text(file.read_text() + "x")


def test_edit_is_loaded_in_the_next_look_at_processes(edited):
    pool, edit = edited
    edit()
    pool.edits.look()
    pool.edits.look()
    assert pool.reload.deadline_at() == -math.inf
    assert pool.zygotes.started == []
    pool.reload.run_due(clock.monotonic())
    assert len(pool.zygotes.started) == 1
    assert pool.reload.deadline_at() > 0


def test_code_from_before_an_edit_does_not_take_over(edited):
    pool, edit = edited
    pool.ask("a")
    edit()
    pool.edits.look()
    pool.boot()
    assert pool.zygotes.discarded == [1]
    assert pool.admission.awaits_reload


def test_failed_candidate_lets_no_job_start_after_an_edit(edited):
    pool, edit = edited
    pool.ask("a")
    edit()
    pool.edits.look()
    pool.reload.fail(BootFailed("no such thing", ""))
    assert pool.admission.awaits_reload
    pool.reload.run_due(clock.monotonic())
    pool.reload.fail(BootFailed("nor this", ""))
    assert not pool.admission.awaits_reload


def test_drain_looks_at_no_file(edited):
    pool, edit = edited
    pool.reload.close()
    edit()
    pool.edits.look()
    assert pool.reload.deadline_at() == math.inf
    assert not pool.admission.awaits_reload
