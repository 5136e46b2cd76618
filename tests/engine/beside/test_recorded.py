"""This engine answers random calls as the engine did whose replies were recorded.

After a wanted change: `python -m tests.engine.beside record .`. To see what differs: `play` and the tree before it.
"""

from pathlib import Path

import pytest

from tests.engine.beside.engines import engine_of
from tests.engine.beside.recorded import SEEDS, departure

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def engine():
    with engine_of(ROOT) as engine:
        yield engine


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_calls_are_answered_as_recorded(engine, seed):
    assert departure(engine, seed) is None
