"""Every move in the tables is legal, and every other one raises."""

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
def test_tables_allow_only_listed_moves(moves, states, first, last):
    assert set(moves) == set(states)
    for old, new in itertools.product(states, states):
        if new in moves[old]:
            assert move(moves, old, new) is new
        else:
            with pytest.raises(IllegalMove, match=f"{old.value} -> {new.value}"):
                move(moves, old, new)


@pytest.mark.parametrize(("moves", "states", "first", "last"), TABLES, ids=["phases", "zygotes", "children"])
def test_all_states_are_on_a_way_from_first_to_last(moves, states, first, last):
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


def test_child_makes_the_moves_of_its_life(new_child):
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


def test_killed_or_leaving_child_is_sent_no_job(new_child):
    child = new_child()
    child.kill("a test")
    with pytest.raises(IllegalMove):
        child.send(held_of(1))
