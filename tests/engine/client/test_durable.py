"""Durable puts return once replicas have them, and say what is known if not."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor import AsyncClient, Client, OutcomeUnknown
from tests import sentinels

NAMESPACE = "durable"


@pytest.fixture(scope="module")
def group(tmp_path_factory) -> Iterator[sentinels.Group]:
    with sentinels.group(tmp_path_factory.mktemp("s"), replicas=1) as made:
        yield made


class Puts:
    """Calls of a client of either kind."""

    def __init__(self, kind: type, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = kind(url, NAMESPACE, **options)

    def __getattr__(self, name: str) -> Any:
        return lambda *words, **options: self._done(getattr(self._client.queue("q"), name)(*words, **options))

    def lane(self, name: str, *words: Any, **options: Any) -> Any:
        return self._done(getattr(self._client.queue("q").lane("l"), name)(*words, **options))

    def close(self) -> None:
        self._done(self._client.close())
        self._loop.close()

    def _done(self, answer: Any) -> Any:
        return self._loop.run_until_complete(answer) if asyncio.iscoroutine(answer) else answer


@pytest.fixture(params=[Client, AsyncClient])
def puts(request, group) -> Iterator[Any]:
    made: list[Puts] = []

    def start(**options: Any) -> Puts:
        made.append(Puts(request.param, group.url, **options))
        return made[-1]

    group.redis.flushall()
    group.redis.script_flush()
    group.redis.wait(1, 5000)
    yield start
    for each in made:
        each.close()


def is_copied(group, jid):
    """Return whether a replica has the job, without waiting."""
    with group.replica().redis as connection:
        return any(jid.encode() in key for key in connection.scan_iter("*", count=1000))


def test_durable_puts_are_on_the_replica_at_their_return(puts, group):
    client = puts()
    jids = [
        client.put("k", durable=True), *client.put_many([{"klass": "k"}, {"klass": "k"}], durable=True),
        client.lane("put", "k", durable=True), *client.lane("put_many", [{"klass": "k"}], durable=True),
    ]  # fmt: skip
    assert client.add("k", jid="added", durable=True) is True
    assert client.add("k", jid="added", durable=True) is False
    assert all(is_copied(group, jid) for jid in [*jids, "added"])
    assert client.length() == 6


@pytest.mark.parametrize("how", ["durable", "acknowledge"])
def test_put_without_its_replica_is_unknown_and_stands(puts, group, how):
    client = puts(acknowledge=2) if how == "acknowledge" else puts()
    options = {} if how == "acknowledge" else {"durable": True}
    replica = group.replica()
    client.put("k", jid="before", durable=False) if how == "durable" else None
    replica.send(signal.SIGSTOP)
    try:
        wanted = 2 if how == "acknowledge" else 1
        with pytest.raises(
            OutcomeUnknown, match=rf"which {wanted} of its replicas must acknowledge: 0 have within 1 s"
        ):
            client.put("k", jid="one", **options)
        with pytest.raises(OutcomeUnknown) as raised:
            client.put_many(
                [{"klass": "k", "jid": str(n), "tags": [f"t{i}" for i in range(80)]} for n in range(40)], **options
            )
    finally:
        replica.send(signal.SIGCONT)
    assert raised.value.jobs.put == []
    assert len(raised.value.jobs.unknown) == len(raised.value.jobs.not_put) + 8
    assert client.counts().waiting == (2 if how == "durable" else 1) + 24


@pytest.mark.parametrize("way", ["add", "unique"])
def test_job_that_another_client_has_put_is_waited_for_too(puts, group, way):
    """The call itself writes nothing."""
    options = {"jid": "a"} if way == "add" else {"unique": "key"}
    client = puts()
    client.put("k", **options, durable=True)
    group.redis.flushall()
    replica = group.replica()
    replica.send(signal.SIGSTOP)
    try:
        jid = puts().put("k", **options)
        with pytest.raises(OutcomeUnknown, match="0 have within 1 s"):
            getattr(client, "add" if way == "add" else "put")("k", **options, durable=True)
    finally:
        replica.send(signal.SIGCONT)
    answer = getattr(client, "add" if way == "add" else "put")("k", **options, durable=True)
    assert answer == (False if way == "add" else jid)
    assert is_copied(group, jid)


def test_durable_puts_wait_as_is_configured(puts, group):
    with Client(group.url, NAMESPACE) as operator:
        operator.config.set("acknowledge", 2)
        operator.config.set("acknowledge-timeout", "50ms")
    with pytest.raises(OutcomeUnknown, match=r"which 2 of its replicas must acknowledge: 1 have within 0\.05 s"):
        puts().put("k", durable=True)
    assert puts().put("k")
    assert puts(acknowledge=1).put("k", durable=True)


def test_client_that_acknowledges_does_so_for_each_put(puts, group):
    client = puts(acknowledge=1)
    assert is_copied(group, client.put("k"))
    assert all(is_copied(group, jid) for jid in client.put_many({"klass": "k"} for _ in range(3)))


def test_refused_puts_keep_their_errors(puts):
    client = puts()
    with pytest.raises(TypeError, match="durable must be a bool, not str: 'yes'"):
        client.put("k", durable="yes")
    with pytest.raises(ValueError, match="retries"):
        client.put("k", retries=-1, durable=True)
    with pytest.raises(ValueError, match="acknowledge must be"):
        puts(acknowledge=-1)
    assert client.length() == 0
