"""Sends the chunks of jobs that share a child, and lets a job wait while it has too many under way. Runs in shared
children.
"""

from collections.abc import Mapping

from supervisor import messages
from supervisor.child.shared_run import SharedRun
from supervisor.child.shared_talk import SharedTalk
from supervisor.engine.model.errors import LeaseLost
from supervisor.messages import Taken


class SharedStreams:
    def __init__(self, talk: SharedTalk, runs: Mapping[int, SharedRun]) -> None:
        """`runs`: by token."""
        self._talk = talk
        self._runs = runs

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
        if self._talk.is_in_loop:
            self._talk.block_until(lambda: self._without_room(token, chunk) is None)
        else:
            self._talk.finish("stream", lambda: self.send_and_wait(token, chunk))

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
