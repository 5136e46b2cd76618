"""Who asks for a reload while another one is under way: what is dropped, what waits, and who is told of what."""

import json
import os
from types import SimpleNamespace

import pytest

from supervisor import clock
from supervisor.master.model.states import ZygoteState
from supervisor.master.processes.rolling_reload import RollingReload
from supervisor.messages import BootFailed
from supervisor.ops.events import Events


class Zygote(SimpleNamespace):
    def become(self, state):
        self.state = state


class Zygotes:
    """All that there is of forks and starts. They boot when the test says so."""

    def __init__(self):
        self.handlers, self.failure = {}, None
        self.current = self._new()
        self.at, self.proven, self.lies_in = None, True, ""
        self.started, self.dropped = [], []

    def _new(self, directory=""):
        return Zygote(
            number=0, directory=directory, proven=True, state=ZygoteState.CURRENT, failure=None, handlers={}, born=9,
            started_at=clock.monotonic(),
        )  # fmt: skip

    def place(self):
        return self.lies_in

    def start_anew(self):
        zygote = self._new(self.lies_in)
        zygote.number, zygote.proven, zygote.state = len(self.started) + 1, False, ZygoteState.BOOTING
        self.started.append(zygote)
        return zygote

    def drop(self, zygote):
        self.dropped.append(zygote.number)

    def take_over(self, new, _kept):
        self.current = new

    def give_up(self, failure):
        self.failure = failure


class Desk:
    def __init__(self, events, watch):
        self.zygotes = Zygotes()
        self.slots = SimpleNamespace(on_hold=False, processes=1)
        self.reload = RollingReload(SimpleNamespace(watch=watch), self.slots, events, self.zygotes, None, self.zygotes)
        self.told = []

    def ask(self, who):
        self.reload.ask(who, lambda done: self.told.append((who, done.zygote or done.message)))

    def boots(self):
        """The candidate of now."""
        self.reload.candidate.proven = True
        self.reload.keep_time(clock.monotonic())


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
def desk(events):
    return Desk(events, watch=False)


def test_all_who_ask_meanwhile_share_one_more_that_begins_when_the_first_has_ended(desk):
    for who in "abc":
        desk.ask(who)
    assert len(desk.zygotes.started) == 1
    desk.boots()
    assert desk.told == [("a", 1)]
    assert len(desk.zygotes.started) == 2
    desk.boots()
    assert desk.told[1:] == [("b", 2), ("c", 2)]
    assert desk.reload.candidate is None
    assert desk.zygotes.dropped == []


def test_after_one_that_fails_the_next_one_begins_too(desk):
    desk.zygotes.current, desk.zygotes.proven = None, False
    desk.ask("a")
    desk.ask("b")
    desk.reload.fail(BootFailed("no such thing", ""))
    assert desk.told == [("a", "no such thing")]
    assert desk.zygotes.failure is None  # the next one may be of use
    desk.reload.fail(BootFailed("nor this", ""))
    assert desk.zygotes.failure.message == "nor this"
    assert len(desk.zygotes.started) == 2


def test_newer_code_is_loaded_at_once_and_all_are_told_of_that_but_not_for_ever(desk):
    desk.ask("a")
    for release in range(1, 6):
        desk.zygotes.lies_in = str(release)
        desk.ask(release)
    assert desk.zygotes.dropped == [1, 2, 3]
    desk.boots()
    assert desk.told == [("a", 4), (1, 4), (2, 4), (3, 4)]
    assert desk.zygotes.started[-1].directory == "5"
    desk.zygotes.lies_in = "6"
    desk.ask(6)
    assert desk.zygotes.dropped == [1, 2, 3, 5]
    desk.boots()
    assert desk.told[4:] == [(4, 6), (5, 6), (6, 6)]


def test_an_edited_file_is_newer_code_and_so_is_a_candidate_that_takes_long_worth_another_try(desk, tmp_path):
    file = tmp_path / "app.py"
    file.write_text("1")
    desk.reload.follow([str(file)], clock.unix() + 1)
    desk.ask("a")
    desk.ask("b")
    assert desk.zygotes.dropped == []
    file.write_text("22")
    desk.ask("c")
    assert desk.zygotes.dropped == [1]
    desk.reload.candidate.started_at -= 1000
    desk.ask("d")
    assert desk.zygotes.dropped == [1, 2]
    desk.boots()
    assert {done for _who, done in desk.told} == {3}


def test_a_drain_tells_all_who_wait(desk):
    desk.ask("a")
    desk.ask("b")
    desk.reload.close()
    desk.ask("c")
    assert [who for who, done in desk.told if "drains" in done] == ["a", "b", "c"]
    assert desk.zygotes.dropped == [1]
    assert len(desk.zygotes.started) == 1


def test_jobs_that_wait_for_an_edit_wait_until_that_is_loaded(events, tmp_path):
    desk = Desk(events, watch=True)
    file = tmp_path / "app.py"
    file.write_text("")
    desk.reload.follow([str(file)], clock.unix() + 1)
    for edit in range(1, 6):
        file.write_text("x" * edit)
        desk.reload.look_at_files()
        assert desk.slots.on_hold
    assert desk.zygotes.dropped == [1, 2, 3]
    desk.boots()
    assert desk.slots.on_hold  # one edit more has been made than was loaded
    desk.boots()
    assert not desk.slots.on_hold
