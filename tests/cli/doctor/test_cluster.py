"""Commands on a Cluster work at the namespace's node, and name that node at any other."""

import asyncio
import json

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import StoreUnavailable
from tests import clusters

NAMESPACE = "lh"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with clusters.nodes(tmp_path_factory.mktemp("cluster"), 3) as made:
        clusters.join(made)
        yield made


@pytest.fixture
def right(cluster):
    return clusters.holder(cluster, NAMESPACE)


@pytest.fixture(params=[0, 1])
def wrong(cluster, right, request):
    return [node for node in cluster if node is not right][request.param]


@pytest.fixture
def at(shell, monkeypatch):
    """The shell, connected to a node."""

    def go(node):
        monkeypatch.setenv("LEASEHOLD_REDIS_URL", node.url)
        monkeypatch.setenv("LEASEHOLD_NAMESPACE", NAMESPACE)
        return shell

    return go


def test_commands_work_at_the_node_that_holds_the_namespace(at, right):
    jid = at(right)("put", "k").out.strip()
    assert at(right).line("job", jid, "--json")
    assert at(right).good("check") == "nothing is wrong\n"


@pytest.mark.parametrize(
    "words",
    [
        *(("put", "k"), ("job", "x"), ("queues",), ("failed",), ("workers",), ("check",), ("check", "--repair")),
        *(("config",), ("pause", "q"), ("job", "x", "--wait", "1s"), ("limit",), ("status",)),
        ("recur", "k", "--every", "1h"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_at_another_node_name_the_right_one(at, right, wrong, words):
    said = at(wrong).refused(69, *words)
    assert f"{wrong.url} is a node of a Cluster that does not hold the namespace" in said
    assert f"127.0.0.1:{right.port} does (slot " in said and "name that node" in said
    assert not wrong.redis.dbsize()


def test_clients_at_another_node_name_the_right_one(right, wrong):
    name = f"127.0.0.1:{right.port} does"
    with Client(wrong.url, NAMESPACE) as client:
        for call in (lambda: client.lease("w", ["q"], block=1), client.check, lambda: client.wait("x", 1)):
            with pytest.raises(StoreUnavailable, match=name):
                call()

    async def check():
        async with AsyncClient(wrong.url, NAMESPACE) as client:
            with pytest.raises(StoreUnavailable, match=name):
                await client.check()
            with pytest.raises(StoreUnavailable, match=name):
                await client.queue("q").put("k")

    asyncio.run(check())


def test_doctor_at_another_node_finds_one_problem(at, right, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("supervisor.cli.doctor.handlers.examine", lambda _config: ())
    said = at(wrong)("doctor", "--json")
    found = [each for each in json.loads(said.out) if "cluster" in each["message"]]
    assert [each["level"] for each in found] == ["problem"]
    assert f"127.0.0.1:{right.port}; name that node" in found[0]["message"]
    assert said.code == 69


def test_doctor_at_the_right_node_finds_no_problem(at, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("supervisor.cli.doctor.handlers.examine", lambda _config: ())
    found = [each for each in json.loads(at(right)("doctor", "--json").out) if "cluster" in each["message"]]
    assert [each["level"] for each in found] == ["ok"]
