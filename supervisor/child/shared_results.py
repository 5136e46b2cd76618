"""Asks for the results of parents for jobs that share a child. Runs in shared children."""

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
from supervisor.messages import ResultsPage, ResultsWanted

#: Time until a blocked loop looks again whether its answer has come.
_WAIT_MS: Final = 50


class SharedResults:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        talk: socket.SocketType,
        runs: Mapping[int, SharedRun],
        read_talk: Callable[[], None],
    ) -> None:
        """`runs`: by token. `read_talk` reads the socket, and hands answers to `answered`; it never waits."""
        self._loop = loop
        self._talk = talk
        self._runs = runs
        self._read_talk = read_talk
        self._poll = select.poll()
        self._poll.register(talk, select.POLLIN)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._number = 0  # of the last question
        self._answers: dict[int, asyncio.Future[ResultsPage]] = {}  # by number
        self.at_end = False  # the master has closed its end

    def answered(self, page: ResultsPage) -> None:
        answer = self._answers.pop(page.number, None)
        if answer is not None and not answer.done():
            answer.set_result(page)

    async def ask_and_wait(self, token: int, first: int, count: int) -> ResultsPage:
        return await self._ask(token, first, count)

    def ask(self, token: int, first: int, count: int) -> ResultsPage:
        """Ask for results of a job's parents, and block. In the loop's thread it stops all jobs of the child meanwhile.

        Raises LeaseLost.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("job.results was read in a fork of the job's process: read it in that itself")
        if threading.get_ident() != self._main:
            return asyncio.run_coroutine_threadsafe(self.ask_and_wait(token, first, count), self._loop).result()
        answer = self._ask(token, first, count)
        while not answer.done():
            if self.at_end or self._runs[token].is_void:
                raise LeaseLost("the lease of this job is lost, or its supervisor has ended: end the work")
            self._poll.poll(_WAIT_MS)
            self._read_talk()
        return answer.result()

    def _ask(self, token: int, first: int, count: int) -> "asyncio.Future[ResultsPage]":
        if token not in self._runs:
            raise LeaseLost("the job has ended: end its tasks with it")
        self._number += 1
        answer = self._answers[self._number] = self._loop.create_future()
        self._talk.send(messages.pack_wanted(token, ResultsWanted(self._number, first, count)))
        return answer
