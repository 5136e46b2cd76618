"""One event loop for many async jobs, and none of them finds anything of another one's in it."""

import asyncio
import os
import signal
import socket
import threading

import pytest

from supervisor.child.event_loop import Loops

TASKS, GENERATORS, FDS = [], [], []


@pytest.fixture
def loops():
    made = Loops()
    yield made
    if made._runner is not None:
        made._runner.close()
    while FDS:
        os.close(FDS.pop())


def run(loops, work):
    return loops.run(work, lambda _task: None, lambda: None)


async def which():
    return asyncio.get_running_loop()


async def does_this_and_that():
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.wait_for(asyncio.create_task(asyncio.sleep(0)), 60)
    _reader, writer = await asyncio.open_unix_connection(sock=PAIR.pop())
    writer.close()
    await writer.wait_closed()
    return asyncio.get_running_loop()


PAIR = []


def test_jobs_that_leave_nothing_behind_share_a_loop(loops):
    ours, theirs = socket.socketpair()
    PAIR.append(theirs)
    with ours:
        assert run(loops, does_this_and_that()) is run(loops, which()) is run(loops, which())


def test_whoever_wants_to_cancel_the_work_is_told_its_task(loops):
    told = []
    assert loops.run(asyncio.sleep(0, 5), told.append, lambda: None) == 5
    assert told[0].done()


async def leaves_a_task():
    TASKS.append(asyncio.create_task(asyncio.sleep(600)))


async def leaves_a_timer():
    asyncio.get_running_loop().call_later(600, print)


async def leaves_calls_for_ever():
    loop = asyncio.get_running_loop()

    def call_again():
        loop.call_soon(call_again)

    call_again()


async def leaves_a_reader():
    FDS.append(os.eventfd(0))
    asyncio.get_running_loop().add_reader(FDS[0], print)


async def leaves_a_thread():
    await asyncio.to_thread(threading.get_ident)


async def numbers():
    yield 1
    yield 2


async def leaves_a_generator():
    GENERATORS.append(numbers())
    await anext(GENERATORS[0])


async def leaves_a_factory():
    asyncio.get_running_loop().set_task_factory(lambda loop, work, **given: asyncio.Task(work, loop=loop, **given))


async def leaves_an_exception_handler():
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)


async def leaves_a_signal_handler():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)


async def leaves_it_verbose():
    asyncio.get_running_loop().set_debug(True)


LEAVING = [
    leaves_a_task, leaves_a_timer, leaves_calls_for_ever, leaves_a_reader, leaves_a_thread, leaves_a_generator,
    leaves_a_factory, leaves_an_exception_handler, leaves_a_signal_handler, leaves_it_verbose,
]  # fmt: skip


@pytest.mark.parametrize("leave", LEAVING)
def test_what_a_job_leaves_behind_no_other_one_finds(loops, leave):
    loop = run(loops, which())
    run(loops, leave())
    assert loop.is_closed()
    assert run(loops, which()) is not loop


def test_a_task_that_is_left_running_is_cancelled_before_the_job_ends(loops):
    TASKS.clear()
    run(loops, leaves_a_task())
    assert TASKS[0].cancelled()


async def fails():
    raise ZeroDivisionError


def test_a_job_that_fails_takes_its_loop_along(loops):
    loop = run(loops, which())
    with pytest.raises(ZeroDivisionError):
        run(loops, fails())
    assert loop.is_closed()
    assert run(loops, which()) is not loop
