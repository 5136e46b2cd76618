"""The slots tell how many children to fork, and which are surplus or busy."""

import pytest

from supervisor.master.model.slots import Slots
from supervisor.master.model.states import ChildState
from tests.parts import held_of


@pytest.fixture
def with_children(new_child):
    """Makes slots with idle children, numbered from 1."""

    def make(processes=2, jobs_per_child=0, children=None):
        slots = Slots(processes, jobs_per_child)
        for number in range(1, 1 + (processes if children is None else children)):
            slots.add(new_child(number))
        return slots

    return make


def send(slots, number):
    slots.get(number).send(held_of(number))


def end(slots, number, state):
    """The child has answered its first job, and goes on as `state`."""
    slots.get(number).answered(0.0)
    slots.get(number).become(state)


# how many to fork


def test_an_empty_pool_misses_all_its_processes(with_children):
    assert with_children(processes=3, children=0).missing() == 3


def test_idle_and_busy_children_need_no_successor(with_children):
    slots = with_children(processes=2)
    assert slots.missing() == 0
    send(slots, 1)
    assert slots.missing() == 0


def test_a_child_on_its_last_job_has_a_successor_forked_ahead(with_children):
    slots = with_children(processes=2, jobs_per_child=1)
    send(slots, 1)
    assert slots.missing() == 1
    send(slots, 2)
    assert slots.missing() == 2


def test_a_child_with_jobs_left_needs_no_successor(with_children):
    slots = with_children(processes=1, jobs_per_child=2)
    send(slots, 1)
    assert slots.missing() == 0
    end(slots, 1, ChildState.IDLE)
    send(slots, 1)
    assert slots.missing() == 1


def test_leaving_and_killed_children_are_replaced_at_once(with_children):
    slots = with_children(processes=2, jobs_per_child=1)
    send(slots, 1)
    end(slots, 1, ChildState.LEAVING)
    slots.get(2).kill("a test")
    assert slots.missing() == 2


def test_a_retired_child_is_replaced(with_children):
    slots = with_children(processes=2)
    slots.get(1).retire("the code was reloaded")
    assert slots.missing() == 1


def test_excess_children_are_never_a_negative_number(with_children):
    assert with_children(processes=1, children=3).missing() == 0


def test_leaving_children_are_replaced_up_to_a_bound(with_children, new_child):
    slots = with_children(processes=2, jobs_per_child=1)
    for _ in range(100):
        for child in list(slots):
            if child.state is ChildState.IDLE:
                send(slots, child.number)
                end(slots, child.number, ChildState.LEAVING)
        for _ in range(slots.missing()):
            slots.add(new_child(slots.free_number()))
    assert len(slots) == 3 * 2 + 2
    assert slots.missing() == 0
    slots.remove(slots.get(1))
    assert slots.missing() == 1


# numbers


def test_a_free_number_is_used_again(with_children):
    slots = with_children(processes=3)
    slots.remove(slots.get(2))
    assert slots.free_number() == 2


def test_the_number_of_a_child_outside_the_slots_is_taken(with_children):
    slots = with_children(processes=2)
    assert slots.free_number() == 3
    assert slots.free_number({3, 4}) == 5


# how many are busy


def test_a_killed_child_is_busy_until_its_end_is_known(with_children):
    slots = with_children(processes=1, children=2)
    send(slots, 1)
    slots.get(1).kill("a test")
    assert slots.busy == 1
    slots.get(1).answered(0.0)
    assert slots.busy == 0


# fewer


def test_the_youngest_idle_children_are_surplus(with_children):
    slots = with_children(processes=4)
    send(slots, 1)
    slots.resize(2)
    surplus, coming = slots.surplus()
    assert ([child.number for child in surplus], coming) == ([4, 3], 0)
    slots.resize(4)
    assert slots.surplus() == ([], 0)


def test_a_child_being_forked_becomes_surplus_when_ready(with_children, new_child):
    slots = with_children(processes=2, jobs_per_child=1, children=1)
    send(slots, 1)  # its last job: it needs a successor
    for number in (2, 3):
        slots.add(new_child(number))
    slots.get(3).state = ChildState.SPAWNING
    assert slots.surplus() == ([], 0)
    slots.resize(1)
    assert slots.surplus() == ([], 1)
    slots.get(3).state = ChildState.IDLE
    assert [child.number for child in slots.surplus()[0]] == [3]


def test_surplus_children_that_end_slowly_block_no_successor(with_children):
    slots = with_children(processes=12, jobs_per_child=1)
    for number in range(1, 13):
        send(slots, number)
    slots.resize(1)
    assert slots.missing() == 1
    for number in range(1, 13):
        end(slots, number, ChildState.LEAVING)
    assert slots.missing() == 1
    for number in range(4, 13):
        slots.remove(slots.get(number))
    assert slots.missing() == 1
    slots.resize(12)
    assert slots.missing() == 12
