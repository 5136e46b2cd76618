"""Runs a function in a thread of its own, for a coroutine that waits for it. Runs in applications."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class NoThread(Exception):
    """No thread can be started for a function, in the system's words. The function will not run."""


def in_thread(name: str, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
    """Run a function in a thread of this name, with the context of the caller. Return its result, to be awaited.

    The thread goes on if the caller stops waiting. Raises NoThread.
    """
    context = contextvars.copy_context()
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def run() -> None:
        try:
            result = context.run(function, *args)
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            done.set_exception(error)
        else:
            done.set_result(result)

    try:
        threading.Thread(target=run, name=name).start()
    except RuntimeError as error:  # the limit of threads is reached, or the interpreter ends
        raise NoThread(str(error)) from error
    return asyncio.wrap_future(done)
