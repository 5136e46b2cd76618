"""Handlers that make checkpoints. Each step adds a line to a file, which shows how often it was done."""

import asyncio
import os
import threading
import time

import menu
from supervisor import Interrupted, LeaseLost, handler
from supervisor.engine.model.validation import STATE_BYTES


def _step(path, number):
    menu.append_to(path, f"{number}\n")


def _left(job):
    """Yield the numbers of the steps that are left. data: steps, or a file until whose creation there is always one
    more.
    """
    number, until = job.saved or 0, job.data.get("until")
    while number < job.data["steps"] or (until and not os.path.exists(until)):
        yield number
        number += 1


@handler
def march(job):
    """Makes steps. data: file, steps, and how long each takes."""
    menu.enter(job)
    _march(job)
    return job.attempt


def _march(job):
    for number in _left(job):
        time.sleep(job.data.get("nap_s", 0))
        _step(job.data["file"], number)
        job.checkpoint(number + 1)


@handler
async def march_async(job):
    menu.enter(job)
    for number in _left(job):
        await asyncio.sleep(job.data.get("nap_s", 0))
        _step(job.data["file"], number)
        job.checkpoint(number + 1)
    return job.attempt


@handler
def march_in_thread(job):
    """Makes the steps in a thread, for which the main thread waits."""
    menu.enter(job)
    thread = threading.Thread(target=_march, args=(job,))
    thread.start()
    thread.join()
    return job.attempt


@handler
def once(job):
    """Stores its data, returns what it found, and ends early as often as told. data: state, times, how."""
    menu.enter(job)
    print("found", job.saved)
    if job.attempt > job.data["times"]:
        return job.saved
    job.checkpoint([job.data["state"], job.attempt])
    if job.data["how"] == "retry":
        raise RuntimeError("in the end")
    if job.data["how"] == "exit":
        os._exit(3)
    if job.data["how"] == "next":
        job.next("default", job.data | {"times": 0})
    return None


@handler
def speed(job):
    """Returns how long each of its checkpoints took, in s. data: how many."""
    menu.enter(job)
    took = []
    for number in range(job.data):
        began = time.perf_counter()
        job.checkpoint(number)
        took.append(time.perf_counter() - began)
    return sorted(took)[:: max(1, job.data // 200)]


@handler
def large(job):
    """Returns how long so many checkpoints of the largest size took together, in s. data: how many."""
    menu.enter(job)
    began = time.perf_counter()
    for _ in range(job.data):
        job.checkpoint("x" * (STATE_BYTES - 2))
    return time.perf_counter() - began


@handler
def crowd(job):
    """Makes checkpoints in several threads and the main one at once. data: threads, checkpoints of each."""
    menu.enter(job)
    done = []

    def store(thread):
        for number in range(job.data["each"]):
            job.checkpoint([thread, number])
            job.progress(number / job.data["each"])
        done.append(thread)

    threads = [threading.Thread(target=store, args=(n + 1,)) for n in range(job.data["threads"])]
    for thread in threads:
        thread.start()
    store(0)
    for thread in threads:
        thread.join()
    return sorted(done)


@handler
def after_gate(job):
    """Makes checkpoints when the gate is open. data: gate, "catch" to continue after an interruption, and a directory
    to create then, "passed".
    """
    menu.enter(job)
    try:
        menu.wait_at(job.data["gate"])
    except Interrupted as interrupted:
        if not job.data.get("catch"):
            raise
        print("interrupted:", interrupted.reason)
    if "passed" in job.data:
        os.mkdir(job.data["passed"])
    for what in ("first", "second"):
        try:
            job.checkpoint(what)
            print("stored:", what)
        except LeaseLost as error:
            print("lost:", what, str(error)[:28])


@handler
def refused(job):
    """Tries values that cannot be stored, and one of the largest size."""
    menu.enter(job)
    said = []
    for state in ({1, 2}, "x" * STATE_BYTES, b"bytes"):
        try:
            job.checkpoint(state)
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    job.checkpoint("x" * (STATE_BYTES - 2))
    pid = os.fork()
    if pid == 0:
        try:
            job.checkpoint("of a fork")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    said.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return said


@handler
def listen(job):
    """Waits until should_stop() without interruption, then stores a state. data: file of its steps."""
    menu.enter(job)
    while not job.should_stop:
        time.sleep(0.005)
    _step(job.data["file"], 0)
    if job.data.get("checkpoint"):
        job.checkpoint("stopped by itself")
    return "in peace"
