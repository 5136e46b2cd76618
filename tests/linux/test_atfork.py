"""A fork of one thread skips the repair for other threads. A fork beside threads is Python's as usual."""

import subprocess
import sys

import pytest

START = """
import os, sys
from supervisor.linux import atfork
atfork.take_over()
import logging, threading

def in_fork(look, fork=atfork.fork):
    reading, writing = os.pipe()
    pid = fork()
    if not pid:
        os.write(writing, repr(look()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(reading, 1000).decode()

def beside_a_thread(what):
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait)
    other.start()
    try:
        return what()
    finally:
        go_on.set()
        other.join()
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("fork", ["atfork.fork", "os.fork"])
def test_fork_beside_a_thread_lists_only_itself(fork):
    assert run(f"print(beside_a_thread(lambda: in_fork(threading.active_count, {fork})))") == ["1"]


@pytest.mark.parametrize("fork", ["atfork.fork", "os.fork"])
def test_logging_lock_of_another_thread_is_free_in_the_fork(fork):
    code = f"""
handler = logging.StreamHandler()
held, go_on = threading.Event(), threading.Event()

def hold():
    with handler.lock:
        held.set()
        go_on.wait()

other = threading.Thread(target=hold)
other.start()
held.wait()
print(in_fork(lambda: handler.lock.acquire(timeout=10), {fork}))
go_on.set()
other.join()
"""
    assert run(code) == ["True"]


def test_thread_started_right_before_the_fork_is_not_listed():
    code = """
go_on = threading.Event()
others = []

def start():
    others.append(threading.Thread(target=go_on.wait))
    others[-1].start()

def look():
    return threading.active_count(), others[0].is_alive()

os.register_at_fork(before=start)
print(in_fork(look).replace(" ", ""))
go_on.set()
"""
    assert run(code) == ["(1,False)"]


def test_ended_native_thread_is_not_listed_in_the_fork():
    code = """
import _thread
told = threading.Event()

def know_oneself():
    threading.current_thread()
    told.set()

_thread.start_new_thread(know_oneself, ())
told.wait()
while len(sys._current_frames()) > 1:
    os.sched_yield()
print(in_fork(threading.active_count))
"""
    assert run(code) == ["1"]


def test_fork_of_one_thread_needs_no_repair():
    code = """
def look():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    logging.getLogger().warning("")
    main = threading.main_thread()
    is_self = main is threading.current_thread() and main.ident == threading.get_ident()
    return threading.active_count(), is_self, main.is_alive()

called = []
atfork._hooks.append({"before": lambda: called.append("before"), "after_in_child": lambda: called.append("child")})
print(in_fork(look).replace(" ", ""), called)
print(in_fork(lambda: called, os.fork).replace(" ", ""))
"""
    assert run(code) == ["(1,True,True)", "[]", "['before','child']"]


def test_python_calls_the_hooks_of_other_modules():
    code = """
os.register_at_fork(after_in_child=lambda: seen.append(1))
seen = []
print(in_fork(lambda: seen), len(atfork._hooks))
"""
    assert run(code) == ["[1]", "2"]
