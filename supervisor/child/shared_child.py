"""Runs jobs of async handlers beside each other, in one event loop. Runs in the child.

A child becomes shared with its first job of a handler that has `concurrency=`, and stays so. Owns the loop and which
task is whose. Must not settle a job, nor decide how many there are: the master sends as many as may run.

Each job ends by an answer of its own. Whatever else ends the loop ends the process at once, without another word: the
master then settles all jobs as those of a dead child.
"""

import asyncio
import contextlib
import contextvars
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from setproctitle import setproctitle

from supervisor import clock, messages, sandbox
from supervisor.child import printing, shared_output
from supervisor.child.answers import Answer
from supervisor.child.context import JobCalls
from supervisor.child.handler import Handler
from supervisor.child.outcome_sender import send_outcome
from supervisor.child.shared_checkpoints import SharedCheckpoints
from supervisor.child.shared_results import SharedResults
from supervisor.child.shared_run import SharedContext, SharedRun, current, make_task
from supervisor.child.shared_streams import SharedStreams
from supervisor.child.shared_talk import SharedTalk
from supervisor.child.talk import LOSSES
from supervisor.linux import kernel
from supervisor.messages import JobMessage, Notice, ProgressReport, ResultsPage, Taken, Verb
from supervisor.sandbox.workdir import Workdir

#: Packets of one socket that are read before the loop goes on with the jobs.
_MOST_PACKETS: Final = 64
#: Pause between two changes of the process title.
_TITLE_S: Final = 0.2
#: The exit status after an exception in our own part of the loop.
_BROKEN: Final = 70


class SharedChild:
    def __init__(
        self,
        number: int,
        jobs: socket.SocketType,
        talk: socket.SocketType,
        workdir: Workdir,
        handlers: Mapping[str, Handler[..., Any]],
        on_error: str,
        has_terminal: bool,
    ) -> None:
        """`on_error`: for handlers without their own. `has_terminal`: people read what is printed."""
        self._number = number
        self._jobs = jobs
        self._talk = talk
        self._workdir = workdir
        self._handlers = handlers
        self._on_error = on_error
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(make_task)
        self._runs: dict[int, SharedRun] = {}  # by token
        self._shared_talk = SharedTalk(self._loop, talk, self._read_talk)
        self._checkpoints = SharedCheckpoints(self._shared_talk, self._runs)
        self._results = SharedResults(self._shared_talk, self._runs)
        self._streams = SharedStreams(self._shared_talk, self._runs)
        self._calls = JobCalls(
            self._report, self._checkpoints.store, self._look_for_notices, self._results.ask, self._streams.send
        )
        self._outputs = shared_output.install(has_marks=not has_terminal)
        self._pid = os.getpid()
        self._klass = ""  # of the last job
        self._title_planned = False
        self._takes_jobs = True
        self._is_done = False

    def serve(self, first: JobMessage, fds: list[int]) -> int:
        """Run the first job and all that come, and return the exit status. Blocks until the master sends no more.

        Raises what leaves the loop: SystemExit of a handler, or RuntimeError if one has stopped it.
        """
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._or_exit, self._begin, first, fds)
        self._loop.add_reader(self._jobs.fileno(), self._or_exit, self._read_jobs)
        self._loop.add_reader(self._talk.fileno(), self._or_exit, self._read_talk)
        self._loop.run_forever()
        if not self._is_done:
            raise RuntimeError("a job has stopped the event loop that others share with it")
        return 0

    def _or_exit(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call what the loop would otherwise only log the exceptions of: the jobs that it drops would hang for ever."""
        if os.getpid() != self._pid:
            os._exit(0)  # a fork made by a handler has gone on with this loop, and must not read what is for this child
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001  the child's boundary
            self._exit()

    def _exit(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
        os._exit(_BROKEN)

    # what comes

    def _read_jobs(self) -> None:
        """Begin the jobs that have come. The end of the socket means that no more will come."""
        for _ in range(_MOST_PACKETS):
            try:
                packet, fds = kernel.receive(self._jobs, messages.MAX_PACKET_BYTES, 1, wait=False)
            except BlockingIOError:
                return
            if not packet:
                self._take_no_more()
                return
            self._begin(messages.unpack_job(packet), fds)

    def _take_no_more(self) -> None:
        self._takes_jobs = False
        self._loop.remove_reader(self._jobs.fileno())
        self._stop_if_done()

    def _read_talk(self) -> None:
        """Act on what the master says. Never waits."""
        for _ in range(_MOST_PACKETS):
            try:
                packet = self._talk.recv(messages.MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not packet:  # the master is gone, and the zygote is about to end this process
                self._shared_talk.at_end = True
                self._loop.remove_reader(self._talk.fileno())
                return
            word = messages.unpack_word(packet)
            if isinstance(word, Notice):
                self._on_notice(word)
            elif isinstance(word, ResultsPage):
                self._results.answered(word)
            elif isinstance(word, Taken):
                self._streams.taken(word)
            else:
                self._checkpoints.stored(word)

    def _on_notice(self, notice: Notice) -> None:
        run = self._runs.get(notice.token)
        if run is None:
            return
        run.job.tell_to_stop()
        if notice.reason in LOSSES:
            run.is_void = True
            self._checkpoints.give_up(notice.token)
            self._results.give_up(notice.token)
            run.room.set()
        if notice.at_checkpoint:
            run.checkpoint_cause = notice
        elif not notice.gently:
            run.cancel(notice)
        self._talk.send(messages.pack_outcome(Verb.HEARD, notice.token, 0.0))

    # one job

    def _begin(self, message: JobMessage, fds: list[int]) -> None:
        if message.payload is None:
            message = message.filled(kernel.read_memfd(fds[0]))
        job = SharedContext(
            message, self._workdir.path, self._calls, self._checkpoints.store_and_wait, self._streams.send_and_wait
        )  # fmt: skip
        run = SharedRun(job, self._handlers[message.klass])
        self._runs[message.token] = run
        self._klass = message.klass
        context = contextvars.copy_context()
        context.run(current.set, run)
        # Not by the loop: a handler may have replaced its task factory.
        run.task = asyncio.Task(self._run(run), loop=self._loop, context=context)
        self._plan_title()

    async def _run(self, run: SharedRun) -> None:
        """Run the job to its answer. Only SystemExit leaves, and ends the loop and the child with it."""
        run.has_begun = True
        try:
            self._end(run, await run.perform(self._on_error))
        except SystemExit:
            raise
        except BaseException:  # noqa: BLE001  the child's boundary
            self._exit()

    def _end(self, run: SharedRun, answer: Answer) -> None:
        job, (verb, parts) = run.job, answer
        run_s = clock.monotonic() - run.started_at
        if os.getpid() != self._pid:
            os._exit(0)  # a fork made by the handler has returned from it, and must not answer for this child
        run.end_around(answer)
        run.cancel_tasks()
        for output in self._outputs:
            output.end(job.token)
        job.remove_workdir()
        job.report_progress()
        del self._runs[job.token]
        self._checkpoints.give_up(job.token)
        self._results.give_up(job.token)
        run.room.set()
        if not self._runs:
            self._clean_up()
        send_outcome(self._talk, verb, job.token, run_s, parts)
        self._plan_title()
        self._stop_if_done()

    def _clean_up(self) -> None:
        """No job runs: end what they have left. If that does not end, this process must."""
        printing.flush()
        kernel.become_subreaper()  # a handler may have cleared it
        if not sandbox.end_strays():
            self._takes_jobs = False
        self._workdir.claim()

    def _stop_if_done(self) -> None:
        if not (self._takes_jobs or self._runs):
            self._is_done = True
            self._loop.stop()

    # what the jobs say

    def _report(self, token: int, progress: ProgressReport) -> None:
        """Send progress. Drops it if the socket is full, or if the job has ended."""
        if token in self._runs:
            with contextlib.suppress(BlockingIOError):
                self._talk.send(messages.pack_progress(token, progress), socket.MSG_DONTWAIT)

    def _look_for_notices(self) -> None:
        """Read notices while a coroutine keeps the loop from doing it."""
        if self._shared_talk.is_in_loop:
            self._read_talk()

    # the title

    def _plan_title(self) -> None:
        if not self._title_planned:
            self._title_planned = True
            self._loop.call_later(_TITLE_S, self._show_title)

    def _show_title(self) -> None:
        self._title_planned = False
        what = f"{self._klass} x{len(self._runs)}" if self._runs else "idle"
        setproctitle(f"leasehold: child {self._number} {what}")
