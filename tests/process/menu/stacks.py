"""Handlers with a known Python stack."""

import os
import signal
import sys
import threading
import time

import menu
from supervisor import handler


@handler
def python_loop(job):
    menu.enter(job)
    while True:
        len("a Python loop")


@handler
def sleeping(job):
    menu.enter(job)
    time.sleep(600)


@handler
def c_loop(job):
    """Runs C code that keeps the interpreter and handles no signal."""
    menu.enter(job)
    sum(range(1 << 60))


def beside(gate):
    menu.wait_at(gate)


@handler
def two_threads(job):
    thread = threading.Thread(target=beside, args=(job.data,))
    thread.start()
    menu.enter(job)
    thread.join()


@handler(on_error="fail")
def wait_and_raise(job):
    menu.enter(job)
    menu.wait_at(job.data)
    raise ValueError("it has waited")


@handler
def talk_on(job):
    """Prints lines until the gate is open. The last line has their number. data: gate."""
    menu.enter(job)
    waiting = threading.Thread(target=beside, args=(job.data,))
    waiting.start()
    count = 0
    while waiting.is_alive():
        print("line", count)
        count += 1
        time.sleep(0.01)  # slower than the log leaves lines out
    print("all", count)


@handler
def become_a_program(job):
    """Replaces the child by another program, which exits with status 7 when the gate is open."""
    gate = os.path.join(os.environ["MENU_GATES"], job.data)
    code = f"import os; print('there', flush=True); os.open({gate!r}, os.O_RDONLY); os._exit(7)"
    menu.enter(job)
    os.execv(sys.executable, [sys.executable, "-c", code])


@handler
def forget_signals(job):
    """Gives each signal its default effect."""
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)
    menu.enter(job)
    menu.wait_at(job.data)
