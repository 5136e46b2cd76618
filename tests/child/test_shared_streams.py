"""Jobs that share a child stream in order, wait apart from each other, and end with their lease."""

import asyncio
import socket
import threading

import pytest

from supervisor import LeaseLost, messages
from supervisor.child.chunk_window import ChunkWindow
from supervisor.child.shared_streams import SharedStreams
from supervisor.engine.model.chunks import to_chunk
from supervisor.messages import MOST_CHUNKS, Taken
from tests.child.shared_stage import SharedStage, play_on


class Run:
    """The part of a `SharedRun` that streams."""

    def __init__(self):
        self.window, self.room, self.is_void = ChunkWindow(), asyncio.Event(), False


class Stage(SharedStage):
    def __init__(self, loop):
        super().__init__(loop, {1: Run(), 2: Run()})
        self.streams = SharedStreams(self.shared, self.runs)
        self.take = self.streams.taken

    def sent(self):
        """Return the next chunk that has come, with its token."""
        outcome = self.said()
        return outcome.token, outcome.body

    def fill(self, token):
        for number in range(MOST_CHUNKS):
            self.streams.send(token, to_chunk(number))
            assert self.sent() == (token, to_chunk(number))


def played(play):
    play_on(Stage, play)


async def started(coroutine):
    """Let a task come to where it waits."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_full_window_of_one_job_holds_up_no_other():
    async def play(stage):
        stage.fill(1)
        waits = await started(stage.streams.send_and_wait(1, to_chunk("more")))
        await stage.streams.send_and_wait(2, to_chunk("other"))
        assert stage.sent() == (2, to_chunk("other"))
        stage.streams.taken(Taken(1, 1))
        await waits
        assert stage.sent() == (1, to_chunk("more"))

    played(play)


@pytest.mark.parametrize("how", ["lost", "ended"])
def test_waiting_job_ends_with_its_lease_or_itself(how):
    async def play(stage):
        stage.fill(1)
        waits = await started(stage.streams.send_and_wait(1, to_chunk("more")))
        run = stage.runs[1]
        if how == "lost":
            run.is_void = True
        else:
            del stage.runs[1]
        run.room.set()
        with pytest.raises(LeaseLost):
            await waits

    played(play)


def test_call_that_blocks_goes_on_with_the_answer_and_ends_with_the_master():
    async def play(stage):
        stage.fill(1)
        stage.master.send(messages.pack_taken(Taken(1, 1)))
        stage.streams.send(1, to_chunk("more"))
        assert stage.sent() == (1, to_chunk("more"))
        stage.master.shutdown(socket.SHUT_WR)
        with pytest.raises(LeaseLost, match="the supervisor has ended"):
            stage.streams.send(1, to_chunk("never"))

    played(play)


def test_threads_stream_by_way_of_the_loop():
    async def play(stage):
        ends = []
        thread = threading.Thread(target=lambda: ends.append(stage.streams.send(1, to_chunk("from a thread"))))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert ends == [None]
        assert stage.sent() == (1, to_chunk("from a thread"))

    played(play)


def test_answer_for_a_job_that_has_ended_is_passed_over():
    async def play(stage):
        stage.streams.taken(Taken(7, 3))

    played(play)
