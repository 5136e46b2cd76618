"""What the engine's tests share: a clock that moves when told, clients on it, and a look at each place after a test."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from supervisor.engine.client.sync_client import Client
from tests.engine.invariants import look, misplaced


class Clock:
    """Unix seconds that stand still until `tick`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server, namespace, clock) -> Iterator[Client]:
    """A client on the clock; after the test every job must lie in exactly the one place that its record says."""
    with Client(server.url, namespace, clock) as client:
        yield client
    assert misplaced(look(server.redis, namespace)) == []


@pytest.fixture
def live(server, namespace) -> Iterator[Client]:
    """A client on the server's own clock."""
    with Client(server.url, namespace) as client:
        yield client
    assert misplaced(look(server.redis, namespace)) == []


@pytest.fixture
def config(server, namespace) -> Callable[..., None]:
    """Sets options of the configuration: config(grace=1), config(**{"grace-q": 2})."""

    def set_options(**options: Any) -> None:
        server.redis.hset(f"{{{namespace}}}:config", mapping={k.replace("_", "-"): v for k, v in options.items()})

    return set_options


@pytest.fixture
def keys(server, namespace) -> Callable[[], set[str]]:
    """The names of the namespace's keys, without prefix."""

    def names() -> set[str]:
        return {key.decode().partition("}:")[2] for key in server.redis.scan_iter(f"{{{namespace}}}:*", count=1000)}

    return names


@pytest.fixture
def cpu_ms(server) -> Callable[[], AbstractContextManager[list[float]]]:
    """The server's processor time for some calls: `with cpu_ms() as used`, and used[0] afterwards."""

    def spent() -> float:
        cpu = server.redis.info("cpu")
        return 1000 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])

    @contextmanager
    def measure() -> Iterator[list[float]]:
        used: list[float] = []
        before = spent()
        yield used
        used.append(spent() - before)

    return measure
