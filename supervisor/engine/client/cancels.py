"""Finds the cancellations that asyncio forgets to raise. Runs in asyncio applications. Must not do I/O.

asyncio.wait_for of Python 3.11, by which redis-py sends, drops a cancellation that comes as the awaited work ends. The
task would go on as if it had not been cancelled, and wait for the reply.
"""

import asyncio


class Cancels:
    """The cancellations of the current task from now on."""

    def __init__(self) -> None:
        self._before = _count()

    def check(self) -> None:
        """Raise CancelledError if the task was cancelled meanwhile."""
        if _count() > self._before:
            raise asyncio.CancelledError


def _count() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
