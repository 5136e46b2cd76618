"""Handlers that tests hold and let go, in the process of the test."""

import asyncio
import threading
from collections import defaultdict

from supervisor import Interrupted, SoftTimeout, handler

started = defaultdict(asyncio.Event)
open_gates = defaultdict(asyncio.Event)
open_doors = defaultdict(threading.Event)
entered = defaultdict(list)
ended = []


def forget():
    for each in (started, open_gates, open_doors, entered):
        each.clear()
    ended.clear()


@handler(name="gates.hold", retries=3, backoff=0)
async def hold(job, gate: str = "gate"):
    """Ends when its gate is open."""
    entered[gate].append(job.jid)
    started[gate].set()
    try:
        await open_gates[gate].wait()
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    return gate


@handler(name="gates.stay", backoff=0)
async def stay(job, gate: str = "gate"):
    """Ends when its gate is open, and is not to be interrupted."""
    started[gate].set()
    while True:
        try:
            await open_gates[gate].wait()
        except asyncio.CancelledError:
            ended.append("stayed")
        else:
            return gate


@handler(name="gates.block")
def block(job, door: str = "door"):
    """Ends when its door is open, in a thread."""
    entered[door].append(threading.current_thread().name)
    assert open_doors[door].wait(60)
    ended.append(job.should_stop)
    return door


@handler(name="gates.fail_once", retries=3, backoff=0)
async def fail_once(job):
    if not job.failures:
        raise LookupError("the first time")
    return job.attempt


@handler(name="gates.leave")
def leave(job):
    raise SystemExit(3)


@handler(name="gates.aleave")
async def aleave(job):
    raise SystemExit(4)


@handler(name="gates.double")
def double(job, n: int) -> int:
    return 2 * n


@handler(name="gates.adouble")
async def adouble(job, n: int) -> int:
    return 2 * n


@handler(name="gates.in_time", timeout="0.1s", on_error="fail")
async def in_time(job):
    await asyncio.Event().wait()


ALL = [hold, stay, block, fail_once, leave, aleave, double, adouble, in_time]
CAUSES = (Interrupted, SoftTimeout)
