"""Fixtures of the process tests: a stage for real supervisors, servers beside it, and the figures measured."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.engine.client.sync_client import Client
from tests.servers import binary

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own module is found, whatever the import mode

pytest.register_assert_rewrite("supervised")

from servers import OwnServer, Proxy  # noqa: E402
from supervised import Stage  # noqa: E402  found by the line above


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.when == "call" and "stage" in getattr(item, "funcargs", {}):
        report.sections.append(("the last words of its pools", item.funcargs["stage"].last_words()))
    return report


@pytest.fixture
def stage(server, namespace, tmp_path) -> Iterator[Stage]:
    """A place to start supervisors in. Whatever still runs at the end of the test is killed."""
    with Client(server.url, namespace) as client:
        stage = Stage(tmp_path, server, namespace, client)
        try:
            yield stage
        finally:
            stage.close()


@pytest.fixture
def own_server(server, tmp_path_factory) -> Iterator[OwnServer]:
    """A server of the test's own, of the same make as the shared one, with an append-only file."""
    if server.way != "alone":
        pytest.skip(f"the test's own server is another one than that {server.way}")
    own = OwnServer(tmp_path_factory.mktemp("s"), binary())
    own.start()
    yield own
    own.close()


@pytest.fixture
def own_stage(stage, own_server) -> Iterator[Stage]:
    """The stage, with the test's own server."""
    with stage.at(own_server):
        yield stage


@pytest.fixture
def app(own_server) -> Callable[[str], None]:
    """A user whose password is `first`. Call it to give it another one, and to close all of its connections."""
    redis = own_server.redis
    redis.acl_setuser("app", enabled=True, passwords=["+first"], categories=["+@all"], keys=["*"], channels=["*"])

    def rotate(password: str) -> None:
        redis.acl_setuser("app", enabled=True, reset_passwords=True, passwords=[f"+{password}"])
        redis.client_kill_filter(user="app")

    return rotate


@pytest.fixture
def proxies(server, tmp_path) -> Iterator[Callable[..., Proxy]]:
    """Start a proxy before the shared server. The proxy loses every nth reply (0: none), and the first with `reply`."""
    started: list[Proxy] = []

    def start(every: int, reply: str = "") -> Proxy:
        started.append(Proxy(tmp_path / f"proxy-{len(started)}", server.socket, every, reply))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()
