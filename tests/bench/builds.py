"""Asks an interpreter how it was built."""

import subprocess
from pathlib import Path

from supervisor.cli.doctor import interpreter
from tests.bench.benchmark import Unmeasured


def build_of(python: Path) -> str:
    """Describe how an interpreter was built. Raises Unmeasured if it does not run."""
    try:
        done = subprocess.run([python, "-S", interpreter.__file__], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise Unmeasured(f"{python} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise Unmeasured(f"{python} does not run: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.strip()
