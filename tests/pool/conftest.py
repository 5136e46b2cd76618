"""What the pool's tests share: parts of a master, and real processes at the other ends of its sockets."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own module is found, whatever the import mode

pytest.register_assert_rewrite("parts")

from parts import Desk  # noqa: E402  found by the line above

from supervisor.pool.children import Child  # noqa: E402
from supervisor.pool.states import ChildState  # noqa: E402


@pytest.fixture
def desk(tmp_path) -> Iterator[Callable[..., Desk]]:
    """Makes the deciding half of a master. Its children are ended with the test."""
    made: list[Desk] = []

    def make(**flags: str) -> Desk:
        made.append(Desk(tmp_path / f"events-{len(made)}", flags))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def new_child() -> Iterator[Callable[..., Child]]:
    """Makes a child that is idle, with nobody at its other ends."""
    made: list[Child] = []

    def make(number: int = 1, on_line: Callable[[Child, int, bytes], None] = lambda *_said: None) -> Child:
        child = Child(number, 1, on_line)
        child.become(ChildState.IDLE)
        made.append(child)
        return child

    yield make
    for child in made:
        if child.state is not ChildState.GONE:
            child.close_theirs()
            child.close()
