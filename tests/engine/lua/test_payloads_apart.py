"""Large payloads are read behind the lease: a worker has the payload of its own lease, or no job."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.payloads import LeftOut
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import OutcomeUnknown
from supervisor.engine.model.outcomes import Completed
from tests.engine.lua.test_quick import only
from tests.lengths import SOON_S

LARGE = "x" * 100_000
SMALL = "small"


def between(command: Command[Any], act: Callable[[], object]) -> Command[Any]:
    """Return a lease that does something when it has its reply, and before it asks for payloads."""

    def left_out(prefix: str, reply: Any) -> LeftOut:
        act()
        assert command.left_out is not None
        return command.left_out(prefix, reply)

    return replace(command, left_out=left_out)


def lease(client: Client, act: Callable[[], object] = lambda: None, count: int = 9, **options: Any) -> leasing.Grant:
    return calls_of(client).run(between(leasing.lease("w", ["q"], count, now=calls_of(client).clock(), **options), act))


def jids(grant: leasing.Grant) -> list[str]:
    return [one.jid for one in grant.leases]


@pytest.fixture
def commands(server, monkeypatch):
    """The commands that leases have sent behind their replies."""
    sent: list[str] = []
    begin = LeftOut.__init__

    def init(self: LeftOut, *args: Any) -> None:
        begin(self, *args)
        sent.extend(words[0] for words in self.commands)

    monkeypatch.setattr(LeftOut, "__init__", init)
    return sent


# what a lease gives


@pytest.mark.parametrize("payload", [LARGE, b"\0\xff\r\n" * 30_000, {"ä": ["€", None] * 9_000}, "\U0001f600" * 20_000])
def test_large_payload_comes_unchanged(client, commands, payload):
    client.queue("q").put("k", payload, jid="a")
    (one,) = client.queue("q").lease("w")
    assert (one.data, one.is_bytes) == (payload, isinstance(payload, bytes))
    assert commands == ["MGET", "ZRANGEBYSCORE"]
    assert one.complete() is True


def test_async_client_reads_large_payloads(server, namespace, live):
    async def leased() -> list[Any]:
        async with AsyncClient(server.url, namespace) as client:
            await client.queue("q").put_many({"klass": "k", "data": data} for data in (LARGE, SMALL, b"y" * 50_000))
            return [one.data for one in await client.queue("q").lease("w", 9)]

    assert asyncio.run(leased()) == [LARGE, SMALL, b"y" * 50_000]


def test_jobs_keep_their_order_whatever_their_size(client, commands):
    sizes = [10, 70_000, 2_000, 0, 40_000, 100, 3_000]
    for i, size in enumerate(sizes):
        client.queue("q").put("k", "x" * size, jid=f"j{i}")
    leases = client.queue("q").lease("w", 9)
    assert [(one.jid, len(one.data)) for one in leases] == [(f"j{i}", size) for i, size in enumerate(sizes)]
    assert [one.token - leases[0].token for one in leases] == list(range(len(sizes)))
    assert len(commands) == 2
    assert client.settle([Completed(one) for one in leases]) == [True] * len(sizes)


def test_few_large_payloads_cost_no_second_round_trip(client, commands):
    client.queue("q").put_many({"klass": "k", "data": "x" * 10_000} for _ in range(3))
    assert [len(one.data) for one in client.queue("q").lease("w", 9)] == [10_000] * 3
    assert commands == []


def test_many_small_payloads_cost_no_second_round_trip(client, commands):
    client.queue("q").put_many({"klass": "k", "data": "x" * 1_000} for _ in range(500))
    assert len(client.queue("q").lease("w", 500)) == 500
    assert commands == []


def test_thousand_payloads_come_by_one_more_round_trip(client, commands):
    client.queue("q").put_many({"klass": "k", "data": f"{n:05}" + "x" * 1_000} for n in range(1_000))
    client.queue("q").put_many({"klass": "k", "data": f"{n:05}" + "x" * 3_000} for n in range(300))
    leases = []
    while more := client.queue("q").lease("w", 1_000):
        assert sum(len(one.raw) for one in more) <= 2**20
        leases += more
    assert [int(one.data[:5]) for one in leases] == [*range(1_000), *range(300)]


def test_entry_of_another_program_comes_whole(client, server, namespace, commands):
    for i in range(2):  # one is given by the lease that makes its job, the other by a later one
        entry = json.dumps({"klass": "k", "jid": f"e{i}", "data": ["€" * 20_000, i]})
        server.redis.lpush(f"{{{namespace}}}:in:q", entry)
    first = client.queue("q").lease("w")
    assert [one.data for one in first] == [["€" * 20_000, 0]]
    assert first[0].release()
    assert [one.data[1] for one in client.queue("q").lease("w", 2)] == [0, 1]
    assert commands == ["MGET", "ZRANGEBYSCORE"] * 2


def test_reply_at_its_size_limit_takes_the_quick_path(server, namespace, client):
    client.queue("q").put_many({"klass": "k", "data": "x" * 400_000, "jid": jid} for jid in "abcd")
    leased = client.queue("q").lease("warm up", 1)  # opens the day's statistics
    command = replace(leasing.lease("w", ["q", "r"], 9, now=calls_of(client).clock()), script=only(scripts.LEASE))
    grant = calls_of(client).run(command)
    assert (jids(grant), grant.next_at_unix) == (["b", "c"], calls_of(client).clock())  # there is more, and at once
    assert jids(lease(client)) == ["d"]
    assert leased[0].complete()


@pytest.mark.full
def test_payload_of_256_megabytes(client, server, namespace):
    data = b"\0" * (256 * 10**6)
    with Client(server.url_with(socket_timeout=SOON_S), namespace, calls_of(client).clock) as patient:
        queue = patient.queue("q")
        queue.put("k", data, jid="a")
        queue.put("k", SMALL, jid="b")
        (one,) = queue.lease("w", 9)
        assert one.data == data
        assert one.complete()


# what becomes of a job between its lease and its payload


def put_anew(client: Client) -> None:
    client.queue("q").put("another", "another" * 20_000, jid="a")


def put_elsewhere_with_small_data(client: Client) -> None:
    client.queue("r").put("another", SMALL, jid="a")


LOSSES = {
    "cancelled": lambda client: client.cancel("a"),
    "moved": lambda client: client.job("a").move("r"),
    "put anew": put_anew,
    "put elsewhere": put_elsewhere_with_small_data,
    "failed": lambda client: client.job("a").fail("g", "m"),
    "released": lambda client: client.job("a").release(),
}


@pytest.mark.parametrize("how", LOSSES)
def test_job_that_is_lost_before_its_payload_is_read_is_not_given(client, how):
    client.queue("q").put("k", LARGE, jid="a")
    client.queue("q").put("k", SMALL, jid="b")
    grant = lease(client, lambda: LOSSES[how](client), starting=1)
    assert (jids(grant), grant.unreadable) == (["b"], [])
    assert grant.starting == 0  # only the lost one counted as started
    assert grant.leases[0].data == SMALL
    job = client.job("a")
    assert job is None or (job.state != "running" and job.deaths == 0)
    assert client.settle([Completed(grant.leases[0])]) == [True]


def test_job_that_is_leased_anew_belongs_to_its_last_lease(client):
    client.queue("q").put("k", LARGE, jid="a")
    later = []

    def lose() -> None:
        assert client.job("a").release()
        later.extend(lease(client).leases)

    assert jids(lease(client, lose)) == []
    assert [one.data for one in later] == [LARGE]
    assert client.settle([Completed(later[0])]) == [True]


def test_at_most_once_job_lost_before_its_payload_has_not_started(client):
    client.queue("q").put("k", LARGE, jid="a", at_most_once=True)
    grant = lease(client, lambda: client.job("a").move("q"))
    assert jids(grant) == []
    assert (client.job("a").state, client.job("a").started) == ("waiting", False)
    (one,) = client.queue("q").lease("w")
    assert one.data == LARGE
    assert one.complete()


def test_job_without_its_payload_is_not_given(client, server, namespace):
    client.queue("q").put("k", LARGE, jid="a")
    client.queue("q").put("k", LARGE, jid="b")
    grant = lease(client, lambda: server.redis.delete(f"{{{namespace}}}:data:a"), starting=1)
    assert (jids(grant), grant.unreadable, grant.starting) == (["b"], ["a"], 0)
    assert len(client.check(repair=True)) == 1


# the connection


def test_lost_connection_before_the_payloads_is_an_unknown_outcome(server, namespace, live):
    live.queue("q").put("k", LARGE, jid="a")
    victim = Client(server.url, namespace)
    with victim, pytest.raises(OutcomeUnknown, match="The jobs are leased, and come back"):
        lease(victim, lambda: server.redis.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes"))
    assert live.job("a").state == "running"


def test_async_client_that_loses_its_connection_before_the_payloads(server, namespace, live):
    live.queue("q").put("k", LARGE, jid="a")

    def kill() -> None:
        server.redis.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")

    async def leased() -> None:
        async with AsyncClient(server.url, namespace) as client:
            await calls_of(client).run(between(leasing.lease("w", ["q"], 1), kill))

    with pytest.raises(OutcomeUnknown, match="The jobs are leased, and come back"):
        asyncio.run(leased())
    assert live.job("a").state == "running"


def test_client_that_may_not_read_says_so(server, namespace, live):
    live.queue("q").put("k", LARGE, jid="a")
    name = f"blind-{namespace}"
    server.redis.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", "-zrangebyscore")
    try:
        with Client(server.url_with(name, "secret"), namespace) as client:
            with pytest.raises(OutcomeUnknown, match="zrangebyscore"):
                client.queue("q").lease("w")
            assert client.job("a").state == "running"  # the connection goes on
    finally:
        server.redis.execute_command("ACL", "DELUSER", name)
