"""Handlers that say how far they are, and listen when they are told to stop."""

import menu
from supervisor import handler
from supervisor.pool.handlers import Interrupted


@handler
def progress(job):
    """data: the steps to tell, and the gate to wait at before the last one."""
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
    """Catches the interruption, and goes on to what it has to do first. data: gate."""
    menu.enter(job)
    assert not job.should_stop
    try:
        menu.wait_at(job.data)
    except Interrupted as interrupted:
        assert job.should_stop
        print("told to stop:", interrupted.reason)
    return "in peace"


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
