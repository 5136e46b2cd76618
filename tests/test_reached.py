"""The shared server is the one that the environment names, and there is no easier way to it."""

import os

import pytest
import redis

from supervisor import Client
from tests import reached


def test_redis_py_is_the_one_that_is_asked_for():
    assert redis.__version__.startswith(os.environ.get("TEST_REDIS_PY", ""))


def test_server_is_reached_in_the_way_that_is_asked_for(server, namespace):
    with Client(server.url_with(client_name=namespace), namespace) as client:
        client.queue("q").put("k")
        assert client.queue("q").length() == 1
        (ours,) = [each for each in server.redis.client_list() if each["name"] == namespace]
        expected = {
            "alone": lambda: server.url.startswith("unix://") and ours["user"] == "default",
            "tls": lambda: ours["user"] == "default" and _refuses_others(server),
            "account": lambda: ours["user"] == reached.USER,
            "sentinel": lambda: ours["user"] == reached.USER and _replicas(server) == 2,
            "cluster": lambda: ours["user"] == reached.USER and _replicas(server) == 1 and _is_cluster(server),
        }
        assert expected[server.way]()


def _replicas(server):
    return server.redis.info("replication")["connected_slaves"]


def _is_cluster(server):
    nodes = server.redis.execute_command("CLUSTER", "NODES").decode().splitlines()
    roles = [line.split()[2].removeprefix("myself,") for line in nodes]
    return sorted(roles) == ["master"] * 3 + ["slave"] * 3


def _refuses_others(server):
    """Speak to the port without TLS, without a certificate, and by a name that is not in the server's."""
    port = server.url.partition("localhost:")[2].partition("/")[0]
    files = server.url.partition("?")[2].split("&")
    for url in (
        f"redis://localhost:{port}",
        f"rediss://localhost:{port}?{files[0]}",
        f"rediss://localhost:{port}",
        server.url.replace("localhost", "127.0.0.1"),
    ):
        with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url) as stranger:
            stranger.ping()
    return True
