"""Handlers that report progress, and react when they should stop."""

import asyncio
import threading

import menu
from supervisor import Interrupted, handler

_told = threading.Semaphore(0)  # how often the thread of `leave_thread` has told


@handler
def progress(job):
    """Reports data's steps, and waits at the gate before the last one."""
    menu.enter(job)
    *steps, last = job.data["steps"]
    for fraction, text in steps:
        job.progress(fraction, text)
    menu.wait_at(job.data["gate"])
    job.progress(*last)
    if job.data.get("fail"):
        raise RuntimeError("in the end")


@handler
def progress_for_ever(job):
    menu.enter(job)
    for step in range(200_000):
        job.progress(step / 200_000)


@handler
def stop(job):
    """Catches the interruption, and continues with its clean-up. data: gate."""
    assert not job.should_stop
    try:
        menu.enter(job)  # in here: who waits for it may interrupt at once
        menu.wait_at(job.data)
    except Interrupted as interrupted:
        assert job.should_stop
        print("told to stop:", interrupted.reason)
    return "in peace"


@handler
def leave_thread(job):
    """Leaves a thread that reports this job's progress for as long as the child lives."""
    menu.enter(job)

    def tell():
        while True:
            job.progress(0.5, f"said of {job.jid}")
            job.report_progress()
            _told.release()
            ready.wait(0.01)

    ready = threading.Event()
    threading.Thread(target=tell, daemon=True).start()
    _told.acquire()


@handler
def beside_thread(job):
    """Reports nothing, while the thread that was left reports more than once."""
    menu.enter(job)
    while _told.acquire(blocking=False):
        pass
    for _ in range(3):
        _told.acquire()


@handler
async def tasks(job):
    """Waits for tasks that are always at work, and swallows their exceptions."""
    menu.enter(job)

    async def work():
        while True:
            await asyncio.sleep(0)

    try:
        await asyncio.gather(work(), work(), return_exceptions=True)
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("cancelled, told to stop:", job.should_stop)
        if job.data == "finish":
            return "in peace"
        raise
    finally:
        print("in the end")


def _raise(job):
    menu.enter(job)
    raise LookupError("there is none")


@handler(backoff=[0, 0.2, 0.4], retries=4)
def backoff_list(job):
    _raise(job)


@handler(backoff=lambda failures: 0.1 * failures, retries=3)
def backoff_function(job):
    _raise(job)


@handler(backoff=lambda failures: 1 / failures, retries=1)
def backoff_broken(job):
    _raise(job)


@handler
def lane(job):
    menu.enter(job)
    return [job.lane, job.attempt]
