"""Jobs that fail on purpose at their first attempt, and complete at the second. Runs in the demo's children."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Any

from supervisor import handler
from supervisor.cli.demo.handlers.files import count


@handler
def segfault(job: Any) -> dict[str, int]:
    """Read from address 0."""
    if job.attempt == 1:
        ctypes.string_at(0)
    return count(Path(job.data["path"]))


@handler
def exit_3(job: Any) -> dict[str, int]:
    """End the process with exit code 3, past every `finally`."""
    if job.attempt == 1:
        os._exit(3)
    return count(Path(job.data["path"]))


@handler
def kill_itself(job: Any) -> dict[str, int]:
    """Kill the process, as the kernel's OOM killer does."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count(Path(job.data["path"]))


@handler(timeout="1s")
def loop_for_ever(job: Any) -> dict[str, int]:
    """Run past the time limit, and ignore every exception."""
    while job.attempt == 1:
        with contextlib.suppress(BaseException):
            while True:
                pass
    return count(Path(job.data["path"]))


@handler
def raise_an_error(job: Any) -> dict[str, int]:
    """Raise an exception."""
    if job.attempt == 1:
        raise ValueError("this handler fails at its first attempt, on purpose")
    return count(Path(job.data["path"]))
