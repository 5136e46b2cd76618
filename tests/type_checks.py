"""Runs mypy for one test at a time. The tests share a cache, because to read the package anew takes 10 s."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.lengths import PATIENCE

ROOT = Path(__file__).parents[1]
_CACHE = ROOT / ".mypy_cache/tests"


def mypy(folder: Path, *paths: str) -> list[str]:
    """Return what mypy says of files of a folder, by its strict rules: a line for each mistake and each note."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    options = ("--strict", "--no-error-summary", "--config-file=", f"--cache-dir={_CACHE}")
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, *paths],
            cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=120 * PATIENCE,
        )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()
