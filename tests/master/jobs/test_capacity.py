"""The children and the run times of recent jobs decide how many jobs the master leases."""

import pytest

from supervisor import clock
from supervisor.master.jobs.admission import Admission
from supervisor.master.model.job_pipe import MAX_SENT
from supervisor.master.model.states import ChildState
from tests.master.jobs.conftest import AHEAD_S
from tests.parts import held_of, lease_of

QUICK_S = 0.0001


def test_each_idle_child_gets_a_job_while_no_run_time_is_known(pool):
    assert pool(processes=3).capacity.to_lease() == (3, 3)


def test_slow_jobs_are_leased_for_idle_children_only(pool):
    pool = pool(processes=2)
    pool.pace.learn("k", 1.0)
    assert pool.capacity.to_lease() == (2, 2)
    pool.send(held_of(1, 1.0))
    assert pool.capacity.to_lease() == (1, 1)


def test_half_of_the_quick_jobs_that_start_in_time_are_leased_at_once(pool):
    pool = pool(processes=2)
    pool.pace.learn("k", 0.002)
    assert pool.capacity.to_lease() == (10, 2)
    assert pool.capacity.to_lease(coming=10) == (10, 0)
    assert pool.capacity.to_lease(coming=15) == (5, 0)
    assert pool.capacity.to_lease(coming=20) == (0, 0)
    for token in range(1, 17):
        pool.send(held_of(token, 0.002))
    assert pool.capacity.to_lease() == (4, 0)


def test_one_lease_brings_at_most_half_of_what_children_take(pool):
    many = pool(processes=2)
    many.pace.learn("k", 1e-9)
    assert many.capacity.to_lease() == (MAX_SENT, 0)
    few = pool(processes=2, jobs_per_child=5)
    few.pace.learn("k", 1e-9)
    assert few.capacity.to_lease() == (5, 0)
    assert few.capacity.to_lease(coming=7) == (3, 0)


def test_full_children_count_as_capacity_when_jobs_are_short(pool):
    full, tiny_s = pool(processes=1), QUICK_S / 10
    full.pace.learn("k", tiny_s)
    for token in range(MAX_SENT):
        assert full.send(held_of(token, tiny_s)) == 1
    assert full.send(held_of(MAX_SENT, tiny_s)) is None
    assert full.capacity.to_lease() == (MAX_SENT // 2, 0)
    slow = pool(processes=1)
    slow.pace.learn("k", AHEAD_S / 2)
    while slow.send(held_of(1, AHEAD_S / 2)):
        pass
    assert slow.capacity.to_lease() == (0, 0)


def test_idle_children_beyond_the_processes_are_leased_nothing(pool):
    pool = pool(processes=1, jobs_per_child=1, children=2)
    pool.pace.learn("k", 0.001)
    assert pool.capacity.to_lease() == (1, 1)
    pool.send(held_of(1, 0.001))
    assert pool.capacity.to_lease() == (0, 0)


def test_no_more_jobs_start_than_there_are_processes(pool):
    pool = pool(processes=1, children=3)
    assert pool.capacity.startable() == 1
    assert pool.send(held_of(1)) == 1
    assert pool.capacity.startable() == 0


def test_a_retired_child_is_leased_nothing(pool):
    pool = pool(processes=2)
    pool.child(1).retire("the code was reloaded")
    assert pool.capacity.startable() == 1


# what admission says


def test_jobs_for_idle_children_only_are_not_leased_ahead(pool):
    pool = pool(processes=2)
    pool.pace.learn("k", QUICK_S)
    assert pool.capacity.to_lease()[0] > 2
    pool.admission.granted([lease_of(1, at_most_once=True)], {})
    assert pool.capacity.to_lease() == (2, 2)
    pool.send(held_of(1))
    assert pool.capacity.to_lease() == (1, 1)


@pytest.mark.parametrize(
    ("stop", "end"),
    [(Admission.await_reload, Admission.reload_ended), (Admission.wait_for_room, Admission.try_again)],
)
def test_nothing_is_leased_while_jobs_wait_for_a_reload_or_room(pool, stop, end):
    pool = pool(processes=2)
    pool.pace.learn("k", QUICK_S)
    stop(pool.admission)
    assert pool.capacity.to_lease() == (0, 0)
    end(pool.admission)
    assert pool.capacity.to_lease()[0] > 2


# children that are about to get ready


@pytest.fixture
def forking(pool, new_child, monkeypatch):
    """Makes a pool of two processes with a fork per job, and one child that was asked for `since_s` seconds ago."""

    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)  # the child is not overdue because the machine is busy

    def make(since_s, fork_s=0.004, run_s=QUICK_S):
        made = pool(processes=2, jobs_per_child=1, children=0)
        made.pace.learn("k", run_s)
        if fork_s is not None:
            made.pace.learn_fork(fork_s)
        child = new_child(1)
        child.state, child.asked_at = ChildState.SPAWNING, clock.monotonic() - since_s
        made.slots.add(child)
        return made

    return make


def test_a_job_is_leased_for_a_child_about_to_get_ready(forking):
    assert forking(since_s=0.001).capacity.to_lease() == (1, 0)


def test_a_granted_job_is_enough_for_a_child_about_to_get_ready(forking):
    assert forking(since_s=0.001).capacity.to_lease(coming=1) == (0, 0)


@pytest.mark.parametrize(
    "child",
    [
        {"since_s": 0.001, "fork_s": None},
        {"since_s": 0.001, "fork_s": 1.0},
        {"since_s": 60.0},
        {"since_s": 0.001, "run_s": 1.0},
        {"since_s": 0.001, "run_s": 0.002},
    ],
    ids=["time of a fork unknown", "not soon", "overdue", "slow jobs", "a start that must be reported"],
)
def test_no_job_is_leased_for_a_child_that_may_be_late(forking, child):
    assert forking(**child).capacity.to_lease() == (0, 0)


def test_a_child_about_to_get_ready_counts_within_the_processes(forking, new_child):
    pool = forking(since_s=0.001)
    for number in (2, 3):
        pool.slots.add(new_child(number))
        pool.send(held_of(number))
    assert pool.slots.busy == 2
    assert pool.capacity.to_lease() == (0, 0)
