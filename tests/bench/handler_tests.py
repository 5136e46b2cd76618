"""Measures how many tests of handlers run in a second: `python -m tests.bench.handler_tests`.

Each row has a session of pytest with 500 tests, in turn, over nine rounds: empty tests, tests with the fixture alone,
and tests that put a job, run it and look at its result. The first test of a session starts the server, uncounted.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUNDS = 9
TESTS = 500
ROWS = {
    "an empty test": ("nothing", "assert nothing is None"),
    "the fixture": ("leasehold", "assert leasehold.now"),
    "a put, a run, an assertion": ("leasehold", "double.put(user=user); assert leasehold.run()[0].result == 2 * user"),
}
MODULE = """
import json, time
import pytest
from supervisor import handler

@handler(name="double")
def double(job, user: int):
    return 2 * user

@pytest.fixture
def nothing():
    return None

begin = []

@pytest.mark.parametrize("user", range({tests} + 1))
def test_one({fixture}, user):
    {body}
    if not begin:
        begin.extend((time.monotonic(), time.process_time()))

def test_last():
    wall_s, cpu_s = time.monotonic() - begin[0], time.process_time() - begin[1]
    print("\\nmeasured", json.dumps([{tests} / wall_s, cpu_s / {tests} * 1000]))
"""


def measure(directory: Path, fixture: str, body: str) -> tuple[float, float]:
    """Return tests a second, and the ms of pytest's own processor time for each."""
    (directory / "test_handler.py").write_text(MODULE.format(tests=TESTS, fixture=fixture, body=body))
    options = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "test_handler.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True).stdout
    [line] = [line for line in told.splitlines() if line.startswith("measured ")]
    per_s, cpu_ms = json.loads(line.removeprefix("measured "))
    return per_s, cpu_ms


def main() -> None:
    measured: dict[str, list[tuple[float, float]]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(ROUNDS):
            for row, (fixture, body) in ROWS.items():
                measured[row].append(measure(Path(name), fixture, body))
    for row, figures in measured.items():
        per_s, cpu_ms = zip(*figures, strict=True)
        print(  # noqa: T201
            f"{row}: {statistics.median(per_s):.0f} tests/s ({min(per_s):.0f} - {max(per_s):.0f}),"
            f" {statistics.median(cpu_ms):.2f} ms each in pytest ({min(cpu_ms):.2f} - {max(cpu_ms):.2f})"
        )


if __name__ == "__main__":
    main()
