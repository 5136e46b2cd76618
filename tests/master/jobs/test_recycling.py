"""The master replaces worn children one after the other. Children are forks of the test."""

import mmap
from types import SimpleNamespace

import pytest

from supervisor import clock, messages
from supervisor.master.jobs.recycling import Recycling
from supervisor.master.model import memory
from supervisor.master.model.states import ChildState
from supervisor.messages import Verb
from tests.parts import holding, honest, lease_of

MB = 2**20


def keeping(mb):
    """Take this much memory with the first job, and keep it for all later ones."""

    def behave(ends):
        room = mmap.mmap(-1, mb * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        ends.talk.send(messages.pack_ready())
        while True:
            token = ends.next_job().token
            room.seek(0)
            room.write(b"x" * (mb * MB))
            ends.say(Verb.COMPLETED, token)

    return behave


def leaving_when_told(ends):
    """Take no job, and end when the master sends no more."""
    ends.talk.send(messages.pack_ready())
    ends.jobs.recv(1)


def run(desk, token, child):
    desk.give(lease_of(token))
    desk.turn(lambda: child.state is not ChildState.BUSY)
    desk.outcomes()


def aged(child, seconds):
    child.asked_at = clock.monotonic() - seconds
    return child


@pytest.mark.parametrize("flags", [{}, {"child_age": "1s", "jobs_per_child": "1"}])
def test_recycling_needs_a_limit_and_reused_children(desk, flags):
    desk = desk(**flags)
    assert not Recycling(desk.config, desk.slots).is_on_for(SimpleNamespace(shared=None))


def test_an_old_child_leaves_after_its_job_and_says_its_age(desk):
    desk = desk(processes="1", child_age="60s")
    child = aged(desk.child(honest), 61)
    assert child.state is ChildState.IDLE  # without a job it may stay
    run(desk, 1, child)
    assert child.state is ChildState.LEAVING
    (event,) = desk.events("child.recycled")
    assert event["reason"] == "it is 61 s old, its limit is 60 s"
    assert desk.slots.missing() == 1


def test_a_young_child_goes_on(desk):
    desk = desk(processes="1", child_age="60s")
    child = aged(desk.child(honest), 30)
    run(desk, 1, child)
    assert (child.state, child.retire_reason) == (ChildState.IDLE, None)


def test_old_children_leave_one_at_a_time(desk):
    desk = desk(processes="3", child_age="60s")
    children = [aged(desk.child(honest), 100) for _ in range(3)]
    desk.give(*(lease_of(token) for token in range(1, 4)))
    desk.turn(lambda: all(child.state is not ChildState.BUSY for child in children))
    assert sorted(child.state.name for child in children) == ["IDLE", "IDLE", "LEAVING"]
    leaving = next(child for child in children if child.state is ChildState.LEAVING)
    assert desk.slots.missing() == 1
    desk.reap(leaving)
    aged(desk.child(honest), 0)
    desk.give(*(lease_of(token) for token in range(4, 7)))
    desk.turn(lambda: not any(child.state is ChildState.BUSY for child in desk.slots))
    assert sorted(child.state.name for child in desk.slots) == ["IDLE", "IDLE", "LEAVING"]


def test_a_worn_child_finishes_the_jobs_sent_ahead(desk):
    desk = desk(processes="1", child_age="60s")
    desk.pace.learn("k", 0.0001)
    child = aged(desk.child(honest), 100)
    desk.give(*(lease_of(token) for token in range(1, 11)), starting=1)
    assert len(child.sent) == 10
    desk.turn(lambda: child.state is ChildState.LEAVING)
    assert [outcome.lease.token for outcome in desk.outcomes()] == list(range(1, 11))
    assert len(desk.events("child.recycled")) == 1
    (late,) = desk.give(lease_of(11))
    assert list(desk.ledgers.ready) == [late]


def test_a_child_that_keeps_memory_leaves_after_its_job(desk):
    desk = desk(processes="1", child_memory="10M")
    child = desk.child(keeping(20))
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    run(desk, 1, child)
    assert child.state is ChildState.LEAVING
    (event,) = desk.events("child.recycled")
    assert "MB of private memory, more than 10 MB" in event["reason"]


def test_a_childs_memory_is_measured_once_a_second(desk, monkeypatch):
    desk = desk(processes="1", child_memory="10M")
    child = desk.child(keeping(1))
    looks = []
    sample = child.meter.sample
    monkeypatch.setattr(child.meter, "sample", lambda: looks.append(1) or sample())
    began_at = clock.monotonic()
    for token in range(1, 101):
        run(desk, token, child)
    assert len(looks) <= 1 + (clock.monotonic() - began_at)


def test_inherited_memory_does_not_wear_a_child(desk):
    held = bytearray(b"x") * (50 * MB)
    desk = desk(processes="1", child_memory="10M")
    child = desk.child(honest)
    child.meter = memory.Meter(child.pid, memory.of(child.pid))
    run(desk, 1, child)
    assert (child.state, len(held)) == (ChildState.IDLE, 50 * MB)


def test_an_idle_child_leaves_when_a_job_needs_its_memory(desk):
    desk = desk(processes="3", memory_budget="100M")
    busy, free = desk.child(holding), desk.child(holding)
    desk.give(lease_of(1, "small"))
    keeper = desk.child(leaving_when_told)
    desk.budget.measured(keeper.number, 60 * MB)
    desk.budget.settle(9, "large", "j0", 50 * MB)
    desk.give(lease_of(2, "large"))
    assert (busy.state, free.state, keeper.state) == (ChildState.BUSY, ChildState.IDLE, ChildState.LEAVING)
    assert desk.events("child.recycled")[0]["reason"] == "its memory is needed for another job"
    desk.placing.place()
    assert free.state is ChildState.IDLE  # no other child leaves meanwhile
    desk.reap(keeper)
    assert free.state is ChildState.BUSY
