"""What a child hears while it runs a job: notices, and what becomes of its checkpoints. Runs in children.

Owns the child's end of `talk`. Must not decide what an interruption means: it is raised in the handler, no more.

Who reads: the thread that waits for the answer to a checkpoint. While there is none, the signal handler, and any thread
that reads `should_stop`. None of them takes a lock, because the signal handler may have interrupted its holder. So a
reader may, very rarely, take the answer that another thread is about to wait for: that thread looks again soon.
"""

import contextlib
import os
import select
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from supervisor import messages
from supervisor.child.handlers import Interrupted, SoftTimeout
from supervisor.child.job import Job
from supervisor.engine.model.errors import LeaseLost
from supervisor.linux import kernel
from supervisor.messages import TIMEOUT, Notice, Progress, Stored

if TYPE_CHECKING:
    import asyncio

#: Reasons of a notice by which the lease is void: nothing is stored for this job any more.
_LOSSES: Final = frozenset({"cancelled", "lease-lost"})


#: How long the wait for an answer lasts, before it is seen whether another thread has read it.
_WAIT_MS: Final = 50


_listening: "Talk | None" = None


def heed_notices() -> None:
    """In the zygote, for all that it forks: `Talk.listen` then costs a child next to nothing. Who does not listen yet
    hears nothing; he is told again.
    """
    signal.signal(kernel.NOTICE_SIGNAL, _on_notice)


def _on_notice(_signo: int, _frame: Any) -> None:
    if _listening is not None:
        _listening.hear()


class Talk:
    def __init__(self, talk: socket.SocketType) -> None:
        self._talk = talk
        self._poll = select.poll()
        self._poll.register(talk, select.POLLIN)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._job: Job | None = None
        self._telling = threading.Lock()  # held while something is sent, so that nothing comes after its job's outcome
        self._task: asyncio.Task[Any] | None = None  # of the handler that runs, where it is a coroutine
        self._running_token = 0  # of the job whose handler may be interrupted; 0: none
        self._last: Notice | None = None  # it may come before its job is being run
        self._due: Notice | None = None  # what is to be raised yet
        self._raised: Notice | None = None  # what was raised last
        self._asking = threading.RLock()  # one checkpoint at a time
        self._reader = 0  # the thread that waits for an answer, and reads all that comes meanwhile
        self._number = 0  # of the last checkpoint
        self._answer = Stored(0, True)  # the last one
        self._void_token = 0  # of the job whose lease is known to be lost
        self._at_end = False  # the master has closed its end

    def listen(self) -> None:
        """After `heed_notices`."""
        global _listening
        _listening = self

    def send(self, packet: bytes) -> None:
        self._talk.send(packet)

    def send_with(self, packet: bytes, memfd: int) -> None:
        kernel.send(self._talk, packet, (memfd,))

    # one job after another

    def begin(self, job: Job) -> None:
        self._job = job
        if self._last is not None and self._last.token == job.token:
            job.tell_to_stop()

    def may_interrupt(self, token: int) -> None:
        """From now on notices are raised in the handler, also one that has come before."""
        self._running_token = token
        self._act()

    def must_not_interrupt(self) -> None:
        self._running_token = 0

    def may_cancel(self, task: "asyncio.Task[Any] | None") -> None:
        """The handler is this task: it is cancelled in place of an exception in the midst of its loop."""
        self._task = task

    def end(self) -> None:
        """Whatever a thread has left to say of the job it may not say any more."""
        with self._telling:
            self._job = None

    def cause_of_cancel(self, token: int) -> BaseException | None:
        """What the cancellation of the handler's task stands for; None if it was not ours."""
        raised = self._raised
        return _wish(raised) if raised is not None and raised.token == token else None

    def report(self, token: int, progress: Progress) -> None:
        """Tell how far the job is. What the master has no room for is dropped: a handler must not wait for it; and what
        a thread tells that an earlier job has left running.
        """
        with self._telling:
            if self._job is not None and self._job.token == token:
                with contextlib.suppress(BlockingIOError):
                    self._talk.send(messages.pack_progress(token, progress), socket.MSG_DONTWAIT)

    # notices

    def hear(self) -> None:
        """There is a notice. In the main thread, at any instruction of it."""
        if self._reader == self._main:
            return  # we have interrupted its wait: it reads, and raises
        if not self._reader:
            self._read()
        self._act()

    def look(self) -> None:
        """Take in notices that no signal tells of. Never waits; from any thread. A fork of the job's process would take
        what is not for it: it looks at nothing.
        """
        if self._reader or os.getpid() != self._pid:
            return
        self._read()
        if threading.get_ident() == self._main:
            self._act()
        elif self._is_due():
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)

    def _read(self) -> None:
        """Take in all that has come. Never waits. Whoever waits for an answer by now takes the rest."""
        while self._reader in (0, threading.get_ident()):
            try:
                packet = self._talk.recv(messages.MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return  # also where the signal came twice for one notice
            if not packet:
                self._at_end = True
                return
            word = messages.unpack_word(packet)
            if isinstance(word, Notice):
                self._heed(word)
            elif word.number > self._answer.number:
                self._answer = word

    def _heed(self, notice: Notice) -> None:
        self._last = notice
        if self._job is not None and notice.token == self._job.token:
            self._job.tell_to_stop()
        if notice.reason in _LOSSES:
            self._void_token = notice.token
        if not notice.gently:
            self._due = notice

    def _act(self) -> None:
        """In the main thread: raise what is due anywhere in the handler."""
        due = self._due
        if due is None or not self._is_due():
            return
        self._is_raised(due)
        if self._task is None:
            raise _wish(due)
        # Raised in the midst of the loop, it would end in whatever task or callback runs, and might be lost there.
        self._cancel()

    def _is_due(self) -> bool:
        """True if something is to be raised anywhere in the handler that runs."""
        due = self._due
        return due is not None and due.token == self._running_token and not due.at_checkpoint

    def _is_raised(self, due: Notice) -> None:
        self._due, self._raised = None, due
        if due.reason != TIMEOUT:
            self._running_token = 0  # once; one whose time was nearly up may be interrupted yet

    def _cancel(self) -> None:
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # checkpoints

    def checkpoint(self, token: int, state: bytes) -> None:
        """Have the state stored, and wait until it is. Raises LeaseLost, and in the main thread what is due: anything
        while it waits, and what was put off until a checkpoint once the state is stored.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("job.checkpoint was called in a fork of the job's process: call it in that itself")
        in_main = threading.get_ident() == self._main
        with self._asking:
            before, self._reader = self._reader, threading.get_ident()
            try:
                number = self._ask(token, state, in_main)
                self._wait(token, number, in_main)
                is_lost = self._void_token == token or not (self._answer.kept or self._answer.number > number)
                if is_lost and in_main:
                    self._running_token = 0  # it is told by LeaseLost, and by nothing that comes in between
            finally:
                self._reader = before
                self._read()  # what came in between, the signal handler has left to us
            if is_lost:
                raise self._lost(token, in_main)
        due = self._due
        if due is None or due.token != self._running_token:
            return
        if in_main or due.at_checkpoint:
            self._raise_here(due, in_main)
        signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)

    def _ask(self, token: int, state: bytes, in_main: bool) -> int:
        with self._telling:
            if self._job is None or self._job.token != token:
                raise LeaseLost("the job has ended: nothing can be stored for its next start; end its threads with it")
            if self._void_token == token:
                raise self._lost(token, in_main)
            self._number += 1
            self._talk.send(messages.pack_checkpoint(token, self._number, state))
            return self._number

    def _wait(self, token: int, number: int, in_main: bool) -> None:
        while self._answer.number < number and self._void_token != token:
            due = self._due
            if in_main and due is not None and self._is_due():
                self._raise_here(due, in_main)
            if self._at_end:
                raise LeaseLost("the supervisor has ended: nothing can be stored any more")
            if self._poll.poll(_WAIT_MS):
                self._read()
                if not in_main and self._is_due():
                    signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)

    def _raise_here(self, due: Notice, in_main: bool) -> None:
        """In the handler, out of the call that it has made. One that was made in a thread, or by another task than the
        handler's own, does not end the handler: that is told as well.
        """
        if not in_main:
            self._due = due._replace(at_checkpoint=False)
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)
            raise _wish(due)
        self._is_raised(due)
        if self._task is not None and not _is_current(self._task):
            self._cancel()
        raise _wish(due)

    def _lost(self, token: int, in_main: bool) -> LeaseLost:
        self._void_token = token
        if in_main:
            self._running_token = 0  # it is told by this
        else:
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)
        return LeaseLost("the lease of this job is not this supervisor's any more: nothing is stored; end the work")


def _is_current(task: "asyncio.Task[Any]") -> bool:
    """Whether it is this task that runs just now."""
    from asyncio import current_task

    return current_task(task.get_loop()) is task


def _wish(notice: Notice) -> BaseException:
    """A notice as what is raised in the handler."""
    return SoftTimeout(notice.message) if notice.reason == TIMEOUT else Interrupted(notice.reason)
