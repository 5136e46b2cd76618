"""Clients find their server by sentinels and by nodes of a Cluster, follow it, and read rotated passwords."""

import asyncio
import gc
import re
import signal
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest
import redis.asyncio.sentinel

from supervisor import AsyncClient, Client, LeaseholdError, OutcomeUnknown, StoreUnavailable, clock
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.client.connection import SOCKET_TIMEOUT_S
from supervisor.engine.commands import queue_counts
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.dialer import Dialer
from tests import clusters, sentinels, servers
from tests.engine.played_nodes import primary, slots
from tests.lengths import SOON_S

ROOT = Path(__file__).parents[3]
NAMESPACE = "jobs"


@pytest.fixture(params=["sync", "async"])
def put(request) -> Iterator[Callable[[str], str]]:
    """Put a job by a client of either kind, which is the same one for one URL."""
    loop, made = asyncio.new_event_loop(), {}

    def put_by(url: str) -> str:
        kind = Client if request.param == "sync" else AsyncClient
        client = made[url] = made.get(url) or kind(url, NAMESPACE)
        putting = client.queue("q").put("k")
        return putting if isinstance(putting, str) else loop.run_until_complete(putting)

    yield put_by
    for client in made.values():
        closing = client.close()
        if closing is not None:
            loop.run_until_complete(closing)
    loop.close()


def test_client_follows_sentinels_to_another_primary(put, tmp_path):
    with sentinels.group(tmp_path) as group:
        put(group.url)
        before = group.primary()
        before.redis.wait(2, 5000)
        before.kill()
        group.await_election(before)
        put(group.url)  # what its connections lead to is gone
        group.join(before)
        with Client(group.url, NAMESPACE) as client:
            assert client.queue("q").counts().waiting == 2
        demoted = group.fail_over()
        with pytest.raises(LeaseholdError):
            for _ in range(3):  # its connection was closed, or leads to a replica now
                put(f"redis://127.0.0.1:{demoted.port}")
        put(group.url)


def test_client_gives_up_a_primary_that_hangs_before_its_successor_is_old(put, tmp_path):
    with sentinels.group(tmp_path) as group:
        put(group.url)
        before = group.primary()
        before.redis.wait(2, 5000)
        before.send(signal.SIGSTOP)
        began_at = clock.monotonic()
        with pytest.raises(OutcomeUnknown):
            put(group.url)
        assert clock.monotonic() - began_at < SOCKET_TIMEOUT_S / 2
        group.await_election(before)
        put(group.url)


def test_sentinels_that_know_no_such_service_are_named(put, tmp_path):
    with sentinels.group(tmp_path, replicas=0) as group:
        with pytest.raises(StoreUnavailable, match=r"no sentinel knows a primary of 'other'"):
            put(group.url.replace(sentinels.SERVICE, "other"))
        for each in group.sentinels[:2]:
            each.kill()
        put(group.url)
        group.sentinels[2].kill()


def test_sentinels_of_redis_py_serve_one_loop_after_another_and_beside(tmp_path):
    def client():
        theirs = redis.asyncio.sentinel.Sentinel([("127.0.0.1", each.port) for each in group.sentinels])
        return AsyncClient(namespace=NAMESPACE, redis=theirs.master_for(sentinels.SERVICE))

    async def put_and_follow(client, jid):
        async with client.events() as stream:
            assert await client.queue("q").put("k", jid=jid) == jid
            assert (await stream.get(SOON_S)).jid == jid

    async def put_beside():
        async with client() as ours:
            await put_and_follow(ours, "a")
            await asyncio.to_thread(asyncio.run, counted_once(calls_of(ours).beside()))

    async def counted_once(calls):
        assert (await calls.call(queue_counts.counts, ["q"]))["q"].waiting == 1
        await calls.close()

    gc.collect()  # what other tests have left
    with sentinels.group(tmp_path, replicas=0) as group:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ResourceWarning)
            asyncio.run(put_beside())
            gc.collect()
        assert [str(each.message) for each in warned] == [], "a connection is left"
        left = client()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # each loop leaves its connections
            for jid in "bc":
                asyncio.run(put_and_follow(left, jid))
            asyncio.run(left.close())
            gc.collect()


@pytest.mark.parametrize(
    "of", ["sentinel://{}/m?sentinel_password=geheim", "cluster://:geheim@{}", "cluster://u:geheim@{}"]
)
def test_nodes_that_are_gone_are_named_without_the_password(put, of):
    place = f"127.0.0.1:{servers.free_port()}"
    why = rf"\({place}: connecting failed: Connection refused\)\. Nothing was sent"
    with pytest.raises(StoreUnavailable, match=why) as raised:
        put("redis+" + of.format(place))
    assert "geheim" not in str(raised.value)


def test_wait_of_an_async_client_follows_a_moved_slot(tmp_path):
    async def wait_twice(url, move):
        async with AsyncClient(url, NAMESPACE) as client:
            assert await client.lease("w", ["q"], block=0.01) == []
            move()
            with pytest.raises(StoreUnavailable):
                while True:  # the lease, or the wait behind it, meets the move
                    await client.lease("w", ["q"], block=0.01)
            assert await client.lease("w", ["q"], block=0.01) == []

    with clusters.nodes(tmp_path, 3) as made:
        clusters.join(made)
        source = clusters.holder(made, NAMESPACE)
        target = next(node for node in made if node is not source)
        move = partial(clusters.move_namespace, made, NAMESPACE, source, target)
        asyncio.run(wait_twice(clusters.url_of(made), move))


def test_client_of_many_connections_meets_a_moved_slot_once(tmp_path):
    """Threads have had a connection each, and tasks have waited on one each."""

    def meet_it_once(call):
        with pytest.raises(StoreUnavailable):
            call()
        for _ in range(4):
            call()

    with clusters.nodes(tmp_path, 3) as made:
        clusters.join(made)
        source = clusters.holder(made, NAMESPACE)
        target = next(node for node in made if node is not source)
        loop = asyncio.new_event_loop()
        client, async_client = (kind(clusters.url_of(made), NAMESPACE) for kind in (Client, AsyncClient))

        async def wait_in_four_tasks():
            await asyncio.gather(*(async_client.lease(f"w{n}", [f"q{n}"], block=0.2) for n in range(4)))

        with client, ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: client.lease(f"w{n}", [f"q{n}"], block=0.2), range(4)))
            loop.run_until_complete(wait_in_four_tasks())
            clusters.move_namespace(made, NAMESPACE, source, target)
            meet_it_once(lambda: client.queue("q").put("k"))
            list(threads.map(lambda n: client.lease(f"w{n}", [f"q{n}"], block=0.2), range(4)))
            meet_it_once(lambda: loop.run_until_complete(async_client.queue("q").put("k")))
            loop.run_until_complete(wait_in_four_tasks())
            loop.run_until_complete(async_client.close())
        loop.close()


@pytest.mark.parametrize("kind", ["", "+sentinel", "+cluster"])
def test_ipv6_reaches_the_nodes_and_the_server(put, node, tcp, passing_on, server, kind):
    place = tcp(passing_on, "::1")
    port = int(place.rpartition(":")[2])
    if kind == "+sentinel":
        place = node(primary("::1", port), "::1") + "/m"
    elif kind == "+cluster":
        place = node(slots(["::1", port, "id", []]), "::1")
    put(f"redis{kind}://{place}")
    assert server.redis.unlink(*server.redis.keys(f"{{{NAMESPACE}}}:*"))


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_tls_reaches_the_nodes_and_the_server(put, node, by_tls, certificate, server, kind):
    """Connections keep all options, although redis-py's own client of a Cluster drops some."""
    host, _, port = by_tls.partition(":")
    answer = primary(host, int(port)) if kind == "sentinel" else slots([host, int(port), "id", []])
    place = node(answer, tls=certificate.context)
    options = f"ssl_ca_certs={certificate.path}&ssl_min_version=772"
    url = f"rediss+{kind}://{place}/{'m/0' if kind == 'sentinel' else ''}?{options}"
    put(url)
    (dialled,) = Dialer(url, f"{{{NAMESPACE}}}:").dial(1, SOON_S)
    with closing(dialled) as connection:
        assert connection.call("LLEN", f"{{{NAMESPACE}}}:bell:q") == 1, "the wake-up of the put"
    server.redis.unlink(*server.redis.keys(f"{{{NAMESPACE}}}:*"))
    certificate.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(Unreachable, match=r"\(.*: connecting failed: "):
        Dialer(url, f"{{{NAMESPACE}}}:").dial(1, SOON_S)
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        put(url.replace(options, ""))


def test_client_that_only_reads_does_not_read_from_a_replica(node, tmp_path):
    """The sentinels that it asks have not heard of a failover, and name the replica."""
    with sentinels.group(tmp_path, replicas=1) as group:
        replica = group.replica()
        url = f"redis+sentinel://{node(primary('127.0.0.1', replica.port))}/{sentinels.SERVICE}"
        with Client(url, NAMESPACE) as client, pytest.raises(StoreUnavailable, match="is a replica as yet"):
            client.queue("q").counts()

        async def look():
            async with AsyncClient(url, NAMESPACE) as client:
                for ask in (client.queue("q").counts, lambda: client.wait("j" * 22, timeout=0)):
                    with pytest.raises(StoreUnavailable, match="is a replica as yet"):
                        await ask()

        asyncio.run(look())
        with Client(f"redis://127.0.0.1:{replica.port}", NAMESPACE) as client:
            assert client.queue("q").counts().waiting == 0, "who names a replica may read there"


def test_sentinel_that_hangs_takes_no_time_from_connecting(put, node, server, tcp, passing_on):
    place = tcp(passing_on)
    sentinel = node(primary("127.0.0.1", int(place.rpartition(":")[2])))
    put(f"redis+sentinel://{node(None)},{sentinel}/m?socket_connect_timeout=0.5")
    server.redis.unlink(*server.redis.keys(f"{{{NAMESPACE}}}:*"))


@pytest.mark.parametrize("refusal", ["by the account", "by the server"])
def test_server_that_does_not_tell_its_role_is_taken_for_the_primary(put, node, tmp_path, refusal):
    words = ["--rename-command", "ROLE", ""] if refusal == "by the server" else []
    port = servers.free_port()
    with servers.running(servers.binary() or "", "--port", str(port), *words) as socket:
        with servers.connected(socket) as redis:
            redis.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-role")
        url = f"redis+sentinel://app:secret@{node(primary('127.0.0.1', port))}/m"
        put(url)
        (dialled,) = Dialer(url, f"{{{NAMESPACE}}}:").dial(1, SOON_S)
        dialled.close()


def test_client_follows_its_slot_through_a_cluster(put, tmp_path):
    with clusters.nodes(tmp_path, 3) as made:
        clusters.join(made)
        source = clusters.holder(made, NAMESPACE)
        target = next(node for node in made if node is not source)
        url = clusters.url_of([target])
        put(url)
        clusters.move_namespace(made, NAMESPACE, source, target)
        with pytest.raises(StoreUnavailable, match=r"has moved within the Cluster redis\+cluster://.*; try again"):
            put(url)  # Redis says MOVED, and has done nothing
        put(url)
        with Client(target.url, NAMESPACE) as client:
            assert client.queue("q").counts().waiting == 2


def test_password_file_is_read_again_for_each_connection(put, tmp_path):
    path = tmp_path / "password"
    with servers.running(servers.binary() or "") as socket, servers.connected(socket) as redis:
        redis.acl_setuser("app", enabled=True, passwords=["+first"], categories=["+@all"], keys=["*"], channels=["*"])
        path.write_text("first\n")
        url = f"unix://app@{socket}?password_file={path}"
        put(url)
        redis.acl_setuser("app", enabled=True, reset_passwords=True, passwords=["+second"])
        redis.client_kill_filter(user="app")
        with pytest.raises(StoreUnavailable, match="lets nobody in without the right password"):
            for _ in range(2):  # the first may meet the connection that was killed
                put(url)
        path.write_text("second")
        put(url)
        path.write_text("")
        redis.client_kill_filter(user="app")
        with pytest.raises(StoreUnavailable, match=f"^cannot log in to Redis at .*: password_file {path} is empty"):
            for _ in range(2):
                put(url)


def test_password_file_of_the_sentinels_is_read_again_for_each_look(put, tmp_path):
    path = tmp_path / "password"
    (tmp_path / "s").mkdir()
    with sentinels.group(tmp_path / "s", replicas=0) as group, ExitStack() as stack:
        sentinel, redis = (stack.enter_context(each.redis) for each in (group.sentinels[0], group.primary()))

        def rotate(password):
            """Ask for a password at the sentinel, as `requirepass` does. No connection to the server stays."""
            path.write_text(f"{password}\n")
            sentinel.execute_command("ACL", "SETUSER", "default", "resetpass", f">{password}")
            redis.client_kill_filter(_type="normal", skipme=True)

        url = f"redis+sentinel://127.0.0.1:{group.sentinels[0].port}/{sentinels.SERVICE}?sentinel_password_file={path}"
        for password in ("first", "second"):
            rotate(password)
            with suppress(LeaseholdError):  # it may meet the connection that was killed
                put(url)
            put(url)
            (dialled,) = Dialer(url, f"{{{NAMESPACE}}}:").dial(1, SOON_S)
            dialled.close()
        for text, why in (("third", "WRONGPASS"), ("", f"sentinel_password_file {path} is empty")):
            path.write_text(text)
            with pytest.raises(Unreachable, match=why):
                Dialer(url, f"{{{NAMESPACE}}}:").dial(1, SOON_S)


def test_function_and_provider_are_asked_for_each_connection(tmp_path):
    class Provider:
        def get_credentials(self):
            return "app", (tmp_path / "password").read_text()

    def put_by(kind, given):
        client = kind(f"unix://ignored:ignored@{socket}", NAMESPACE, credentials=given)
        if kind is Client:
            with client:
                client.queue("q").put("k")
            return

        async def put():
            async with client:
                await client.queue("q").put("k")

        asyncio.run(put())

    with servers.running(servers.binary() or "") as socket, servers.connected(socket) as redis:
        for password in ("first", "second"):
            rights = {"categories": ["+@all"], "keys": ["*"], "channels": ["*"]}
            redis.acl_setuser("app", enabled=True, reset_passwords=True, passwords=[f"+{password}"], **rights)
            (tmp_path / "password").write_text(password)
            for kind in (Client, AsyncClient):
                for given in (Provider(), Provider().get_credentials):
                    put_by(kind, given)


def test_function_that_blocks_holds_up_no_loop(server, namespace):
    gate = threading.Event()

    def wait_for_the_loop():
        assert gate.wait(SOON_S)
        return "default", "x"

    async def put_while_the_loop_turns():
        async with AsyncClient(server.url, namespace, credentials=wait_for_the_loop) as client:
            putting = asyncio.create_task(client.queue("q").put("k"))
            await asyncio.sleep(0)
            gate.set()
            await putting

    asyncio.run(put_while_the_loop_turns())


async def put_one(client):
    await client.queue("q").put("k")


async def follow_one(client):
    await client.events().get(0)


@pytest.mark.parametrize("call", [put_one, follow_one])
@pytest.mark.parametrize("way", ["host", "sentinels", "credentials"])
def test_client_that_can_start_no_thread_has_not_sent_its_call(server, namespace, monkeypatch, way, call):
    place = f"localhost:{servers.free_port()}"
    urls = {"host": f"redis://{place}", "sentinels": f"redis+sentinel://{place}/m", "credentials": server.url}

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    async def main():
        credentials = (lambda: "x") if way == "credentials" else None
        async with AsyncClient(urls[way], namespace, credentials=credentials) as client:
            with monkeypatch.context() as patched, pytest.raises(StoreUnavailable, match="can't start new thread"):
                patched.setattr(threading.Thread, "start", refuse)
                await call(client)

    asyncio.run(main())


def test_password_that_a_server_repeats_is_not_shown(put, node):
    said = b"-ERR unknown command 'AUTH', with args beginning with: 'geheim' \r\n"
    with pytest.raises(StoreUnavailable, match=r"unknown command 'AUTH'\. Nothing was sent") as raised:
        put(f"redis://:geheim@{node(said)}")
    assert "geheim" not in str(raised.value)
    why = r"which come by SUBSCRIBE: unknown command 'AUTH'\.$"
    url = f"redis://:geheim@{node(said)}"
    with Client(url, NAMESPACE) as client, pytest.raises(StoreUnavailable, match=why), client.events():
        pass


def test_password_file_of_the_environment_belongs_to_its_url(monkeypatch, tmp_path, server, namespace):
    path = tmp_path / "password"
    path.write_text("secret")
    monkeypatch.setenv("LEASEHOLD_REDIS_PASSWORD_FILE", str(path))
    with Client(server.url, namespace) as client:
        client.queue("q").put("k")
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    with Client(namespace=namespace) as client, pytest.raises(StoreUnavailable, match="password"):
        client.queue("q").put("k")
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", "redis://:p@h/0")
    with pytest.raises(ValueError, match="a password and the option password_file; keep one"):
        Client()


def test_account_of_the_manual_suffices_in_a_cluster(tmp_path):
    page = (ROOT / "deploy/docs/redis.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER leasehold on >PASSWORD (.*)$", page, re.MULTILINE)
    (more,) = re.findall(r"URL also needs\s+`([^`]*)`", page)
    with clusters.nodes(tmp_path, 3) as made:
        clusters.join(made)
        for node in made:
            words = f"{line} {more}".replace("leasehold", NAMESPACE).split()
            node.redis.execute_command("ACL", "SETUSER", "app", "on", ">secret", *words)
        with Client(clusters.url_of(made).replace("://", "://app:secret@"), NAMESPACE) as client:
            client.queue("q").put("k")
            assert client.queue("q").counts().waiting == 1
