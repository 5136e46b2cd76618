"""Sends the chunks of jobs that share a child, and lets a job wait while it has too many under way. Runs in shared
children.
"""

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

from supervisor import messages
from supervisor.child.shared_run import SharedRun
from supervisor.engine.model.errors import LeaseLost
from supervisor.messages import Taken

#: Time until a blocked loop looks again whether there is room.
_WAIT_MS: Final = 50


class SharedStreams:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        talk: socket.SocketType,
        runs: Mapping[int, SharedRun],
        read_talk: Callable[[], None],
    ) -> None:
        """`runs`: by token. `read_talk` reads the socket, and hands answers to `taken`; it never waits."""
        self._loop = loop
        self._talk = talk
        self._runs = runs
        self._read_talk = read_talk
        self._poll = select.poll()
        self._poll.register(talk, select.POLLIN)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self.at_end = False  # the master has closed its end

    def taken(self, word: Taken) -> None:
        """Redis has taken chunks of a job."""
        run = self._runs.get(word.token)
        if run is not None:
            run.window.taken(word.chunks)
            run.room.set()

    async def send_and_wait(self, token: int, chunk: bytes) -> None:
        """Send a packed chunk, once there is room. Raises LeaseLost."""
        while (run := self._without_room(token, chunk)) is not None:
            run.room.clear()
            await run.room.wait()

    def send(self, token: int, chunk: bytes) -> None:
        """Do the same, and block. In the loop's thread it stops all jobs of the child meanwhile."""
        if os.getpid() != self._pid:
            raise RuntimeError("job.stream was called in a fork of the job's process: call it in that itself")
        if threading.get_ident() != self._main:
            asyncio.run_coroutine_threadsafe(self.send_and_wait(token, chunk), self._loop).result()
            return
        while self._without_room(token, chunk) is not None:
            if self.at_end:
                raise LeaseLost("the supervisor has ended: nothing can be streamed any more")
            self._poll.poll(_WAIT_MS)
            self._read_talk()

    def _without_room(self, token: int, chunk: bytes) -> SharedRun | None:
        """Send the chunk. Return its run if that has no room."""
        run = self._runs.get(token)
        if run is None:
            raise LeaseLost("the job has ended: nothing can be streamed any more; end its tasks with it")
        if run.is_void:
            raise LeaseLost("the lease of this job is not this supervisor's any more: end the work")
        if not run.window.has_room(len(chunk)):
            return run
        run.window.add(len(chunk))
        self._talk.send(messages.pack_chunk(token, chunk))
        return None
