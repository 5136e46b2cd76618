"""The chaos test has the stage of the process tests, and says its figures in the summary as they do."""

from tests.process.conftest import measured, pytest_configure, pytest_runtest_makereport, pytest_terminal_summary, stage

__all__ = ["measured", "pytest_configure", "pytest_runtest_makereport", "pytest_terminal_summary", "stage"]
