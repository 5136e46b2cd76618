"""Handlers that wait in C code. A signal makes such a call fail."""

import asyncio
import ctypes
import os

import menu
from supervisor import handler

_libc = ctypes.CDLL(None, use_errno=True)


@handler
def wait(job):
    """Waits in C for the gate, and returns how that has ended. data: gate."""
    menu.enter(job)
    path = os.path.join(os.environ["MENU_GATES"], job.data).encode()
    opened = _libc.open(path, os.O_RDONLY)
    return "through the gate" if opened >= 0 else os.strerror(ctypes.get_errno())


@handler
async def asynchronous(job):
    """Waits in its event loop until it should stop."""
    menu.enter(job)
    while not job.should_stop:
        await asyncio.sleep(0.005)
    return "in peace"
