"""The plugin: fixture `leasehold`, and what jobs did in the report of a failed test. Runs in the process of pytest.

It must load nothing that takes time before a test asks for the fixture: each session of pytest imports it.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from supervisor.testing.kit import Kit
    from supervisor.testing.leasehold import Leasehold

_OPTION = "leasehold_handlers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_OPTION, "package of Leasehold's handlers (default: LEASEHOLD_HANDLERS, else handlers)", default="")


@pytest.fixture(scope="session")
def _leasehold_kit(pytestconfig: pytest.Config) -> "Iterator[Kit]":
    from supervisor.testing.kit import Kit

    with Kit.opened(pytestconfig.getini(_OPTION)) as kit:
        yield kit


@pytest.fixture
def leasehold(_leasehold_kit: "Kit", monkeypatch: pytest.MonkeyPatch) -> "Iterator[Leasehold]":
    """An empty queue in a real server, on a clock that stands still. Jobs run in the test's process."""
    from supervisor.testing.leasehold import Leasehold

    opened = Leasehold(_leasehold_kit)
    with _leasehold_kit.lent(opened.clock, monkeypatch.setenv):
        yield opened
    opened.check_faults()


@pytest.hookimpl(hookwrapper=True)  # also for an older pytest: it loads the plugin wherever Leasehold is installed
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    opened = getattr(item, "funcargs", {}).get("leasehold")
    if report.failed and call.when == "call" and (told := getattr(opened, "told", "")):
        report.sections.append(("jobs that leasehold has run", told))
