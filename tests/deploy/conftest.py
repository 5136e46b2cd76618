"""What the tests of deploy/ share: the programs of others that read its files."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def promtool() -> "Callable[..., subprocess.CompletedProcess[str]]":
    """Prometheus's own reader of its files; `.ci/run` fetches it where there is Debian's archive."""
    program = shutil.which("promtool", path=f"{os.environ['PATH']}:{ROOT}/.tools/usr/bin")
    if program is None:
        pytest.skip("promtool is not on PATH; Debian has it in its package prometheus")

    def run(*words: str | Path, **options: str) -> "subprocess.CompletedProcess[str]":
        command = [program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)

    return run
