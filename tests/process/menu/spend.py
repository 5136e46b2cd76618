"""Handlers that use the processor."""

import os
import signal
import time

import menu
from supervisor import handler


def _burn(seconds):
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


@handler
def burn(job):
    """So many seconds itself, and as many in a process of its own; then it ends as `then` says."""
    menu.enter(job)
    _burn(job.data["seconds"])
    pid = os.fork()
    if not pid:
        _burn(job.data["seconds"])
        os._exit(0)
    os.waitpid(pid, 0)
    match job.data.get("then"):
        case "raise":
            raise LookupError("there is none")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
