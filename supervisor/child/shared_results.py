"""Asks for the results of parents for jobs that share a child. Runs in shared children."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from supervisor import messages
from supervisor.child.shared_run import SharedRun
from supervisor.child.shared_talk import SharedTalk
from supervisor.engine.model.errors import LeaseLost
from supervisor.messages import ResultsPage, ResultsWanted


class _Question(NamedTuple):
    number: int
    page: "asyncio.Future[ResultsPage | None]"  # its result is None if the job has ended, or has lost its lease


class SharedResults:
    def __init__(self, talk: SharedTalk, runs: Mapping[int, SharedRun]) -> None:
        """`runs`: by token."""
        self._talk = talk
        self._runs = runs
        self._number = 0  # of the last question
        self._asked: dict[int, _Question] = {}  # by token: a job has one question at a time

    def answered(self, page: ResultsPage) -> None:
        for token, question in self._asked.items():
            if question.number == page.number:
                self._resolve(token, page)
                return

    def give_up(self, token: int) -> None:
        """This job gets no answer any more: its lease is lost, or it has ended."""
        if token in self._asked:
            self._resolve(token, None)

    def _resolve(self, token: int, page: ResultsPage | None) -> None:
        answer = self._asked.pop(token).page
        if not answer.done():
            answer.set_result(page)

    async def ask_and_wait(self, token: int, first: int, most: int) -> ResultsPage:
        """Ask for results of a job's parents. Threads of a job ask one after the other. Raises LeaseLost."""
        while (asked := self._asked.get(token)) is not None:
            await asyncio.wait([asked.page])
        return _page_of(await self._ask(token, first, most))

    def ask(self, token: int, first: int, most: int) -> ResultsPage:
        """Do the same, and block. In the loop's thread it stops all jobs of the child meanwhile."""
        if not self._talk.is_in_loop:
            return self._talk.finish("results", lambda: self.ask_and_wait(token, first, most))
        self._talk.block_until(lambda: token not in self._asked)
        answer = self._ask(token, first, most)
        self._talk.block_until(answer.done)
        return _page_of(answer.result())

    def _ask(self, token: int, first: int, most: int) -> "asyncio.Future[ResultsPage | None]":
        run = self._runs.get(token)
        if run is None or run.is_void:
            raise _lost()
        self._number += 1
        answer: asyncio.Future[ResultsPage | None] = self._talk.loop.create_future()
        self._asked[token] = _Question(self._number, answer)
        self._talk.send(messages.pack_wanted(token, ResultsWanted(self._number, first, most)))
        return answer


def _page_of(answer: ResultsPage | None) -> ResultsPage:
    if answer is None:
        raise _lost()
    return answer


def _lost() -> LeaseLost:
    return LeaseLost("the job has ended, or its lease is not this supervisor's any more: end the work")
