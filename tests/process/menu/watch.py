"""Handlers that hold a lock, which the kernel releases with the process, and write a log of it.

The lock is POSIX's, so tests can inspect it without taking it. The log's times are of the monotonic clock.
"""

import fcntl
import os
import time

import menu
from supervisor import handler


class Watched:
    def __init__(self, job, path):
        self.job = job
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self.log = os.open(f"{path}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def __enter__(self):
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.write("overlap")
            raise
        self.write("start")

    def __exit__(self, *_error):
        self.write("end")
        os.close(self.lock)
        os.close(self.log)

    def write(self, what):
        os.write(self.log, f"{what} {self.job.jid} {os.getpid()} {time.monotonic():.6f}\n".encode())


@handler
def held(job):
    """Holds data["lock"] for data["s"] seconds."""
    with Watched(job, job.data["lock"]):
        time.sleep(job.data["s"])


@handler
def for_ever(job):
    """Holds data["lock"] until it should stop."""
    with Watched(job, job.data["lock"]):
        while not job.should_stop:
            time.sleep(1)


@handler
def hold_and_return(job):
    """Holds data["lock"] for data["s"] seconds, and returns although the job is persistent."""
    menu.enter(job)
    with Watched(job, job.data["lock"]):
        time.sleep(job.data["s"])


@handler
def refused(job):
    """Returns the error that a persistent job gets for a follow-up."""
    menu.enter(job)
    try:
        job.put("q", "k")
    except ValueError as error:
        print("refused:", error)
    time.sleep(job.data["s"])


@handler(at_most_once=True)
def once(job):
    """Must not start twice. data: seconds."""
    menu.enter(job)
    time.sleep(job.data)


@handler(at_most_once=True)
def once_and_raise(job):
    menu.enter(job)
    raise RuntimeError("no second try")


@handler
def log_time(job):
    """Writes the time of its start into the file data."""
    log = os.open(job.data, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    os.write(log, f"{time.monotonic():.6f}\n".encode())
    os.close(log)
