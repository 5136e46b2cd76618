"""One handler for each kind of misbehaviour, tried alone, beside neighbours, and with Redis away.

`gate` in the data: where the first attempt waits before it misbehaves. Every attempt misbehaves.
"""

import collections
import contextlib
import ctypes
import itertools
import os
import resource
import signal
import sys
import threading
import time

import menu
from supervisor import handler

_MIB = 1 << 20
#: Memory and seconds after which a handler ends if it is not stopped. The test then sees a completed job.
_ENOUGH_MIB = 1024
_LONG_S = 1000


def enter(job):
    menu.enter(job)
    if job.attempt == 1 and "gate" in job.data:
        menu.wait_at(job.data["gate"])


def _sleep_deaf():
    """Sleep for ever, whatever is raised."""
    while True:
        try:
            time.sleep(_LONG_S)
        except BaseException:
            print("not me")


@handler(backoff=0)
def raise_error(job):
    enter(job)
    print("about to raise")
    raise LookupError("there is none")


@handler
def exit_0(job):
    enter(job)
    print("about to leave")
    os._exit(0)


@handler
def exit_3(job):
    enter(job)
    print("about to leave")
    sys.exit(3)


@handler
def abort(job):
    enter(job)
    os.abort()


@handler
def segv(job):
    enter(job)
    ctypes.string_at(0)


@handler
def kill_self(job):
    enter(job)
    print("about to kill myself")
    os.kill(os.getpid(), signal.SIGKILL)


@handler
def ignore_term(job):
    """Ignores TERM and all exceptions that are raised in it."""
    enter(job)
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signo, signal.SIG_IGN)
        os.kill(os.getpid(), signo)
    _sleep_deaf()


@handler(backoff=0)
def spin(job):
    enter(job)
    while True:
        pass


@handler
def spin_in_c(job):
    """Never releases the interpreter: no other thread and no signal handler runs."""
    enter(job)
    collections.deque(itertools.repeat(None), 0)


@handler(backoff=0)
def sleep_in_c(job):
    """Sleeps in C. A signal ends each sleep, even the one that asks for the stack."""
    enter(job)
    while True:
        ctypes.CDLL(None).sleep(_LONG_S)


@handler
def lock_in_c(job):
    """Waits for a lock that it holds itself, as in a deadlock of a library. No signal ends that."""
    enter(job)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, which is all zeros at first
    c = ctypes.CDLL(None)
    c.pthread_mutex_lock(lock)
    c.pthread_mutex_lock(lock)


def _allocate(step_mib, pause_s):
    kept = []
    while len(kept) * step_mib < _ENOUGH_MIB:
        kept.append(b"x" * (step_mib * _MIB))
        time.sleep(pause_s)


@handler(memory="64M")
def allocate_slowly(job):
    enter(job)
    _allocate(2, 0.01)


@handler(memory="64M")
def allocate_fast(job):
    enter(job)
    _allocate(16, 0)


@handler(memory="64M")
def allocate_below(job):
    """Grows in a process below the child."""
    enter(job)
    pid = os.fork()
    if pid == 0:
        _allocate(4, 0.01)
        os._exit(0)
    os.waitpid(pid, 0)


@handler
def leak_threads(job):
    """Leaves threads that must not be waited for."""
    enter(job)
    for _ in range(100):
        threading.Thread(target=threading.Event().wait, daemon=False).start()


def _daemonise(job, count):
    for _ in range(count):
        first = os.fork()
        if first:
            os.waitpid(first, 0)
            continue
        os.setsid()
        if os.fork() == 0:
            menu.write_line(f"{job.jid} left {os.getpid()} {time.time():.6f} -\n")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(_LONG_S)
        os._exit(0)


@handler
def double_fork(job):
    enter(job)
    _daemonise(job, 20)


@handler
def double_fork_and_die(job):
    enter(job)
    _daemonise(job, 20)
    os.kill(os.getpid(), signal.SIGKILL)


@handler
def close_all(job):
    enter(job)
    os.closerange(0, 1024)


@handler
def close_all_and_stay(job):
    enter(job)
    os.closerange(0, 1024)
    _sleep_deaf()


@handler
def write_garbage(job):
    """Writes into each open descriptor except its output."""
    enter(job)
    for fd in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(fd, os.urandom(64))
    time.sleep(_LONG_S)


@handler
def print_much(job):
    """Prints data["print_bytes"] in lines, without the interpreter's buffers."""
    enter(job)
    lines = (b"." * 99 + b"\n") * 656
    for _ in range(job.data["print_bytes"] // len(lines)):
        os.write(1, lines)


@handler
def stop_self(job):
    enter(job)
    print("about to stop")
    os.kill(os.getpid(), signal.SIGSTOP)


@handler
def deaf_to_signals(job):
    """Ignores and blocks all signals that it can, and runs to its end."""
    enter(job)
    _dispose(signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.kill(os.getpid(), signal.SIGTERM)


@handler
def defenceless(job):
    """Gives each signal its default effect, which mostly kills."""
    enter(job)
    _dispose(signal.SIG_DFL)
    _sleep_deaf()


def _dispose(disposition):
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signo, disposition)


@handler
def change_limits(job):
    """Lowers its own resource limits."""
    enter(job)
    for limit, soft in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 1), (resource.RLIMIT_MEMLOCK, 0)):
        resource.setrlimit(limit, (soft, soft))
    os.umask(0o777)
    os.nice(19)
    os.chdir("/")


@handler
def limit_files(job):
    """Limits its file size to 0: the kernel kills it at the first byte that it writes."""
    enter(job)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.write(os.open("file", os.O_WRONLY | os.O_CREAT), b"x")


@handler
def limit_descriptors(job):
    """Limits its descriptors, so that nothing can be opened any more."""
    enter(job)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


@handler
def fork_and_return_twice(job):
    enter(job)
    os.fork()


@handler
def exec_true(job):
    enter(job)
    os.execvp("true", ["true"])


@handler
def exec_sleep(job):
    enter(job)
    os.execvp("sleep", ["sleep", str(_LONG_S)])
