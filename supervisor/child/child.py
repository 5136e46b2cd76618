"""Runs jobs one at a time and reports how each ended. Runs in the child, a fork of the zygote.

Owns its ends of `jobs` and `talk` and its working directory. Must not speak to Redis, nor settle a job: the master
decides what an outcome means.
"""

import importlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from setproctitle import setproctitle

from supervisor import clock, messages, sandbox
from supervisor.child import around, printing
from supervisor.child.answers import print_line
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.handler import Handler
from supervisor.child.hooks import registered_hooks
from supervisor.child.outcome_sender import send_outcome, used
from supervisor.child.runner import Runner
from supervisor.child.talk import Talk, handle_notices
from supervisor.linux import kernel
from supervisor.messages import HandlerSettings, JobMessage, Verb
from supervisor.sandbox import DataRoom
from supervisor.sandbox.confinement import Confinement
from supervisor.sandbox.workdir import Workdir


def _do_nothing(_job: object) -> None:
    return


#: A job that does nothing, as a packet, and its handler.
REHEARSAL_KLASS: Final = "rehearsal"
REHEARSAL_JOB: Final = messages.pack_job(0, ("", REHEARSAL_KLASS, "", 0, 0, 0, 0, [], None, False, 0.0), b"{}", False)
REHEARSAL_HANDLER: Final = Handler(_do_nothing, REHEARSAL_KLASS, HandlerSettings(), False)
#: A child without a job for this long is in an idle pool, and has time to rehearse.
_SOON_S: Final = 0.01


def prepare(handlers: Mapping[str, Handler[..., Any]]) -> None:
    """Do in the zygote what each child would otherwise do with its first job."""
    REHEARSAL_HANDLER.prepare(REHEARSAL_KLASS)
    if any(handler.is_async for handler in handlers.values()):
        importlib.import_module("supervisor.child.event_loop")
    if any(handler.settings.shares_child for handler in handlers.values()):
        importlib.import_module("supervisor.child.shared_child")


def run(
    number: int,
    jobs: socket.SocketType,
    talk: socket.SocketType,
    workdir: str,
    handlers: Mapping[str, Handler[..., Any]],
    boot: messages.Boot,
    confinement: Confinement,
) -> NoReturn:
    """Live as child `number`: serve up to `boot.jobs_per_child` jobs, then exit. Never returns or unwinds."""
    status = 70
    own = Workdir(workdir)
    try:
        sandbox.enter(own, boot.open_files)
        if boot.terminal:
            _take_terminal(boot.terminal)
        if confinement.common is not None:
            confinement.enter(confinement.common, workdir, (jobs.fileno(), talk.fileno()))
        own_pid = os.getpid()
        for hook in registered_hooks.after_fork:
            hook()
            if os.getpid() != own_pid:
                os._exit(0)  # a fork made by the hook has returned from it
        for hook in registered_hooks.confined if confinement.common is not None else ():
            hook()
        if registered_hooks.before_fork or registered_hooks.after_fork or registered_hooks.confined:
            handle_notices()  # the hooks may have reset all signals
        status = Child(number, jobs, talk, own, handlers, boot, confinement).serve()
        for hook in registered_hooks.on_exit if status == 0 else ():
            hook()
    except SystemExit as leaving:
        status = _exit_status(leaving)
    except BaseException:  # noqa: BLE001  the child's boundary: any exception ends the child and is printed
        traceback.print_exc()
    finally:
        printing.flush()
        os._exit(status)


def _take_terminal(path: str) -> None:
    """Use a terminal in place of /dev/null and of the pipe for output. Its signals stay with the master's session."""
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    for standard in (0, 1, 2):
        os.dup2(terminal, standard)
    os.close(terminal)


def _exit_status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    sys.stderr.write(f"{leaving.code}\n")
    return 1


class Child:
    def __init__(
        self,
        number: int,
        jobs: socket.SocketType,
        talk: socket.SocketType,
        workdir: Workdir,
        handlers: Mapping[str, Handler[..., Any]],
        boot: messages.Boot,
        confinement: Confinement,
    ) -> None:
        self._number = number
        self._jobs = jobs
        self._socket = talk
        self._talk = Talk(talk)
        self._job_calls = JobCalls(
            self._talk.report, self._talk.checkpoint, self._talk.read_notices, self._talk.ask_results,
            self._talk.stream,
        )  # fmt: skip
        self._workdir = workdir
        self._handlers = handlers
        self._jobs_per_child = boot.jobs_per_child
        self._on_error = boot.on_error
        self._has_terminal = bool(boot.terminal)
        # Not None: handlers differ in their sandbox, and the first job decides.
        self._confinement = confinement if confinement.common is None else None
        self._own_fds = jobs.fileno(), talk.fileno()
        self._open_files = kernel.most_open_files()
        self._data_room = DataRoom()
        self._runner = Runner(self._talk, boot.on_error, boot.memory_limit_bytes, self._data_room.limit)
        self._printing = printing.Printing() if boot.jobs_per_child != 1 else None
        self._pid = os.getpid()

    def serve(self) -> int:
        """Serve jobs, and return the exit status."""
        self._talk.listen()
        setproctitle(f"leasehold: child {self._number} idle")
        self.say_ready()
        served = 0
        while not self._jobs_per_child or served < self._jobs_per_child:
            packet, fds = self._next_packet() if served else self._first_packet()
            if not packet:
                break
            served += 1
            message = messages.unpack_job(packet)
            if self._handlers[message.klass].settings.shares_child:
                return self._share(message, fds)
            setproctitle(
                f"leasehold: child {self._number} {message.klass} {message.jid[:4]}… since {clock.time_of_day()}"
            )
            verb, is_reusable = self.serve_one(message, fds)
            if verb == Verb.OVERFLOWED:
                return 1  # the state of this process is unknown after a MemoryError
            if not is_reusable:
                break
        if registered_hooks.on_exit:
            self._show_idle()
        return 0

    def say_ready(self) -> None:
        self._talk.send(messages.pack_ready(used()[0]))

    def _first_packet(self) -> tuple[bytes, list[int]]:
        """Return the first packet. Rehearse if none comes soon."""
        if not kernel.comes_within(self._jobs, _SOON_S):
            self._rehearse()
        return kernel.receive(self._jobs, messages.MAX_PACKET_BYTES, 1)

    def _rehearse(self) -> None:
        """Run a job that does nothing, without an answer: its pages are copied now instead of during the first job."""
        job = JobContext(messages.unpack_job(REHEARSAL_JOB), self._workdir.path, self._job_calls)
        clock.time_of_day()
        self._talk.begin(job)
        self._runner.perform(job, REHEARSAL_HANDLER)
        self._data_room.limit(0)
        self._talk.end()
        self._show_idle()

    def _next_packet(self) -> tuple[bytes, list[int]]:
        """Return the next packet. Show the title "idle" only if none is there yet."""
        try:
            return kernel.receive(self._jobs, messages.MAX_PACKET_BYTES, 1, wait=False)
        except BlockingIOError:
            self._show_idle()
            return kernel.receive(self._jobs, messages.MAX_PACKET_BYTES, 1)

    def _show_idle(self) -> None:
        setproctitle(f"leasehold: child {self._number} idle")

    def serve_one(self, message: JobMessage, fds: list[int]) -> tuple[Verb, bool]:
        """Run one job and answer it. Returns the verb, and whether another job may follow in this process.

        None may follow if a process of the job still runs, or if the job has changed where output goes.
        """
        if self._confinement is not None:
            self._confine(self._confinement, message.klass)
        if message.payload is None:
            message = message.filled(kernel.read_memfd(fds[0]))
        started_at = clock.monotonic()
        job = JobContext(message, self._workdir.path, self._job_calls)
        self._talk.begin(job)
        ends = around.begin(job) if around.registered else ()
        verb, parts = self._runner.perform(job, self._handlers[message.klass])
        self._data_room.limit(0)  # otherwise the next job's payload would count against this job's limit
        run_s = clock.monotonic() - started_at
        if os.getpid() != self._pid:
            os._exit(0)  # a fork made by the handler has returned from it, and must not answer for this child
        if ends:
            self._runner.end_around(ends, (verb, parts))
        printing.flush()
        kernel.become_subreaper()  # a handler may have cleared it
        is_reusable = sandbox.end_strays()
        if self._printing is not None:
            is_reusable = self._printing.end(message.token, verb != Verb.COMPLETED) and is_reusable
        if kernel.most_open_files() < self._open_files:
            is_reusable = False  # the next job would lack descriptors
            self._workdir.distrust()  # so that `claim` fails as well, whether or not there are files to remove
        self._workdir.claim()  # a handler may have removed the directory
        job.report_progress()
        self._talk.end()
        send_outcome(self._socket, verb, message.token, run_s, parts)
        return verb, is_reusable

    def _share(self, first: JobMessage, fds: list[int]) -> int:
        """Become a child that runs jobs beside each other. Returns the exit status."""
        from supervisor.child.shared_child import SharedChild  # asyncio is a fifth of the image that each fork copies

        if self._confinement is not None:
            self._confine(self._confinement, first.klass)
        self._talk.stop_listening()
        return SharedChild(
            self._number, self._jobs, self._socket, self._workdir, self._handlers, self._on_error, self._has_terminal
        ).serve(first, fds)  # fmt: skip

    def _confine(self, confinement: Confinement, klass: str) -> None:
        self._confinement = None
        confinement.enter(self._handlers[klass].settings.profile, self._workdir.path, self._own_fds)
        if threading.active_count() > 1:
            print_line("threads that @after_fork functions have started before the first job are not in its sandbox")
        for hook in registered_hooks.confined:
            hook()
