"""What the process tests share: a stage for real supervisors, and figures that are printed at the end of the session."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.engine.client import Client

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own module is found, whatever the import mode

pytest.register_assert_rewrite("supervised")

from supervised import Stage  # noqa: E402  found by the line above

_figures: list[str] = []


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than ten seconds")


def pytest_terminal_summary(terminalreporter):
    if _figures:
        terminalreporter.section("measured")
        for line in _figures:
            terminalreporter.line(line)


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
def measured(request) -> Callable[[str], None]:
    """Says a measured figure in the summary of the session."""
    return lambda text: _figures.append(f"{request.node.name}: {text}")
