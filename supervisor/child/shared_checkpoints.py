"""Stores checkpoints of jobs that share a child, and waits for the answers. Runs in shared children.

Owns which job waits for which answer. The master answers the last checkpoint of a job, and with it all before.
"""

import asyncio
from collections.abc import Mapping

from supervisor import messages
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.child.shared_run import SharedRun
from supervisor.child.shared_talk import SharedTalk
from supervisor.engine.model.errors import LeaseLost
from supervisor.messages import TIMEOUT, Stored


class SharedCheckpoints:
    def __init__(self, talk: SharedTalk, runs: Mapping[int, SharedRun]) -> None:
        """`runs`: by token."""
        self._talk = talk
        self._runs = runs
        self._number = 0  # of the last checkpoint
        self._tokens: dict[int, int] = {}  # of the jobs that wait, by the number of each checkpoint
        self._answers: dict[int, dict[int, asyncio.Future[bool]]] = {}  # by token and number: whether Redis has it

    def stored(self, word: Stored) -> None:
        """Redis has answered the checkpoint of this number."""
        token = self._tokens.get(word.number)
        if token is not None:
            self._resolve(token, word.number, word.kept)

    def give_up(self, token: int) -> None:
        """Nothing is stored for this job any more: its lease is lost, or it has ended."""
        self._resolve(token, self._number, kept=False)

    def _resolve(self, token: int, last: int, kept: bool) -> None:
        waiting = self._answers.get(token, {})
        for number in [number for number in waiting if number <= last]:
            del self._tokens[number]
            answer = waiting.pop(number)
            if not answer.done():
                answer.set_result(kept)
        if not waiting:
            self._answers.pop(token, None)

    async def store_and_wait(self, token: int, state: bytes, step: str = "") -> None:
        """Have the state stored, and wait until it is. Raises LeaseLost, or what interrupts the job at a checkpoint."""
        run, answer = self._ask(token, state, step)
        self._finish(run, await answer)

    def store(self, token: int, state: bytes, step: str = "") -> None:
        """Do the same, and block. In the loop's thread it stops all jobs of the child meanwhile."""
        if not self._talk.is_in_loop:
            self._talk.finish("checkpoint", lambda: self.store_and_wait(token, state, step))
            return
        run, answer = self._ask(token, state, step)
        self._talk.block_until(answer.done)
        self._finish(run, answer.result())

    def _ask(self, token: int, state: bytes, step: str) -> "tuple[SharedRun, asyncio.Future[bool]]":
        run = self._runs.get(token)
        if run is None:
            raise LeaseLost("the job has ended: nothing can be stored for its next start; end its tasks with it")
        if run.is_void:
            raise _lost()
        self._number += 1
        answer = self._talk.loop.create_future()
        self._tokens[self._number] = token
        self._answers.setdefault(token, {})[self._number] = answer
        self._talk.send(messages.pack_checkpoint(token, self._number, state, step))
        return run, answer

    @staticmethod
    def _finish(run: SharedRun, kept: bool) -> None:
        if not kept:
            run.is_void = True
            raise _lost()
        cause, run.checkpoint_cause = run.checkpoint_cause, None
        if cause is not None:
            run.cause = cause
            raise SoftTimeout(cause.message) if cause.reason == TIMEOUT else Interrupted(cause.reason)


def _lost() -> LeaseLost:
    return LeaseLost("the lease of this job is not this supervisor's any more: nothing is stored; end the work")
