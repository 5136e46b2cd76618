"""Promises of both clients beyond the verbs: bad input is refused before sending, and nothing is sent twice."""

import asyncio
import inspect
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio

from supervisor.engine.client import answers
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.async_handles import AsyncJob, AsyncLease
from supervisor.engine.client.async_queues import AsyncLane, AsyncQueue
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Job, Lease
from supervisor.engine.client.sync_queues import Lane, Queue
from supervisor.engine.commands import leasing, mailbox, recurrences, settling
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LeaseholdError, LeaseLost, OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.outcomes import ENDLESS, Completed, Died, Failed, Released, Retried, Returned
from supervisor.engine.model.scripts import check_server
from tests.between import Between

NAN, INF = float("nan"), float("inf")


def bad_names(argument, call, most_bytes=64):
    for value in (None, 7, b"bytes", True):
        yield argument, TypeError, call, value
    for value in ("", "x" * (most_bytes + 1), "é" * (most_bytes // 2 + 1), "a\x00b", "a\nb", "\x7f", "\x85", "\ud800"):
        yield argument, ValueError, call, value


def bad_seconds(argument, call, least=0):
    for value in (None, True, b"1", [1]):
        yield argument, TypeError, call, value
    for value in (NAN, INF, -INF, 1e300, 10**400, *([-0.001, -1] if least == 0 else [])):
        yield argument, ValueError, call, value


def bad_ints(argument, call, least=None):
    for value in ("1", None, True, 1.0, NAN, b"1"):
        yield argument, TypeError, call, value
    for value in (2**60, -(2**60), *([least - 1] if least is not None else [])):
        yield argument, ValueError, call, value


def table():
    """argument, error, call(client, its lease, value), value"""
    yield from bad_names("klass", lambda c, _, v: c.queue("q").put(v))
    yield from bad_names("klass", lambda c, _, v: c.queue("q").add(v))
    yield from bad_names("queue", lambda c, _, v: c.queue(v))
    yield from bad_names("jid", lambda c, _, v: c.queue("q").put("k", jid=v))
    yield from bad_names("jid", lambda c, _, v: c.job(v))
    yield from bad_names("jid", lambda c, _, v: c.jobs("x", v))
    yield from bad_names("worker", lambda c, _, v: c.queue("q").lease(v))
    yield from bad_names("worker", lambda c, _, v: c.deregister(v))
    yield from bad_names("queues", lambda c, _, v: c.lease("w", ["q", v]))
    yield from (row for row in bad_names("group", lambda c, _, v: c.failed(v), 80) if row[3] is not None)
    yield from bad_names("group", lambda c, lease, v: lease.fail(v, "m"))
    yield from (row for row in bad_names("group", lambda c, lease, v: lease.retry(group=v)) if row[3] is not None)
    yield from bad_seconds("delay", lambda c, _, v: c.queue("q").put("k", delay=v))
    yield from bad_seconds("at", lambda c, _, v: c.queue("q").put("k", at=v))
    yield from bad_seconds("timeout", lambda c, _, v: c.queue("q").put("k", timeout=v))
    yield from bad_seconds("block", lambda c, _, v: c.queue("q").lease("w", block=v))
    yield from (
        row
        for row in bad_seconds("ttl", lambda c, _, v: c.queue("q").lease("w", ttl=v), least=None)
        if row[3] is not None
    )
    yield from (row for row in bad_seconds("delay", lambda c, lease, v: lease.retry(delay=v)) if row[3] is not None)
    yield from bad_ints("priority", lambda c, _, v: c.queue("q").put("k", priority=v))
    yield from bad_ints("retries", lambda c, _, v: c.queue("q").put("k", retries=v), least=0)
    yield from bad_ints("max_deaths", lambda c, _, v: c.queue("q").put("k", max_deaths=v), least=0)
    yield from bad_ints("count", lambda c, _, v: c.queue("q").lease("w", v), least=0)
    yield from bad_ints("count", lambda c, _, v: c.sweep(v), least=1)
    yield from bad_ints("start", lambda c, _, v: c.failed("g", start=v), least=0)
    yield from bad_ints("limit", lambda c, _, v: c.failed("g", limit=v), least=0)
    for data in (object(), {1, 2}, {1: 2}, 1j, lambda: 0, [b"nested"], "\ud800", 2**70):
        yield "data", TypeError, lambda c, _, v: c.queue("q").put("k", v), data
        yield "data", TypeError, lambda c, lease, v: lease.renew(v), data
        yield "result", TypeError, lambda c, lease, v: lease.complete(v), data
    yield "result", ValueError, lambda c, lease, v: lease.complete(v), "x" * 65_536
    for option in ("prio", "ttl", "tags"):
        yield option, TypeError, lambda c, _, v: c.queue("q").put("k", **{v: 1}), option
        yield option, TypeError, lambda c, _, v: c.queue("q").put_many([{"klass": "k", v: 1}]), option
    yield "delay", ValueError, lambda c, _, v: c.queue("q").put("k", delay=1, at=v), 5
    for job in (7, "k", None, [("klass", "k")]):
        yield "jobs", TypeError, lambda c, _, v: c.queue("q").put_many([{"klass": "k"}, v]), job
    yield "klass", TypeError, lambda c, _, v: c.queue("q").put_many([v]), {"data": 1}
    for queues in ("q", b"q"):
        yield "queues", TypeError, lambda c, _, v: c.lease("w", v), queues
    yield "queues", ValueError, lambda c, _, v: c.lease("w", v), []
    for message in (None, 7, b"m"):
        yield "message", TypeError, lambda c, lease, v: lease.fail("g", v), message
    yield "message", ValueError, lambda c, lease, v: lease.fail("g", v), "\ud800"
    for reason in ("", "killed", "sigkill", "exit", "exit-1234", "SIGKILL\n", "timeout "):
        yield "reason", ValueError, lambda c, lease, v: lease.died(v), reason
    yield "reason", TypeError, lambda c, lease, v: lease.died(v), None
    for started in (None, 1, "yes"):
        yield "started", TypeError, lambda c, lease, v: lease.release(v), started
    for outcome in (None, "complete", ("complete", "x")):
        yield "outcomes", TypeError, lambda c, _, v: c.settle([v]), outcome
    yield "outcomes", ValueError, lambda c, lease, v: c.settle([Completed(lease)] * v), 1_001
    yield "jids", ValueError, lambda c, _, v: c.jobs(*["x"] * v), 1_001


TABLE = list(table())


def name_of(row):
    return f"{row[0]}={row[3]!r:.20}".encode("ascii", "replace").decode()


@pytest.fixture(scope="module")
def bench(server) -> Iterator[tuple[Client, Lease, str]]:
    namespace = server.seen("bad-input")
    with Client(server.url, namespace, lambda: 1_000.0) as client:
        client.queue("q").put("k", jid="x")
        client.queue("q").put("k", jid="y")
        yield client, client.queue("q").lease("w")[0], namespace
    server.redis.delete(*server.dump(namespace))


@pytest.mark.parametrize("row", TABLE, ids=map(name_of, TABLE))
def test_bad_input_is_named_and_changes_nothing(server, bench, row):
    argument, error, call, value = row
    client, lease, namespace = bench
    before = server.dump(namespace)
    with pytest.raises(error, match=argument):
        call(client, lease, value)
    assert server.dump(namespace) == before


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"url": 7}, TypeError, "url"),
        ({"url": "http://x"}, ValueError, "url"),
        ({"url": "redis://localhost", "namespace": ""}, ValueError, "namespace"),
        ({"url": "redis://localhost", "namespace": "a{b}"}, ValueError, "namespace"),
        ({"url": "redis://localhost", "namespace": 3}, TypeError, "namespace"),
        ({"url": "redis://localhost", "clock": 3}, TypeError, "clock"),
        ({"redis": 3}, TypeError, "redis"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_names_its_wrong_argument(kind, arguments, error, name):
    with pytest.raises(error, match=name):
        kind(**arguments)


def test_more_than_256_mb_of_data_are_refused(bench):
    client, _, _ = bench
    too_much = memoryview(bytearray(256 * 1024 * 1024 + 1))
    with pytest.raises(ValueError, match="data must have at most 268435456 bytes"):
        client.queue("q").put("k", too_much)


def test_fifty_megabytes_work(live):
    data = b"\x00\xff" * 25_000_000
    live.queue("q").put("k", data)
    assert live.queue("q").lease("w")[0].raw == data


def test_put_many_splits_what_is_too_much_for_one_call(live, monkeypatch):
    monkeypatch.setattr(answers, "DATA_BYTES", 1_000)
    live.queue("q").put_many({"klass": "k", "data": b"x" * 400, "jid": str(i)} for i in range(7))
    assert [lease.jid for lease in live.queue("q").lease("w", 10)] == list("0123456")


# The connection.


def test_an_unreachable_server_is_said_in_one_sentence_without_the_password():
    with Client("redis://:secret@127.0.0.1:1/0") as client, pytest.raises(StoreUnavailable) as caught:
        client.queue("q").put("k")
    assert "redis://:***@127.0.0.1:1/0" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, LeaseholdError)


@pytest.mark.parametrize(
    ("info", "name"),
    [
        (b"# Server\r\nredis_version:7.0.15\r\n", "redis 7.0.15"),
        (b"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n", "valkey 9.1.2"),
    ],
)
def test_a_server_new_enough_is_named(info, name):
    assert check_server(info) == name


def test_a_server_too_old_is_refused_in_one_sentence():
    with pytest.raises(StoreUnavailable, match=r"redis 6\.2\.14; Leasehold needs Redis >= 7\.0 or Valkey >= 7\.2$"):
        check_server(b"redis_version:6.2.14\r\n")


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (b"redis_version:7.4.0\r\ndragonfly_version:df-v1.39.0\r\n", "is Dragonfly df-v1.39.0, which refuses scripts"),
        (b"redis_version:7.4.3\r\ngarnet_version:1.0.99\r\n", "is Garnet 1.0.99, which refuses scripts"),
        (b"redis_version:6.3.4\r\n", "is redis 6.3.4"),
        (b"redis_version:unstable\r\n", "does not say which Redis it is like (redis_version: 'unstable')"),
        (b"\xff:\xfe\r\n", "does not say which Redis it is like (redis_version: '')"),
    ],
)
def test_servers_that_only_resemble_redis_are_refused_in_one_sentence(info, why):
    with pytest.raises(StoreUnavailable, match=rf"{re.escape(why)}.*needs Redis >= 7\.0 or Valkey >= 7\.2$"):
        check_server(info)


def test_refusal_by_redis_raises_our_error(live, server, namespace):
    server.redis.set(f"{{{namespace}}}:queue:q:waiting", "not ours")
    with pytest.raises(StoreUnavailable, match="refused put: WRONGTYPE"):
        live.queue("q").put("k")
    server.redis.delete(f"{{{namespace}}}:queue:q:waiting")


def test_scripts_that_the_server_has_forgotten_are_loaded_again(live, server):
    live.queue("q").put("k", jid="a")
    server.redis.script_flush()
    live.queue("q").put("k", jid="b")
    server.redis.script_flush()
    assert [lease.complete() for lease in live.queue("q").lease("w", 2)] == [True, True]


def test_async_client_reloads_forgotten_scripts(server, namespace):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            await client.queue("q").put("k", jid="a")
            server.redis.script_flush()
            await client.queue("q").put("k", jid="b")
            return [await lease.complete() for lease in await client.queue("q").lease("w", 2)]

    assert asyncio.run(main()) == [True, True]


def test_a_given_connection_is_used_without_its_retries_and_never_closed(server, namespace):
    with redis.Redis(unix_socket_path=str(server.socket), decode_responses=True) as given:
        given.ping()
        with Client(namespace=namespace, redis=given) as client:
            client.queue("q").put("k", b"\xff", jid="x")
            assert client.queue("q").lease("w")[0].data == b"\xff"
            arguments = client._store.first._pool.connection_kwargs
            assert (arguments["retry"]._retries, arguments["protocol"]) == (0, 2)
        assert given.ping() is True
        assert given.connection_pool.connection_kwargs["decode_responses"] is True


def test_a_given_async_connection_is_used_and_never_closed(server, namespace):
    async def main():
        async with redis.asyncio.Redis(unix_socket_path=str(server.socket), decode_responses=True) as given:
            async with AsyncClient(namespace=namespace, redis=given) as client:
                await client.queue("q").put("k", b"\xff")
                assert (await client.queue("q").lease("w"))[0].data == b"\xff"
            assert await given.ping() is True

    asyncio.run(main())


def test_an_acl_needs_only_the_keys_of_the_namespace_and_not_info(server, namespace):
    server.redis.execute_command(
        "ACL", "SETUSER", "app", "on", ">secret", f"~{{{namespace}}}:*", "+@all", "-@dangerous"
    )
    try:
        with Client(server.url_with("app", "secret"), namespace) as client:
            client.queue("q").put("k")
            assert client.queue("q").lease("w", 2)[0].retry(delay=0.01) == 4
            assert client.queue("q").lease("w", block=5)[0].complete("r")
        with Client(server.url_with("app", "secret"), "another") as client, pytest.raises(StoreUnavailable):
            client.queue("q").put("k")
    finally:
        server.redis.acl_deluser("app")


def test_the_environment_names_server_and_namespace(server, namespace, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    with Client() as client:
        client.queue("q").put("k")
    assert server.dump(namespace)


class Dropping(Between):
    """Instead of the next reply to an EVALSHA, when armed, it hangs up."""

    armed = False
    evalshas = 0

    def request(self, far: socket.socket, data: bytes) -> bool:
        self.evalshas += data.count(b"EVALSHA")
        return super().request(far, data)

    def reply(self, near: socket.socket, data: bytes) -> bool:
        if self.armed:
            self.armed = False
            return False
        return super().reply(near, data)


@pytest.fixture
def proxy(server, tmp_path_factory) -> Iterator[Dropping]:
    dropping = Dropping(tmp_path_factory.mktemp("p") / "proxy", server.socket)
    yield dropping
    dropping.close()


LOSSES = {
    "put": lambda q, lease: q.put("k"),
    "lease": lambda q, lease: q.lease("w"),
    "complete": lambda q, lease: lease.complete(),
    "renew": lambda q, lease: lease.renew(),
}


@pytest.mark.parametrize("verb", LOSSES)
def test_a_lost_answer_is_an_unknown_outcome_and_is_never_sent_again(server, namespace, proxy, verb):
    with Client(f"unix://{proxy.path}", namespace) as client:
        client.queue("q").put_many({"klass": "k"} for _ in range(5))
        (lease,) = client.queue("q").lease("w")
        client.queue("q").lease("w", 0)  # all scripts are loaded
        lease.renew()
        server.redis.script_load(scripts.SETTLE.text)
        sent = proxy.evalshas
        proxy.armed = True
        with pytest.raises(OutcomeUnknown, match="unknown"):
            LOSSES[verb](client.queue("q"), lease)
        assert proxy.evalshas == sent + 1
        counts = client.queue("q").counts()
        done = {"put": (5, 1), "lease": (3, 2), "complete": (4, 0), "renew": (4, 1)}
        assert (counts.waiting, counts.running) == done[verb]


@pytest.mark.parametrize("verb", LOSSES)
def test_a_lost_answer_is_an_unknown_outcome_for_the_async_client_too(server, namespace, proxy, verb):
    async def main():
        async with AsyncClient(f"unix://{proxy.path}", namespace) as client:
            await client.queue("q").put_many({"klass": "k"} for _ in range(5))
            (lease,) = await client.queue("q").lease("w")
            await lease.renew()
            server.redis.script_load(scripts.SETTLE.text)
            sent = proxy.evalshas
            proxy.armed = True
            with pytest.raises(OutcomeUnknown, match="unknown"):
                await LOSSES[verb](client.queue("q"), lease)
            assert proxy.evalshas == sent + 1

    asyncio.run(main())


def test_a_lost_answer_of_a_look_is_only_an_unavailable_store(server, namespace, proxy):
    with Client(f"unix://{proxy.path}", namespace) as client:
        client.queues()
        proxy.armed = True
        with pytest.raises(StoreUnavailable, match="try again"):
            client.queues()
        assert client.queues() == {}


# Connections that are kept between calls.


def numbers_of_connections(server, namespace):
    """Return the ids of the connections of this name."""
    return [c["id"] for c in server.redis.client_list() if c["name"] == namespace]


@pytest.fixture
def named(server, namespace) -> Iterator[Client]:
    with Client(server.url_with(client_name=namespace), namespace) as client:
        yield client


def test_calls_one_after_another_use_one_connection(named, server, namespace):
    named.queue("q").put("k")
    (first,) = numbers_of_connections(server, namespace)
    for _ in range(5):
        named.queue("q").put("k")
        named.queue("q").lease("w", block=0.001)
    assert numbers_of_connections(server, namespace) == [first]


def test_calls_of_many_threads_at_once_get_their_own_answers(named):
    q = named.queue("q")
    with ThreadPoolExecutor(8) as threads:
        jids = list(threads.map(lambda n: q.put("k", n, jid=f"j{n}"), range(400)))
        found = list(threads.map(named.job, jids))
    assert [job.data for job in found] == list(range(400))


def test_connection_closed_by_the_server_is_remade_without_loss(named, server, namespace):
    named.queue("q").put("k", jid="a")
    for number in numbers_of_connections(server, namespace):
        server.redis.client_kill_filter(_id=number)
    assert named.queue("q").put("k", jid="b") == "b"
    assert [job.jid for job in named.jobs("a", "b")] == ["a", "b"]


def test_unread_reply_of_an_interrupted_call_is_dropped(named, monkeypatch):
    """Ctrl-C may interrupt a call at any instruction, also between the command and its reply."""
    q = named.queue("q")
    q.put("k", jid="a")

    def interrupt(connection, command):
        connection.send_packed_command([b"*2\r\n$4\r\nECHO\r\n$5\r\nwrong\r\n"])
        assert connection.can_read(timeout=5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(named._store.first, "_ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            q.put("k", jid="b")
    assert q.put("k", jid="c") == "c"
    assert [job is None for job in named.jobs("a", "b", "c")] == [False, True, False]


def test_after_its_end_a_client_connects_again(named):
    named.queue("q").put("k", jid="a")
    named.close()
    assert named.queue("q").put("k", jid="b") == "b"


def test_a_call_that_is_interrupted_leaves_no_answer_to_the_next_one(server, namespace, monkeypatch):
    with Client(server.url, namespace) as client:
        queue = client.queue("q")
        queue.put("k", jid="first")

        def interrupted(_connection, *_given, **_more):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("redis.connection.AbstractConnection.read_response", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.put("k", jid="second")
        assert client.config.all()["heartbeat"] == 30
        assert queue.length() == 2


def test_a_fork_does_not_speak_on_its_parents_connection(server, namespace):
    program = """
import os, sys
from supervisor import Client
with Client(sys.argv[1], sys.argv[2]) as client:
    q = client.queue("q")
    q.put("k", jid="before")
    forks = []
    for fork in range(3):
        forks.append(os.fork())
        if not forks[-1]:
            ok = all(q.put("k", jid=f"{fork}-{n}") == f"{fork}-{n}" for n in range(200))
            os._exit(0 if ok else 1)
    assert all(q.put("k", jid=f"own-{n}") == f"own-{n}" for n in range(200))
    assert [os.waitpid(pid, 0)[1] for pid in forks] == [0, 0, 0]
    assert q.length() == 801
"""
    subprocess.run([sys.executable, "-c", program, server.url, namespace], check=True, timeout=60)


# Replies.


def test_a_put_of_what_is_unique_answers_its_holder(client):
    q = client.queue("q")
    assert q.put("k", {"n": 1}, jid="a", unique=True) == "a"
    assert q.put("k", {"n": 1}, jid="b", unique=True) == "a"
    assert q.add("k", {"n": 1}, jid="c", unique=True) is False
    assert q.put_many([
        {"klass": "k", "data": {"n": 1}, "unique": True, "jid": "d"},
        {"klass": "k", "data": {"n": 2}, "unique": True, "jid": "e"},
        {"klass": "k", "unique": "night", "jid": "f"},
        {"klass": "other", "unique": "night", "jid": "g"},
    ]) == ["a", "e", "f", "f"]  # fmt: skip
    assert [job is None for job in client.jobs("a", "b", "c", "d", "e", "f", "g")] == [
        False, True, True, True, False, False, True,
    ]  # fmt: skip


def test_a_persistent_job_is_not_completed_and_its_lease_goes_on(client):
    q = client.queue("q")
    q.put("k", jid="a", persistent=True)
    (lease,) = q.lease("w")
    for arguments in ({}, {"next": "other"}, {"data": 1}):
        with pytest.raises(LeaseholdError, match="job a is persistent and has no end"):
            lease.complete(**arguments)
    assert lease.renew() > 0
    assert client.settle([Completed(lease), Returned(lease), Returned(lease)]) == [ENDLESS, True, False]
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_job_is_unfailed_with_other_data_or_another_klass(client):
    q = client.queue("q")
    for jid in "abcd":
        q.put("k", {"n": 1}, jid=jid, retries=0)
        q.lease("w")[0].fail("g", "m")
    assert client.job("a").unfail() is True
    assert client.job("b").unfail("other", klass="new", data=b"\0") is True
    assert client.unfail("g", count=1, data={"n": 2}) == 1
    assert client.unfail("g", "other", klass="newer") == 1
    found = client.jobs("a", "b", "c", "d")
    assert [(job.state, job.queue, job.klass, job.data) for job in found] == [
        ("waiting", "q", "k", {"n": 1}), ("waiting", "other", "new", b"\0"),
        ("waiting", "q", "k", {"n": 2}), ("waiting", "other", "newer", {"n": 1}),
    ]  # fmt: skip
    assert client.job("a").unfail() is False
    assert client.failed() == {}


def test_a_request_to_serve_other_queues_is_stored_and_its_worker_is_told(client, server, namespace):
    calls_of(client).call(leasing.resume, "w", 1, [])
    assert calls_of(client).run(mailbox.serve_request("w")) == mailbox.ServeRequest(0, [], None)
    client.serve("w", ["high", " email-* ", "!email-bulk"])
    assert calls_of(client).run(mailbox.serve_request("w")) == mailbox.ServeRequest(
        1, ["high", "email-*", "!email-bulk"], None
    )
    client.serve("w", ["high:3", "low"], order="weighted")
    assert calls_of(client).run(mailbox.serve_request("w")) == mailbox.ServeRequest(2, ["high:3", "low"], "weighted")
    assert server.redis.lrange(f"{{{namespace}}}:mail:w", 0, -1) == [b"serve"]


def test_serve_request_to_an_unknown_worker_raises(client, server, namespace):
    with pytest.raises(LeaseholdError, match="there is no worker w"):
        client.serve("w", ["q"])
    assert server.dump(namespace) == {}


def test_a_blocking_lease_sees_within_a_second_what_another_program_pushes(live, server, namespace):
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(live.queue("q").lease, "w", block=30)
        while not any(b"cmd=blpop" in line for line in server.redis.execute_command("CLIENT", "LIST").split(b"\n")):
            pass
        server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k", "data": [1]}')
        (lease,) = waiter.result(15)
    assert lease.data == [1]


# Both clients alike.


#: Methods of async clients that return without a round trip.
AT_ONCE = ("queue", "lane", "events", "stream", "around_put", "batch", "acting_as")
TWINS = [(Client, AsyncClient), (Queue, AsyncQueue), (Lane, AsyncLane), (Lease, AsyncLease), (Job, AsyncJob)]


@pytest.mark.parametrize(("sync", "other"), TWINS)
def test_the_async_classes_have_the_same_names_and_arguments(sync, other):
    def public(cls):
        found = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}
        return {name: member for name, member in found.items() if callable(member)}

    assert public(sync).keys() == public(other).keys()
    for name, method in public(sync).items():
        twin = public(other)[name]
        assert list(inspect.signature(method).parameters.values()) == list(inspect.signature(twin).parameters.values())
        assert inspect.iscoroutinefunction(twin) or name in AT_ONCE


def test_the_async_client_does_what_the_sync_one_does(server, namespace, clock):
    async def main():
        async with AsyncClient(server.url, namespace, clock) as client:
            q = client.queue("q")
            assert await q.add("k", 1, jid="a") is True
            assert await q.add("k", 1, jid="a") is False
            await q.put("k", {"n": 2}, jid="b")
            assert await q.put_many([{"klass": "k", "jid": c} for c in "cde"]) == ["c", "d", "e"]
            assert await q.length() == 5
            a, b, c, d, e = await q.lease("w", 5)
            assert (b.data, await b.renew({"n": 3})) == ({"n": 2}, clock.now + 30)
            assert await a.complete({"r": 1}) is True
            assert await b.retry() == 4
            assert await c.fail("g", "m") is True
            assert await d.release() is True
            assert await e.died("SIGKILL") == "waiting"
            with pytest.raises(LeaseLost):
                await e.renew()
            assert (await client.job("a")).result == {"r": 1}
            assert [job.jid for job in (await client.failed("g"))[1]] == ["c"]
            assert await client.failed() == {"g": 1}
            leases = await client.lease("w", ["p", "q"], 3)
            outcomes = [Completed(leases[0]), Retried(leases[1]), Failed(leases[2], "h", "m")]
            assert await client.settle(outcomes) == [True, 4, True]
            assert await client.settle([Released(leases[0]), Died(leases[1], "oom")]) == [False, None]
            assert await client.sweep() == 0
            await q.lease("w")
            assert await client.deregister("w") == 1
            assert list(await client.queues()) == ["q"]
            assert (await q.counts()).waiting == 1
            assert await client.queue("empty").lease("w", block=0.02) == []
            assert await q.put("k", jid="u", unique="key") == await q.put("k", jid="v", unique="key") == "u"
            await calls_of(client).call(leasing.resume, "master", 1, [])
            await client.serve("master", ["q"])
            assert (await calls_of(client).run(mailbox.serve_request("master"))).queues == ["q"]
            assert await (await client.job("c")).unfail(data=5) is True
            assert (await client.job("c")).data == 5

    asyncio.run(main())


def test_an_async_blocking_lease_wakes_for_a_put(server, namespace):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            waiter = asyncio.create_task(client.queue("q").lease("w", block=20))
            while not any(b"blpop" in line for line in server.redis.execute_command("CLIENT", "LIST").split(b"\n")):
                await asyncio.sleep(0)
            await client.queue("q").put("k", jid="x")
            return [lease.jid for lease in await waiter]

    assert asyncio.run(main()) == ["x"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_leases_are_returned_when_a_due_cron_job_cannot_be_put(
    server, namespace, client, clock, monkeypatch, caplog, kind
):
    def refuse(*_args, **_options):
        raise StoreUnavailable("failover")

    async def lease_async():
        async with AsyncClient(server.url, namespace, clock) as other:
            return [lease.jid for lease in await other.lease("w", ["q"])]

    def lease():
        return asyncio.run(lease_async()) if kind == "async" else [one.jid for one in client.lease("w", ["q"])]

    client.queue("q").recur("k", cron="* * * * *", jid="r")
    client.queue("q").put("k", jid="waiting", priority=1)
    clock.tick(60)
    with monkeypatch.context() as failing:
        failing.setattr(recurrences, "spawn", refuse)
        assert lease() == ["waiting"]
        assert "a due cron job was not put, and is left to the next lease or sweep: failover" in caplog.text
        with pytest.raises(StoreUnavailable, match="failover"):
            lease()
    assert lease() == ["r-1"]


@pytest.mark.parametrize("is_away", [False, True])
def test_cancelled_lease_hands_back_its_jobs(server, namespace, client, clock, monkeypatch, caplog, is_away):
    def away(*_args, **_options):
        raise StoreUnavailable("failover")

    async def main():
        async with AsyncClient(server.url, namespace, clock) as other:
            spawning = asyncio.Event()

            async def hang(_calls, _due, _now_unix):
                if is_away:
                    monkeypatch.setattr(settling, "settle_in_parts", away)
                spawning.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(AsyncCalls, "spawn", hang)
            leasing = asyncio.create_task(other.lease("w", ["q"], 2))
            await spawning.wait()
            leasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leasing

    for jid in "ab":
        client.queue("q").put("k", jid=jid, at_most_once=True)
    asyncio.run(main())
    states = [(job.state, job.interruptions) for job in client.jobs("a", "b")]
    assert states == [("running" if is_away else "waiting", 0)] * 2
    assert caplog.messages == ["2 jobs wait until their leases have expired: failover"] * is_away
