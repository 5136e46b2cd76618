"""Handlers that stream."""

import os
import signal
import time

import menu
from supervisor import handler, messages
from supervisor.child import talk


@handler
def say(job):
    """Streams data's chunks, and waits at its gate before the last one."""
    menu.enter(job)
    *chunks, last = job.data["chunks"]
    for chunk in chunks:
        job.stream(chunk)
    if "gate" in job.data:
        menu.wait_at(job.data["gate"])
    job.stream(last)
    if job.data.get("fail"):
        raise RuntimeError("in the end")


@handler
async def say_async(job):
    menu.enter(job)
    for chunk in job.data["chunks"]:
        await job.astream(chunk)


@handler
def count(job):
    """Streams numbers. data: up to which, in which pace, and at which number the first start kills itself."""
    menu.enter(job)
    for number in range(job.data["count"]):
        job.stream(number)
        time.sleep(job.data.get("nap_s", 0))
        if job.attempt == 1 and number == job.data.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)


@handler
def times(job):
    """Streams the time, in the pace of data."""
    menu.enter(job)
    for _ in range(job.data["count"]):
        time.sleep(job.data["nap_s"])
        job.stream(time.clock_gettime(time.CLOCK_MONOTONIC))


@handler
def flood(job):
    """Streams chunks of the size in data without end."""
    menu.enter(job)
    chunk = bytes(job.data)
    while True:
        job.stream(chunk)


@handler
def cheat(job):
    """Streams past the bounds."""
    from supervisor.engine.model.chunks import to_chunk  # the release before, which serves this menu too, has none

    menu.enter(job)
    while True:
        talk._listening.send(messages.pack_chunk(job.token, to_chunk("x")))


@handler
def nonsense(job):
    """Streams what is no chunk."""
    menu.enter(job)
    job.stream(bytes(70_000) if job.data == "large" else object())
