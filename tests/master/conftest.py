"""Parts of the master that its tests share, and real processes at the other ends of its sockets."""

from collections.abc import Callable, Iterator

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.master.model.child_handle import ChildHandle
from supervisor.master.model.states import ChildState
from tests.master.played import PlayedMaster
from tests.parts import Behaviour, Desk, holding


@pytest.fixture
def desk(tmp_path) -> Iterator[Callable[..., Desk]]:
    """Make the deciding half of a master. Its children are ended with the test."""
    made: list[Desk] = []

    def make(**flags: str) -> Desk:
        made.append(Desk(tmp_path / f"events-{len(made)}", flags))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def new_child() -> Iterator[Callable[..., ChildHandle]]:
    """Make an idle child without a process at its other ends."""
    made: list[ChildHandle] = []

    def make(number: int = 1, on_line: Callable[[ChildHandle, int, bytes], None] = lambda *_said: None) -> ChildHandle:
        child = ChildHandle(number, 1, on_line, lambda *_planned: None)
        child.become(ChildState.IDLE)
        made.append(child)
        return child

    yield make
    for child in made:
        if child.state is not ChildState.GONE:
            child.close_child_ends()
            child.close()


@pytest.fixture
def played(desk, server, namespace) -> Iterator[Callable[..., PlayedMaster]]:
    """Start a master with its children, as a rule one: `played(behaviour of the children, **flags of the desk)`."""
    made: list[PlayedMaster] = []

    def start(
        behave: Behaviour = holding, idle_s: float = 0.0, is_started: bool = True, processes: int = 1, **flags: str
    ) -> PlayedMaster:
        each = desk(processes=str(processes), **flags)
        for _ in range(processes):
            each.child(behave)
        made.append(PlayedMaster(each, server.url, namespace, idle_s=idle_s))
        return made[-1].start() if is_started else made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def live(server, namespace) -> Iterator[Client]:
    with Client(server.url, namespace) as client:
        yield client
