"""Handlers that use processor time."""

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
    """Uses so many seconds itself, and as many in a process of its own, then ends as `then` says."""
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
