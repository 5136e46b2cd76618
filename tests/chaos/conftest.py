"""The chaos test has the stage of the process tests, and says its figures in the summary as they do."""

from tests.process.conftest import pytest_runtest_makereport, stage

__all__ = ["pytest_runtest_makereport", "stage"]
