"""The chaos test has the stage of the process tests, and says its figures in the summary as they do."""

import pytest

from tests.chaos.accounts import Runs
from tests.process.conftest import pytest_runtest_makereport, stage

__all__ = ["pytest_runtest_makereport", "stage"]


@pytest.fixture
def runs(stage):
    """The accounts that the handlers keep of their runs."""
    runs = Runs(stage.directory)
    yield runs
    runs.close()
