"""Control groups to test with: faked trees of files, and a real one where this machine lets us make it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REAL_V1 = Path("/sys/fs/cgroup/memory")
MB = 2**20


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
    directory = REAL_V1 / f"leasehold-test-{os.getpid()}"
    try:
        directory.mkdir()
        (directory / "memory.use_hierarchy").write_text("1")
    except OSError as error:
        with contextlib.suppress(OSError):
            directory.rmdir()
        pytest.skip(f"needs a memory hierarchy (cgroup v1) that we may write to: {error}")
    try:
        if limit_bytes is not None:
            (directory / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield directory
    finally:
        directory.rmdir()  # fails while anything is in it: a test that leaves something is wrong


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
