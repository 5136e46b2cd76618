"""One event loop serves many async jobs, and no job finds traces of another."""

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
    run(made, which())  # the first loop is the policy's, and serves one job
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


def test_clean_jobs_share_a_loop(loops):
    ours, theirs = socket.socketpair()
    PAIR.append(theirs)
    with ours:
        assert run(loops, does_this_and_that()) is run(loops, which()) is run(loops, which())


def test_caller_gets_the_task_to_cancel(loops):
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
def test_job_that_leaves_anything_takes_its_loop_along(loops, leave):
    loop = run(loops, which())
    run(loops, leave())
    assert loop.is_closed()
    assert run(loops, which()) is not loop


def test_task_left_running_is_cancelled_before_the_job_ends(loops):
    TASKS.clear()
    run(loops, leaves_a_task())
    assert TASKS[0].cancelled()


async def fails():
    raise ZeroDivisionError


def test_failed_job_takes_its_loop_along(loops):
    loop = run(loops, which())
    with pytest.raises(ZeroDivisionError):
        run(loops, fails())
    assert loop.is_closed()
    assert run(loops, which()) is not loop


async def uses_a_generator():
    return [number async for number in numbers()]


async def cancels_a_timer():
    asyncio.get_running_loop().call_later(600, print).cancel()


@pytest.mark.parametrize("work", [uses_a_generator, cancels_a_timer])
def test_job_that_cleans_up_leaves_its_loop(loops, work):
    loop = run(loops, which())
    run(loops, work())
    assert run(loops, which()) is loop


class ForeignLoop(asyncio.SelectorEventLoop):
    pass


class ForeignPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        return ForeignLoop()


def test_loop_of_another_policy_serves_one_job():
    asyncio.set_event_loop_policy(ForeignPolicy())
    try:
        loops = Loops()
        first, second = run(loops, which()), run(loops, which())
    finally:
        asyncio.set_event_loop_policy(None)
    assert type(first) is type(second) is ForeignLoop
    assert first is not second
