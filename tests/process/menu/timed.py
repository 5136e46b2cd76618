"""Handlers that run into their time limit, and what they do then."""

import asyncio
import collections
import itertools
import os
import signal
import socket
import subprocess
import threading
import time

import menu
from supervisor import SoftTimeout, handler


def _until_told(wait):
    try:
        wait()
    except SoftTimeout as near:
        print("cleaning up:", near)


@handler
def clean_up(job):
    """Waits, and cleans up at its soft timeout. data: gate."""
    menu.enter(job)
    _until_told(lambda: menu.wait_at(job.data))


@handler
async def clean_up_later(job):
    """Waits in a coroutine, which gets its soft timeout as a cancellation."""
    menu.enter(job)
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("cleaning up")


@handler(backoff=0)
async def await_for_ever(job):
    menu.enter(job)
    await asyncio.sleep(1000)


@handler
async def block_the_loop(job):
    """Blocks its event loop: a coroutine that awaits nothing gets no soft timeout."""
    menu.enter(job)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            print("not me")


@handler
def translate(job):
    """Raises another exception at its soft timeout. data: gate."""
    menu.enter(job)
    try:
        menu.wait_at(job.data)
    except SoftTimeout as near:
        raise RuntimeError("the customer does not answer") from near


@handler
def clean_up_too_long(job):
    """Cleans up for longer than the grace. data: gates, of its work and of its clean-up."""
    menu.enter(job)
    try:
        menu.wait_at(job.data[0])
    except SoftTimeout:
        print("cleaning up")
        menu.wait_at(job.data[1])


@handler(timeout=3, backoff=0)
def limited(job):
    """Waits, with a time limit of its own. data: gate."""
    menu.enter(job)
    menu.wait_at(job.data)


@handler(timeout=0)
def no_limit(job):
    """Waits without a time limit. data: gate."""
    menu.enter(job)
    menu.wait_at(job.data)


@handler
def catch_all(job):
    menu.enter(job)
    while True:
        try:
            while True:
                pass
        except BaseException:
            print("not me")


@handler
def receive(job):
    """Waits for a message of a peer that never sends one."""
    menu.enter(job)
    here, _there = socket.socketpair()
    while True:
        try:
            here.recv(1)
        except BaseException:
            print("not me")


@handler
def programs(job):
    """Waits for programs, one of them in a session of its own, through all interruptions."""
    menu.enter(job)
    for own_session in (False, True):
        left = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; true"], start_new_session=own_session)
        menu.write_line(f"{job.jid} left {left.pid} {time.time():.6f} -\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.waitpid(left.pid, 0)


@handler
def burn_in_c(job):
    """Uses the processor for data seconds without releasing the interpreter."""
    menu.enter(job)
    end_at = time.monotonic() + job.data
    collections.deque(itertools.takewhile(end_at.__gt__, iter(time.monotonic, None)), 0)
    return time.monotonic() - end_at


@handler
def clean_up_among_threads(job):
    """Has so many threads that writing their stacks takes a while. data: gate."""
    menu.enter(job)

    def wait(depth):
        if depth:
            wait(depth - 1)
        else:
            started.release()
            threading.Event().wait()

    started = threading.Semaphore(0)
    for _ in range(50):
        threading.Thread(target=wait, args=(90,), daemon=True).start()
    for _ in range(50):
        started.acquire()
    _until_told(lambda: menu.wait_at(job.data))
