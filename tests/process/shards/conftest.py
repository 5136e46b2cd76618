"""Fixtures of namespaces of several shards."""

import pytest
from divided import Shards


@pytest.fixture
def undivided(stage) -> Shards:
    """The stage's namespace, which has no job yet."""
    return Shards(stage, lambda _shard: stage.server.redis)


@pytest.fixture
def shards(undivided) -> Shards:
    """The stage's namespace, divided into shards."""
    return undivided.divide()
