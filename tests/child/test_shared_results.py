"""Jobs that share a child ask for results one after the other, and stop asking with their lease."""

import asyncio
import os
import socket
import threading

import pytest

from supervisor import LeaseLost, messages
from supervisor.child.shared_results import SharedResults
from supervisor.engine.model.jobs import ParentResult
from supervisor.messages import ResultsPage
from tests.child.shared_stage import SharedStage, play_on


class Run:
    """The part of a `SharedRun` that asks for results."""

    is_void = False


class Stage(SharedStage):
    def __init__(self, loop):
        super().__init__(loop, {1: Run(), 2: Run()})
        self.results = SharedResults(self.shared, self.runs)
        self.take = self.results.answered

    def answer(self):
        """Answer the next question. Return the token of its job."""
        asked = self.said()
        wanted = messages.unpack_wanted(asked.body)
        row = ParentResult(f"p{wanted.first}", b"1")
        self.master.send(messages.pack_page(ResultsPage(wanted.number, 9, [row])))
        return asked.token


def played(play):
    play_on(Stage, play)


async def until(holds):
    while not holds():
        await asyncio.sleep(0)


def is_asked(stage):
    try:
        return bool(stage.master.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def test_threads_of_one_job_get_an_answer_each():
    async def play(stage):
        threads = [asyncio.create_task(asyncio.to_thread(stage.results.ask, 1, first, 8)) for first in range(3)]
        for _ in threads:
            await until(lambda: is_asked(stage))
            assert stage.answer() == 1
            assert not is_asked(stage), "the next question follows the answer"
            stage.read()
        found = [await thread for thread in threads]
        assert sorted(page.results[0].jid for page in found) == ["p0", "p1", "p2"]

    played(play)


def test_jobs_ask_beside_each_other():
    async def play(stage):
        tasks = [asyncio.create_task(stage.results.ask_and_wait(token, 0, 8)) for token in (1, 2)]
        await until(lambda: len(stage.results._asked) == 2)
        assert sorted(stage.answer() for _ in tasks) == [1, 2]
        stage.read()
        stage.read()
        assert [len((await task).results) for task in tasks] == [1, 1]

    played(play)


def test_loop_blocks_until_the_answer():
    def answer_when_asked(stage):
        while not is_asked(stage):
            os.sched_yield()
        stage.answer()

    async def play(stage):
        thread = threading.Thread(target=answer_when_asked, args=(stage,))
        thread.start()
        assert stage.results.ask(1, 4, 8).results[0].jid == "p4"
        thread.join()

    played(play)


def test_lost_lease_ends_the_wait():
    async def play(stage):
        task = asyncio.create_task(stage.results.ask_and_wait(1, 0, 8))
        await until(lambda: is_asked(stage))
        stage.results.give_up(1)
        with pytest.raises(LeaseLost):
            await task
        stage.answer()
        stage.read()
        del stage.runs[1]
        with pytest.raises(LeaseLost, match="the job has ended"):
            stage.results.ask(1, 0, 8)

    played(play)
