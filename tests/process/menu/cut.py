"""Handlers that record what becomes of them when their supervisor is cut off from Redis. data: gate."""

import menu
from menu.good import count_interrupted
from menu.watch import Watched
from supervisor import handler


@handler(on_cut_off="stop")
def stops(job):
    count_interrupted(job)


@handler(on_cut_off="go-on")
def goes_on(job):
    count_interrupted(job)


@handler(on_cut_off="stop", at_most_once=True)
def stops_once(job):
    count_interrupted(job)


@handler
def deaf(job):
    """Holds data["lock"], and ends only by the gate data["gate"]."""
    with Watched(job, job.data["lock"]):
        while True:
            try:
                return menu.wait_at(job.data["gate"])
            except BaseException:
                print("not me")
