"""Handlers that misbehave. `times` in the data: only on so many first attempts."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import menu
from supervisor import Fail, Retry, handler


def _spared(job):
    return isinstance(job.data, dict) and job.attempt > job.data.get("times", 1 << 30)


@handler
def kill_self(job):
    menu.enter(job)
    if not _spared(job):
        print("about to kill myself")
        os.kill(os.getpid(), signal.SIGKILL)


@handler
def segv(job):
    menu.enter(job)
    if not _spared(job):
        print("about to segfault")
        ctypes.string_at(0)


@handler
def leave(job):
    """Leaves in mid-job with the status in data["status"]."""
    menu.enter(job)
    if not _spared(job):
        os._exit(job.data["status"])


@handler
def sys_exit(job):
    menu.enter(job)
    sys.exit(job.data)


@handler
def spin(job):
    menu.enter(job)
    if _spared(job):
        return
    while True:
        pass


@handler
def c_sleep(job):
    """Sleeps in C code, which only SIGKILL ends. data: seconds."""
    menu.enter(job)
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signo])
        except OSError:
            continue
    print("asleep in C")
    ctypes.CDLL(None).sleep(int(job.data))


@handler
def raises(job):
    menu.enter(job)
    print("about to raise")
    raise LookupError(f"attempt {job.attempt} of {job.jid}")


@handler
def retry(job):
    """Asks for a retry until attempt data["times"] is past."""
    menu.enter(job)
    if not _spared(job):
        raise Retry(job.data.get("delay", 0), "once more")


@handler
def fail(job):
    menu.enter(job)
    raise Fail("no-such-customer", "there is none")


@handler
def swallow(job):
    """Catches everything that can be caught, and goes on. data: gate."""
    entered = False
    while True:
        try:
            if not entered:
                entered = True
                menu.enter(job)  # who waits for that may interrupt at once
            menu.wait_at(job.data)
            return
        except BaseException:
            print("not me")


@handler
def print_then_die(job):
    """data["lines"] lines from Python and one from C, then SIGKILL to itself."""
    menu.enter(job)
    for number in range(job.data["lines"]):
        print(f"line {number} of {job.jid}")
    ctypes.CDLL(None).write(1, b"written in C\n", 13)
    print("an open line", end="")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@handler
def print_then_raise(job):
    menu.enter(job)
    for number in range(job.data["lines"]):
        print(f"line {number} of {job.jid}")
    print("on stderr", file=sys.stderr)
    ctypes.CDLL(None).write(2, b"written in C\n", 13)
    raise RuntimeError("printed enough")


@handler
def close_output(job):
    """Closes what it prints to, and goes on. data: gate."""
    menu.enter(job)
    os.close(1)
    os.close(2)
    menu.wait_at(job.data)


@handler
def daemons(job):
    """Leaves three behind: a subprocess, one in a session of its own, and a double-forked daemon. data["die"]: how;
    data["deaf"]: to every interruption.
    """
    menu.enter(job)
    for own_session in (False, True):
        left = subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
        menu.write_line(f"{job.jid} left {left.pid} {time.time():.6f} -\n")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            menu.write_line(f"{job.jid} left {os.getpid()} {time.time():.6f} -\n")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1000)
        os._exit(0)
    os.wait3(0) if job.data.get("reap") else None
    while True:
        try:
            menu.wait_at(job.data["gate"])
            break
        except BaseException:
            if not job.data.get("deaf"):
                raise
    if job.data.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)


@handler
def fork_returns_twice(job):
    """Forks, and lets the other process return from the handler too."""
    menu.enter(job)
    os.fork()


@handler
def nap_then_kill_zygote(job):
    """Kills the zygote after data seconds, so that other jobs have run beside it."""
    menu.enter(job)
    time.sleep(job.data)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


@handler
def kill_zygote(job):
    """Kills the zygote."""
    menu.enter(job)
    os.kill(os.getppid(), signal.SIGKILL)
    menu.wait_at(job.data)


@handler
def kill_the_master(job):
    """Kills the master as its first action, after `data` seconds in which its processor is busy. None: does nothing."""
    if job.data is None:
        return
    until_at = time.monotonic() + job.data
    while time.monotonic() < until_at:
        pass
    zygote_stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(zygote_stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    menu.enter(job)
    time.sleep(1000)


@handler
def fork_until_refused(job):
    """Forks until the kernel has no more for it, and keeps them. data: gate."""
    menu.enter(job)
    count = 0
    while True:
        try:
            pid = os.fork()
        except BlockingIOError:
            break
        if pid == 0:
            signal.pause()
            os._exit(0)
        count += 1
    print("refused")
    menu.wait_at(job.data)
    return count
