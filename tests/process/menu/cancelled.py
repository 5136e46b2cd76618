"""Handlers that are stopped in mid-job. Each run records how it ended: done, or interrupted and why.

The records are those of `chaos.py`. A killed run has no last line.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time

from menu.chaos import Run
from supervisor import Interrupted, handler


def accounted(job, work):
    """Record a run. All of it is within the try, because a test may interrupt at its first instant."""
    run = Run(job)
    try:
        with run:
            work()
        run.end("done")
    except Interrupted as interrupted:
        run.end(f"interrupted:{interrupted.reason}")
        raise


def _swallow_all():
    """Continues whatever is raised."""
    while True:
        try:
            print("deaf to all")
            time.sleep(1000)
        except BaseException as error:
            print("not me:", type(error).__name__)


def _spin(until_at):
    while time.monotonic() < until_at:
        pass


def _work(how, seconds):
    match how:
        case "sleep" | "deaf":
            time.sleep(seconds)
        case "subprocess":
            subprocess.run(["sleep", str(seconds)], check=True)
        case "spin":
            _spin(time.monotonic() + seconds)
        case "in C":
            # PyDLL holds the interpreter's lock, so no Python runs until the call returns.
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@handler
def at_work(job):
    """Works for data["s"] seconds in the way that data["how"] says."""
    how = job.data["how"]
    if how == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {32, 33})  # those are the C library's
    accounted(job, lambda: _work(how, job.data["s"]))


def _daemon():
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(1000)
        os._exit(0)


def _leave_three():
    for own_session in (False, True):
        subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
    _daemon()
    _swallow_all()


@handler
def deaf_with_tree(job):
    """Leaves a subprocess, one in a session of its own, and a daemon, and ignores interruptions."""
    accounted(job, _leave_three)
