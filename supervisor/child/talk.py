"""The child's end of `talk`: notices, and the answers to checkpoints, questions and chunks. Runs in children.

Owns the socket. Must not decide what an interruption means: it only raises it in the handler.

Readers: the thread that waits for an answer; without one, the signal handler and any thread that reads
`should_stop`. No reader takes a lock, because the signal handler may have interrupted the lock's holder. So a reader
may, very rarely, take the answer that another thread is about to wait for; that thread polls again soon.
"""

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from supervisor import messages
from supervisor.child.chunk_window import ChunkWindow
from supervisor.child.context import JobContext
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.engine.model.errors import LeaseLost
from supervisor.linux import kernel
from supervisor.messages import TIMEOUT, Notice, ProgressReport, ResultsPage, ResultsWanted, Stored, Taken

if TYPE_CHECKING:
    import asyncio

#: Notices with these reasons make the lease void: nothing is stored for this job any more.
LOSSES: Final = frozenset({"cancelled", "lease-lost"})


#: Time until the waiting thread checks whether another thread has read its answer.
_WAIT_MS: Final = 50


_listening: "Talk | None" = None


def handle_notices() -> None:
    """Install the signal handler in the zygote: forks inherit it, so `Talk.listen` costs a child next to nothing.

    A child that does not listen yet misses the notice. The master repeats it.
    """
    signal.signal(kernel.NOTICE_SIGNAL, _on_notice)


def _on_notice(_signo: int, _frame: Any) -> None:
    if _listening is not None:
        _listening.on_notice()


class Talk:
    def __init__(self, talk: socket.SocketType) -> None:
        self._talk = talk
        self._poll = select.poll()
        self._poll.register(talk, select.POLLIN)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._job: JobContext | None = None
        self._sending = threading.Lock()  # so that no thread sends anything after its job's outcome
        self._task: asyncio.Task[Any] | None = None  # of the running handler, if it is a coroutine
        self._interruptible_token = 0  # of the job whose handler may be interrupted; 0: none
        self._last: Notice | None = None  # may come before its job runs
        self._due: Notice | None = None  # not raised yet
        self._raised: Notice | None = None
        self._waiting = threading.RLock()  # one thread at a time waits for an answer
        self._reader = 0  # the thread that waits for an answer, and so reads everything
        self._number = 0  # of the last checkpoint
        self._answer = Stored(0, True)
        self._page = ResultsPage(0, 0)  # the answer to the last question
        self._streaming = threading.RLock()  # so that chunks keep their order
        self._window = ChunkWindow()
        self._void_token = 0  # of the job whose lease is lost
        self._at_end = False  # the master has closed its end

    def listen(self) -> None:
        """Become the receiver of notices. Call it after `handle_notices`."""
        global _listening
        _listening = self

    def stop_listening(self) -> None:
        """Leave the socket to another reader. The signal of a notice does nothing from now on."""
        global _listening
        _listening = None

    def send(self, packet: bytes) -> None:
        self._talk.send(packet)

    # one job after another

    def begin(self, job: JobContext) -> None:
        self._job = job
        self._window = ChunkWindow()
        if self._last is not None and self._last.token == job.token:
            job.tell_to_stop()

    def may_interrupt(self, token: int) -> None:
        """From now on raise notices in the handler. Raise one that has come before at once."""
        self._interruptible_token = token
        self._raise_due()

    def must_not_interrupt(self) -> None:
        self._interruptible_token = 0

    def may_cancel(self, task: "asyncio.Task[Any] | None") -> None:
        """The handler is this task: cancel it instead of raising an exception inside of its loop."""
        self._task = task

    def end(self) -> None:
        """From now on send nothing for this job, whichever thread wants to."""
        with self._sending:
            self._job = None

    def cause_of_cancel(self, token: int) -> BaseException | None:
        """Return the exception that the cancellation of the handler's task stands for. None: it was not ours."""
        raised = self._raised
        return _exception_for(raised) if raised is not None and raised.token == token else None

    def report(self, token: int, progress: ProgressReport) -> None:
        """Send progress. Drops it if the socket is full, because a handler must not wait, or if the job has ended."""
        with self._sending:
            if self._job is not None and self._job.token == token:
                with contextlib.suppress(BlockingIOError):
                    self._talk.send(messages.pack_progress(token, progress), socket.MSG_DONTWAIT)

    # notices

    def on_notice(self) -> None:
        """Handle the signal of a notice. Runs in the main thread, at any instruction of it."""
        if self._reader == self._main:
            return  # the signal interrupted that thread's wait: it reads and raises
        if not self._reader:
            self._read()
        self._raise_due()

    def read_notices(self) -> None:
        """Handle notices without a signal. Never waits. Any thread may call it. Does nothing in a fork."""
        if self._reader or os.getpid() != self._pid:
            return
        self._read()
        if threading.get_ident() == self._main:
            self._raise_due()
        elif self._is_due():
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)

    def _read(self) -> None:
        """Read everything that has come. Never waits. Stops when a thread starts to wait for an answer."""
        while self._reader in (0, threading.get_ident()):
            try:
                packet = self._talk.recv(messages.MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return  # nothing left; a signal may come twice for one notice
            if not packet:
                self._at_end = True
                return
            word = messages.unpack_word(packet)
            if isinstance(word, Notice):
                self._accept(word)
            elif isinstance(word, ResultsPage):
                self._page = word
            elif isinstance(word, Taken):
                if self._job is not None and word.token == self._job.token:
                    self._window.taken(word.chunks)
            elif word.number > self._answer.number:
                self._answer = word

    def _accept(self, notice: Notice) -> None:
        self._last = notice
        if self._job is not None and notice.token == self._job.token:
            self._job.tell_to_stop()
        if notice.reason in LOSSES:
            self._void_token = notice.token
        if not notice.gently:
            self._due = notice

    def _raise_due(self) -> None:
        """In the main thread: raise the notice that is due anywhere in the handler."""
        due = self._due
        if due is None or not self._is_due():
            return
        self._note_raised(due)
        if self._task is None:
            raise _exception_for(due)
        # An exception inside of the loop would end in whatever task or callback runs, and might be lost there.
        self._cancel()

    def _is_due(self) -> bool:
        """True if a notice must be raised anywhere in the handler that runs."""
        due = self._due
        return due is not None and due.token == self._interruptible_token and not due.at_checkpoint

    def _note_raised(self, due: Notice) -> None:
        self._due, self._raised = None, due
        if due.reason != TIMEOUT:
            self._interruptible_token = 0  # once; after SoftTimeout an interruption may follow

    def _cancel(self) -> None:
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # checkpoints

    def checkpoint(self, token: int, state: bytes, step: str = "") -> None:
        """Have the state stored, or the result of a step, and wait until it is. Raises LeaseLost.

        The main thread also raises notices: any that is due while it waits, and those `at_checkpoint` once the state is
        stored.
        """
        in_main = self._is_main("checkpoint")
        with self._waiting:
            with self._as_reader():
                number = self._ask(token, in_main, lambda number: messages.pack_checkpoint(token, number, state, step))
                self._wait(token, lambda: self._answer.number >= number, in_main)
                is_lost = self._void_token == token or not (self._answer.kept or self._answer.number > number)
                if is_lost and in_main:
                    self._interruptible_token = 0  # LeaseLost says it; no notice may come in between
            if is_lost:
                raise self._lost(token, in_main)
        due = self._due
        if due is None or due.token != self._interruptible_token:
            return
        if in_main or due.at_checkpoint:
            self._raise_here(due, in_main)
        signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)

    def _is_main(self, call: str) -> bool:
        """Return whether this is the main thread. Raises RuntimeError in a fork of the process."""
        if os.getpid() != self._pid:
            raise call_in_fork(call)
        return threading.get_ident() == self._main

    @contextlib.contextmanager
    def _as_reader(self) -> Iterator[None]:
        before, self._reader = self._reader, threading.get_ident()
        try:
            yield
        finally:
            self._reader = before
            self._read()  # while we waited, the signal handler read nothing

    def _ask(self, token: int, in_main: bool, pack: Callable[[int], bytes]) -> int:
        """Send what the master answers: `pack(number)`. Return its number."""
        with self._sending:
            self._check_holds(token, in_main)
            self._number += 1
            self._talk.send(pack(self._number))
            return self._number

    def _check_holds(self, token: int, in_main: bool) -> None:
        """Raise LeaseLost if the job has ended, or its lease is lost."""
        if self._job is None or self._job.token != token:
            raise LeaseLost("the job has ended: nothing can be stored for it any more; end its threads with it")
        if self._void_token == token:
            raise self._lost(token, in_main)

    def _wait(self, token: int, is_answered: Callable[[], bool], in_main: bool) -> None:
        while not is_answered() and self._void_token != token:
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
        """Raise the notice out of the handler's call. If a thread, or another task than the handler's own, has made
        that call, interrupt the handler as well.
        """
        if not in_main:
            self._due = due._replace(at_checkpoint=False)
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)
            raise _exception_for(due)
        self._note_raised(due)
        if self._task is not None and not _is_current(self._task):
            self._cancel()
        raise _exception_for(due)

    def _lost(self, token: int, in_main: bool) -> LeaseLost:
        self._void_token = token
        if in_main:
            self._interruptible_token = 0  # LeaseLost says it
        else:
            signal.pthread_kill(self._main, kernel.NOTICE_SIGNAL)
        return LeaseLost("the lease of this job is not this supervisor's any more: nothing is stored; end the work")

    # results of parents

    def ask_results(self, token: int, first: int, most: int) -> ResultsPage:
        """Ask for results of the job's parents, and wait for the answer. Raises LeaseLost.

        A wait raises notices in the main thread, except those that are left to the next checkpoint.
        """
        in_main = self._is_main("results")
        with self._waiting:
            while (page := self._ask_once(token, first, most, in_main)) is None:
                pass  # a signal handler of the job's own has asked in between
        return page

    def _ask_once(self, token: int, first: int, most: int, in_main: bool) -> ResultsPage | None:
        with self._as_reader():
            number = self._ask(
                token, in_main, lambda number: messages.pack_wanted(token, ResultsWanted(number, first, most))
            )
            self._wait(token, lambda: self._page.number >= number, in_main)
        if self._page.number < number:
            raise self._lost(token, in_main)
        return self._page if self._page.number == number else None

    # chunks

    def stream(self, token: int, chunk: bytes) -> None:
        """Send a packed chunk. Waits while many are on their way. Raises LeaseLost.

        A wait raises notices in the main thread, except those that are left to the next checkpoint.
        """
        in_main = self._is_main("stream")
        with self._streaming:
            if self._window.is_half_full:
                self.read_notices()
            while not self._send_chunk(token, chunk, in_main):
                with self._waiting, self._as_reader():
                    self._wait(token, lambda: self._job is None or self._window.has_room(len(chunk)), in_main)

    def _send_chunk(self, token: int, chunk: bytes, in_main: bool) -> bool:
        """Return False if the chunk has no room."""
        with self._sending:
            self._check_holds(token, in_main)
            if not self._window.has_room(len(chunk)):
                return False
            self._window.add(len(chunk))
            self._talk.send(messages.pack_chunk(token, chunk))
            return True


def call_in_fork(call: str) -> RuntimeError:
    """Return the error of a call of `job` that a fork of its process makes: the socket is that process's."""
    return RuntimeError(f"job.{call} was called in a fork of the job's process: call it in that itself")


def _is_current(task: "asyncio.Task[Any]") -> bool:
    """True if this task runs now."""
    from asyncio import current_task

    return current_task(task.get_loop()) is task


def _exception_for(notice: Notice) -> BaseException:
    """Return the exception to raise in the handler."""
    return SoftTimeout(notice.message) if notice.reason == TIMEOUT else Interrupted(notice.reason)
