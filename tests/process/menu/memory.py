"""Handlers that take memory, and record how much in a file, by one write(2) for each step.

MENU_PRELOAD_MB in the environment is allocated before children are forked, as by an application's imports. `data` of
those that grow: mb, and optionally step_mb (1), rate_mb_s (unbounded), witness (a file), gate (waits there at the end),
times (only on so many first attempts).
"""

import mmap
import os
import subprocess
import sys
import time

import menu
from supervisor import handler

MB = 2**20
PRELOADED = bytearray(b"x") * (int(os.environ.get("MENU_PRELOAD_MB", "0")) * MB)
_kept = []

#: A program that grows by the megabytes of its first argument, and waits for its end.
_PROGRAM = "import sys; room = b'x' * (int(sys.argv[1]) << 20); print(len(room), flush=True); input()"


def _steps(data):
    """Yield each step's bytes at its time, and record what has been taken before."""
    step_mb, began_at = data.get("step_mb", 1), time.monotonic()
    witness = os.open(data["witness"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC) if "witness" in data else -1
    for done_mb in range(0, data["mb"], step_mb):
        while "rate_mb_s" in data and time.monotonic() < began_at + done_mb / data["rate_mb_s"]:
            pass
        yield step_mb * MB
        if witness >= 0:
            os.pwrite(witness, b"%8d %.6f" % (done_mb + step_mb, time.monotonic() - began_at), 0)


def _end(data):
    if "gate" in data:
        menu.wait_at(data["gate"])


def _spared(job):
    return job.attempt > job.data.get("times", 1 << 30)


def _grow(job):
    menu.enter(job)
    if _spared(job):
        return
    room = [b"x" * size for size in _steps(job.data)]
    _end(job.data)
    del room


@handler
def grow(job):
    _grow(job)


@handler
def grow_too(job):
    """Grows as `grow` does. The supervisor learns the memory of each handler apart."""
    _grow(job)


@handler(memory="64M")
def grow_under_64(job):
    _grow(job)


@handler(memory=0)
def grow_at_will(job):
    _grow(job)


@handler
def grow_and_keep(job):
    """Takes memory that its child keeps."""
    menu.enter(job)
    _kept.append([b"x" * size for size in _steps(job.data)])
    _end(job.data)


@handler
def grow_shared(job):
    """Takes memory that processes of its own would share."""
    menu.enter(job)
    room = mmap.mmap(-1, job.data["mb"] * MB)
    for size in _steps(job.data):
        room.write(b"x" * size)
    _end(job.data)


@handler
def grow_unseen(job):
    """Writes files of tmpfs that no process maps: only the kernel counts them."""
    menu.enter(job)
    file = os.memfd_create("unseen")
    for size in _steps(job.data):
        os.write(file, b"x" * size)
    _end(job.data)


@handler
def grow_below(job):
    """Takes memory in another program."""
    menu.enter(job)
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(job.data["mb"])], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        program.stdout.readline()
        _end(job.data)
        program.communicate(b"\n")


@handler
def share_with_forks(job):
    """Takes memory, and forks data["forks"] processes that share and read all of it."""
    menu.enter(job)
    room = [b"x" * size for size in _steps(job.data)]
    pids = []
    for _ in range(job.data["forks"]):
        pid = os.fork()
        if pid == 0:
            sum(len(piece) + piece[-1] for piece in room)
            menu.wait_at(job.data["gate"])
            os._exit(0)
        pids.append(pid)
    _end(job.data)
    return [os.waitpid(pid, 0)[1] for pid in pids]


@handler
def write_preloaded(job):
    """Writes to the preloaded memory."""
    menu.enter(job)
    for at in range(0, len(PRELOADED), mmap.PAGESIZE):
        PRELOADED[at] = job.attempt
    _end(job.data)


@handler(retries=0)
def too_large_at_once(job):
    """Asks for more than its limit in one piece."""
    menu.enter(job)
    print("about to ask for", job.data["mb"], "MB")
    too_much = bytearray(job.data["mb"] * MB)
    return len(too_much)


@handler
def take_less(job):
    """Asks for more than its limit, and continues without it."""
    menu.enter(job)
    try:
        return len(bytearray(job.data["mb"] * MB))
    except MemoryError:
        return "done without"


@handler
def size_of_preloaded(job):
    menu.enter(job)
    return len(PRELOADED)
