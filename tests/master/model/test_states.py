"""Every move that is in the tables is legal, every other one is a bug and says so."""

import itertools

import pytest

from supervisor.master.model.states import (
    CHILD_MOVES,
    PHASE_MOVES,
    ZYGOTE_MOVES,
    ChildState,
    IllegalMove,
    Phase,
    ZygoteState,
    move,
)
from tests.parts import held_of

TABLES = [
    (PHASE_MOVES, Phase, Phase.SERVING, Phase.STOPPED),
    (ZYGOTE_MOVES, ZygoteState, ZygoteState.BOOTING, ZygoteState.GONE),
    (CHILD_MOVES, ChildState, ChildState.SPAWNING, ChildState.GONE),
]


@pytest.mark.parametrize(("moves", "states", "first", "last"), TABLES, ids=["phases", "zygotes", "children"])
def test_the_tables_allow_what_they_list_and_nothing_else(moves, states, first, last):
    assert set(moves) == set(states)
    for old, new in itertools.product(states, states):
        if new in moves[old]:
            assert move(moves, old, new) is new
        else:
            with pytest.raises(IllegalMove, match=f"{old.value} -> {new.value}"):
                move(moves, old, new)


@pytest.mark.parametrize(("moves", "states", "first", "last"), TABLES, ids=["phases", "zygotes", "children"])
def test_every_state_can_be_reached_from_the_first_and_the_last_one_from_every_state(moves, states, first, last):
    def reached(start):
        found, new = {start}, [start]
        while new:
            fresh = moves[new.pop()] - found
            found |= fresh
            new += fresh
        return found

    assert reached(first) == set(states)
    assert all(last in reached(state) for state in states)
    assert moves[last] == set()


def test_a_child_makes_the_moves_of_its_life(new_child):
    child = new_child()
    child.send(held_of(1))
    assert child.state is ChildState.BUSY
    child.take_back()
    assert child.state is ChildState.IDLE
    child.kill("a test")
    assert child.state is ChildState.DOOMED
    child.kill("again")
    with pytest.raises(IllegalMove):
        child.become(ChildState.IDLE)
    child.close_child_ends()
    child.close()
    assert child.state is ChildState.GONE


def test_a_child_that_is_killed_or_leaving_is_sent_nothing(new_child):
    child = new_child()
    child.kill("a test")
    with pytest.raises(IllegalMove):
        child.send(held_of(1))
