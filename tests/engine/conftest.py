"""What the engine's tests share: a clock that moves when told, clients on it, and a look at each place after a test."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor.engine.client import Client


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
    assert misplaced(server.redis, namespace) == []


@pytest.fixture
def live(server, namespace) -> Iterator[Client]:
    """A client on the server's own clock."""
    with Client(server.url, namespace) as client:
        yield client
    assert misplaced(server.redis, namespace) == []


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


def misplaced(redis: Any, namespace: str) -> list[str]:
    """INV-1, seen from outside: what is not in exactly the place that its record says."""
    prefix = f"{{{namespace}}}:"
    found: Counter[tuple[str, str]] = Counter()
    for raw in redis.scan_iter(f"{prefix}*", count=1000):
        key = raw.decode()[len(prefix) :]
        part = key.rpartition(":")[2] if key.startswith("queue:") else key.partition(":")[0]
        if key.startswith("queue:") or part in ("failed", "complete", "held"):
            for member in redis.zrange(raw, 0, -1):
                jid = member.decode()[13 if part in ("waiting", "scheduled") else 0 :]
                found[key, jid] += 1
    wrong = []
    expected: Counter[tuple[str, str]] = Counter()
    for raw in redis.scan_iter(f"{prefix}job:*", count=1000):
        jid = raw.decode()[len(prefix) + 4 :]
        record = {k.decode(): v.decode() for k, v in redis.hgetall(raw).items()}
        for place in places(record):
            expected[place, jid] += 1
        if ("owner" in record) != (record.get("state") == "running"):
            wrong.append(f"{jid}: {record}")
        if not redis.exists(f"{prefix}data:{jid}"):
            wrong.append(f"{jid} has no data")
    wrong += [f"{jid} lies in {place}" for (place, jid) in (found - expected)]
    wrong += [f"{jid} is missing from {place}" for (place, jid) in (expected - found)]
    return wrong


def places(record: dict[str, str]) -> list[str]:
    """The keys in which a job of this record must lie."""
    state, queue = record.get("state"), record["queue"]
    if state == "running":
        return [f"queue:{queue}:running", f"held:{record['owner'].partition(':')[2]}"]
    if state == "failed":
        return ["failed", f"failed:{record['group']}"]
    if state == "complete":
        return ["complete"]
    if state == "scheduled":
        return [f"queue:{queue}:scheduled"]
    return [f"queue:{queue}:front" if "turn" in record else f"queue:{queue}:waiting"]
