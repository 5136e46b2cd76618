"""A worker on the real engine whose turns are played by the test."""

import pytest

from tests.engine.played import PlayedWorker


@pytest.fixture
def worker(server, namespace):
    played = PlayedWorker(server.url, namespace).start()
    yield played
    played.close()
