"""Handlers that take their time, and what they do when it is over."""

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
    """data: gate."""
    menu.enter(job)
    _until_told(lambda: menu.wait_at(job.data))


@handler
async def clean_up_later(job):
    """A coroutine hears of its limit as of a cancellation."""
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
    """Nothing can be told to a coroutine that awaits nothing."""
    menu.enter(job)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            print("not me")


@handler
def translate(job):
    """data: gate."""
    menu.enter(job)
    try:
        menu.wait_at(job.data)
    except SoftTimeout as near:
        raise RuntimeError("the customer does not answer") from near


@handler
def clean_up_too_long(job):
    """data: gates, of its work and of its cleaning up."""
    menu.enter(job)
    try:
        menu.wait_at(job.data[0])
    except SoftTimeout:
        print("cleaning up")
        menu.wait_at(job.data[1])


@handler(timeout=3, backoff=0)
def limited(job):
    """data: gate."""
    menu.enter(job)
    menu.wait_at(job.data)


@handler(timeout=0)
def no_limit(job):
    """data: gate."""
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
    """Waits for a word of one who never speaks, and takes no other."""
    menu.enter(job)
    here, _there = socket.socketpair()
    while True:
        try:
            here.recv(1)
        except BaseException:
            print("not me")


@handler
def programs(job):
    """Waits for programs, one of them in a session of its own, whatever comes."""
    menu.enter(job)
    for own_session in (False, True):
        left = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; true"], start_new_session=own_session)
        menu.write_line(f"{job.jid} left {left.pid} {time.time():.6f} -\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.waitpid(left.pid, 0)


@handler
def burn_in_c(job):
    """Keeps a processor busy for data seconds without once letting go of the interpreter."""
    menu.enter(job)
    end_at = time.monotonic() + job.data
    collections.deque(itertools.takewhile(end_at.__gt__, iter(time.monotonic, None)), 0)
    return time.monotonic() - end_at


@handler
def clean_up_among_threads(job):
    """So many stacks that writing them takes a while. data: gate."""
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
