"""A fork of one thread costs nothing that only other threads would need; a fork beside them is Python's as ever."""

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
def test_a_fork_beside_a_thread_knows_that_it_is_alone(fork):
    assert run(f"print(beside_a_thread(lambda: in_fork(threading.active_count, {fork})))") == ["1"]


@pytest.mark.parametrize("fork", ["atfork.fork", "os.fork"])
def test_a_lock_of_logging_that_another_thread_held_is_free_in_the_fork(fork):
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


def test_a_thread_that_is_started_right_before_the_fork_is_none_of_the_forks():
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


def test_a_thread_of_native_code_that_has_ended_is_not_listed_in_the_fork():
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


def test_a_fork_of_one_thread_is_as_it_should_be_without_their_work():
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


def test_the_hooks_of_all_others_are_called_by_python_itself():
    code = """
os.register_at_fork(after_in_child=lambda: seen.append(1))
seen = []
print(in_fork(lambda: seen), len(atfork._hooks))
"""
    assert run(code) == ["[1]", "2"]
