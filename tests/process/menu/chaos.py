"""Handlers that keep a record of their own: each run writes its beginning and its end, one line by one write(2).

Each run, and each process that it leaves, holds a lock of its job. A run that meets another one, or leftovers of one,
records it.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time

import menu
from supervisor import Fail, Retry, handler


def _born():
    """Return when this process was forked, in ticks since the boot. With its pid that identifies the process."""
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def _write(what, job, word):
    told = (what, job.jid, job.attempt, os.environ["CHAOS_POOL"], os.getpid(), _born(), f"{time.monotonic():.6f}", word)
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(ledger, (" ".join(map(str, told)) + "\n").encode())
    finally:
        os.close(ledger)


class Run:
    """One run of a job, from its first to its last instant in the handler."""

    def __init__(self, job):
        self.job = job
        self.lock = os.open(f"{os.environ['CHAOS_LOCKS']}/{job.jid}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def __enter__(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _write("overlap", self.job, "-")
        _write("start", self.job, self.job.klass)
        return self

    def __exit__(self, *_error):
        os.close(self.lock)

    def end(self, word):
        _write("end", self.job, word)


@handler
def short(job):
    with Run(job) as run:
        run.end("done")


@handler
def nap(job):
    with Run(job) as run:
        time.sleep(0.05)
        run.end("done")


@handler
def leaves_processes(job):
    """Leaves a subprocess, one in a session of its own, and a daemon. All hold the job's lock."""
    with Run(job) as run:
        for own_session in (False, True):
            subprocess.Popen(["sleep", "1000"], start_new_session=own_session, pass_fds=[run.lock])
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1000)
            os._exit(0)
        time.sleep(0.01)
        run.end("done")


@handler(backoff=[0.02])
def raises(job):
    with Run(job) as run:
        if job.failures == 0:
            run.end("raise")
            raise LookupError("not this time")
        run.end("done")


@handler
def asks_again(job):
    with Run(job) as run:
        if job.failures == 0:
            run.end("retry")
            raise Retry(0.02, "once more")
        run.end("done")


@handler
def fails(job):
    with Run(job) as run:
        run.end("fail")
        raise Fail("no-such-customer", "there is none")


@handler
def leaves(job):
    """Ends its child in mid-job, once."""
    with Run(job) as run:
        if job.deaths == 0:
            run.end("exit-3")
            os._exit(3)
        run.end("done")


@handler
def waits_for_its_death(job):
    """Wait until the child has died once."""
    with Run(job) as run:
        if job.deaths == 0:
            time.sleep(600)
        run.end("done")


@handler
def goes_on(job):
    """Puts two more jobs with its completion."""
    with Run(job) as run:
        for number in (1, 2):
            job.put("default", "chaos.short", jid=f"{job.jid}-{number}")
        run.end("done")


def _fork():
    """Fork, and retry while the machine has no room for another process."""
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.01)


@handler
def swarm(job):
    """Double-forks data["count"] processes, each in a session of its own; waits at a gate. data["die"]: by SIGKILL."""
    menu.enter(job)
    for _ in range(job.data["count"]):
        if _fork() == 0:
            with contextlib.suppress(BaseException):
                os.setsid()
                if _fork() == 0:
                    os.setsid()
                    time.sleep(1000)
            os._exit(0)
    menu.wait_at(job.data["gate"])
    if job.data["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
