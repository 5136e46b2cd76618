"""Fixtures for tests of one child's sockets, and of the ledger."""

import os

import pytest

from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.states import ChildState
from tests.parts import Ends, Process, held_of


@pytest.fixture
def process():
    """Makes processes at the other ends of a child's sockets; killed at the end."""
    made = []

    def make(child, behave):
        made.append(Process(lambda: behave(Ends(child))))
        child.close_child_ends()
        child.spawned(made[-1].pid, os.dup(made[-1].pidfd))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def child():
    child = ChildHandle(1, 1, lambda *_said: None, lambda *_planned: None)
    child.become(ChildState.IDLE)
    yield child
    if child.state is not ChildState.GONE:
        child.close()


@pytest.fixture
def ledgers():
    return Ledgers()


@pytest.fixture
def ledger(ledgers):
    return ledgers.by_shard[0]


def add(ledger, *tokens):
    made = [held_of(token) for token in tokens]
    for held in made:
        ledger.add(held)
    return made
