"""Control groups to test with: faked trees of files, and a real one where this machine lets us make it."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import clock

REAL_V1 = Path("/sys/fs/cgroup/memory")
MB = 2**20

_numbers = itertools.count(1)


def faked(tmp_path: Path, lines: str, files: dict[str, str], total_kb: int | None = None) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup for a process with these `lines` in its /proc/self/cgroup."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    if total_kb is not None:
        (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {total_kb} kB\nMemFree:        1 kB\n")
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


@contextlib.contextmanager
def real(limit_bytes: int | None = None) -> Iterator[Path]:
    """A cgroup (v1) of our own, with nobody in it. Skips the test where none can be made."""
    directory = REAL_V1 / f"leasehold-test-{os.getpid()}-{next(_numbers)}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory hierarchy (cgroup v1) that we may write to: {error}")
    try:
        if limit_bytes is not None:
            (directory / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield directory
    finally:
        left = _remove(directory)
    assert left == [], "processes were left in the cgroup, and have been killed"


def _remove(directory: Path) -> list[int]:
    """Removes it with all below it. The processes that were still there: only a test can have put them in."""
    left = []
    for file in directory.rglob("cgroup.procs"):
        for pid in map(int, file.read_text().split()):
            left.append(pid)
            os.kill(pid, signal.SIGKILL)
    for each in sorted((file.parent for file in directory.rglob("cgroup.procs")), reverse=True):
        deadline_at = clock.monotonic() + 10
        while True:
            try:
                each.rmdir()
                break
            except OSError:  # EBUSY: the last process is on its way out
                assert clock.monotonic() < deadline_at, f"{each} cannot be removed"
    return left


@contextlib.contextmanager
def python(directory: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process of that cgroup; it runs `code` as soon as it has read a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; input(); exec({code!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            (directory / "cgroup.procs").write_text(str(process.pid))
            yield process
    finally:
        process.kill()
        process.wait()


def tell(process: "subprocess.Popen[str]", line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
