"""Handlers that behave well."""

import hashlib
import os
import time

import menu
from supervisor import handler


@handler
def noop(job):
    menu.enter(job)


@handler
def echo(job):
    menu.enter(job)
    return job.data


@handler
def tags(job):
    menu.enter(job)
    return list(job.tags)


@handler
def nap(job):
    """Works for a while, as a job does that waits for something outside. data: seconds."""
    menu.enter(job)
    time.sleep(job.data)


@handler
def hold(job):
    """Works until the test opens the gate. data: its name."""
    menu.enter(job)
    menu.wait_at(job.data)


@handler
def short_or_long(job):
    """Takes as long as its data says: the master cannot know the time beforehand."""
    menu.enter(job)
    if job.data:
        menu.wait_at(job.data)


@handler
def digest(job):
    menu.enter(job)
    return {"bytes": len(job.raw), "sha256": hashlib.sha256(job.raw).hexdigest(), "kind": type(job.data).__name__}


@handler
def count_interrupted(job):
    """Waits until it is interrupted, and takes its time to clean up. data: gate."""
    try:
        menu.enter(job)  # who waits for that may interrupt at once
        menu.wait_at(job.data)
    except BaseException as reason:
        print("cleaning up after", type(reason).__name__, reason)
        raise


@handler
def big_result(job):
    menu.enter(job)
    return "x" * job.data


@handler
def bad_result(job):
    menu.enter(job)
    return object()


@handler
async def asynchronous(job):
    menu.enter(job)
    return os.getpid()


def _called_once(function):
    """A decorator of the plainest kind."""

    def call(job):
        return function(job)

    call.__name__ = function.__name__
    return call


@handler
@_called_once
async def decorated(job):
    menu.enter(job)
    return os.getpid()


@handler
def as_told(job):
    """Returns at once, waits at a gate or dies, as its data says: the master cannot know beforehand."""
    menu.enter(job)
    told = job.data or {}
    if "gate" in told:
        menu.wait_at(told["gate"])
    if "die" in told and job.attempt == 1:
        os._exit(told["die"])
