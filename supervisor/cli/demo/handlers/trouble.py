"""Jobs that end badly at their first attempt, on purpose, and work at the second. Runs in the demo's children."""

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
    """Reads from address 0."""
    if job.attempt == 1:
        ctypes.string_at(0)
    return count(Path(job.data["path"]))


@handler
def exit_3(job: Any) -> dict[str, int]:
    """Ends the process with exit code 3, past every `finally`."""
    if job.attempt == 1:
        os._exit(3)
    return count(Path(job.data["path"]))


@handler
def kill_itself(job: Any) -> dict[str, int]:
    """What the kernel's OOM killer would do."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count(Path(job.data["path"]))


@handler(timeout="1s")
def loop_for_ever(job: Any) -> dict[str, int]:
    """Goes on past its time limit, whatever is raised in it."""
    while job.attempt == 1:
        with contextlib.suppress(BaseException):
            while True:
                pass
    return count(Path(job.data["path"]))


@handler
def raise_an_error(job: Any) -> dict[str, int]:
    """A plain exception."""
    if job.attempt == 1:
        raise ValueError("this handler fails at its first attempt, on purpose")
    return count(Path(job.data["path"]))
