"""Asks for the results of parents for jobs that share a child. Runs in shared children."""

import asyncio
from collections.abc import Mapping

from supervisor import messages
from supervisor.child.shared_run import SharedRun
from supervisor.child.shared_talk import SharedTalk
from supervisor.engine.model.errors import LeaseLost
from supervisor.messages import ResultsPage, ResultsWanted


class SharedResults:
    def __init__(self, talk: SharedTalk, runs: Mapping[int, SharedRun]) -> None:
        """`runs`: by token."""
        self._talk = talk
        self._runs = runs
        self._number = 0  # of the last question
        self._answers: dict[int, asyncio.Future[ResultsPage]] = {}  # by number

    def answered(self, page: ResultsPage) -> None:
        answer = self._answers.pop(page.number, None)
        if answer is not None and not answer.done():
            answer.set_result(page)

    async def ask_and_wait(self, token: int, first: int, most: int) -> ResultsPage:
        return await self._ask(token, first, most)

    def ask(self, token: int, first: int, most: int) -> ResultsPage:
        """Ask for results of a job's parents, and block. In the loop's thread it stops all jobs of the child meanwhile.

        Raises LeaseLost.
        """
        if not self._talk.is_in_loop:
            return self._talk.finish("results", lambda: self.ask_and_wait(token, first, most))
        answer = self._ask(token, first, most)
        self._talk.block_until(lambda: answer.done() or self._runs[token].is_void)
        if not answer.done():
            raise LeaseLost("the lease of this job is not this supervisor's any more: end the work")
        return answer.result()

    def _ask(self, token: int, first: int, most: int) -> "asyncio.Future[ResultsPage]":
        if token not in self._runs:
            raise LeaseLost("the job has ended: end its tasks with it")
        self._number += 1
        answer = self._answers[self._number] = self._talk.loop.create_future()
        self._talk.send(messages.pack_wanted(token, ResultsWanted(self._number, first, most)))
        return answer
