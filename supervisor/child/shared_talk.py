"""The socket to the master as jobs that share a child use it: they send, and wait for answers. Runs in shared children.

Must not know what is said: those that ask do.
"""

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from supervisor.child.talk import call_in_fork
from supervisor.engine.model.errors import LeaseLost

#: Time until a blocked loop looks again whether its answer has come.
_WAIT_MS: Final = 50

T = TypeVar("T")


class SharedTalk:
    def __init__(self, loop: asyncio.AbstractEventLoop, talk: socket.SocketType, read_talk: Callable[[], None]) -> None:
        """`read_talk` reads the socket, and hands answers to those who wait; it never waits."""
        self.loop = loop
        self._talk = talk
        self._read_talk = read_talk
        self._poll = select.poll()
        self._poll.register(talk, select.POLLIN)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self.at_end = False  # the master has closed its end

    @property
    def is_in_loop(self) -> bool:
        """True in the loop's thread of this process."""
        return threading.get_ident() == self._main and os.getpid() == self._pid

    def send(self, packet: bytes) -> None:
        self._talk.send(packet)

    def finish(self, call: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have the loop do the work, from another thread than the loop's, and block until it is done."""
        if os.getpid() != self._pid:
            raise call_in_fork(call)
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result()

    def block_until(self, is_done: Callable[[], bool]) -> None:
        """In the loop's thread: read answers until it is done, and stop all jobs of the child meanwhile.

        Raises LeaseLost if the master has gone.
        """
        while not is_done():
            if self.at_end:
                raise LeaseLost("the supervisor has ended: nothing can be stored any more")
            self._poll.poll(_WAIT_MS)
            self._read_talk()
