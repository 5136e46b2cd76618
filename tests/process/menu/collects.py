"""Handlers of jobs that collect."""

import time

import menu
from supervisor import handler


@handler
def slowly(job):
    """Works for some milliseconds, so that it can be killed meanwhile."""
    menu.enter(job)
    time.sleep(0.02)
    return job.data
