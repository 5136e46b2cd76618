"""Runs jobs in the process of pytest, by the code of a child and the rules of the master.

Owns the handlers that it has prepared. Must not settle a job.
"""

import functools
import inspect
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from supervisor import messages
from supervisor.child import around, handlers, loading
from supervisor.child.answers import OUTCOMES
from supervisor.child.handler import Handler, HandlersError
from supervisor.child.orders import Interrupted, SoftTimeout
from supervisor.child.runner import NoNotices, Runner
from supervisor.config import IN_POOL
from supervisor.in_process.outcomes import RunEnd, end_of, end_of_exit
from supervisor.messages import Verb
from supervisor.testing.faults import Crashed
from supervisor.testing.recording import RecordingContext
from supervisor.testing.run import Run

_HIDDEN: Final = ("LEASEHOLD_REDIS_URL", "LEASEHOLD_NAMESPACE")
#: Exceptions of functions of `around_job` that become a line of output. In a child all do. Here others are of the test:
#: Crashed, and those by which pytest and its plugins fail, skip and end it.
_TOLD: Final = (Exception, SystemExit, Interrupted, SoftTimeout)


class Ended(NamedTuple):
    """How a run has ended: as a test sees it, and as the rules of outcomes take it."""

    run: Run
    end: RunEnd


class InProcess:
    def __init__(self, root: str, workdir: str) -> None:
        """`root`: the package of handlers, imported when a klass is not known. `workdir`: empty for each job."""
        self.root = root
        self.workdir = workdir
        self._runner = Runner(NoNotices(), "retry", 0, lambda _bytes: None, keeps_errors=True)
        self._defined: dict[str, Handler[..., Any]] = {}
        self._prepared: dict[str, Handler[..., Any]] = {}
        self._twice: dict[str, str] = {}  # klasses of two handlers, and who has defined them
        self._seen = 0  # registered handlers

    def handler_of(self, klass: str) -> Handler[..., Any]:
        """Return the handler of a klass, ready to run. Imports the package if need be. Raises HandlersError."""
        self._prepare()
        if klass in self._twice:
            raise HandlersError(
                f"two handlers are named {klass!r}, {self._twice[klass]}: a supervisor would not start with them; give"
                " one of them another name="
            )
        if klass not in self._prepared:
            missing = self._import()
            self._prepare()
            if klass not in self._prepared:
                known = ", ".join(sorted(self._prepared)) or "none"
                raise HandlersError(
                    f"no handler of klass {klass!r} is known{missing}; known are: {known}. Import its module in the"
                    " test, or name its package by the ini option leasehold_handlers"
                )
        return self._prepared[klass]

    def _import(self) -> str:
        """Import the package, and return why it has no handlers, if so."""
        try:
            loading.import_all(self.root)
        except HandlersError as error:
            return f" ({error})"
        return ""

    def _prepare(self) -> None:
        registered = handlers.registered()
        for one in registered[self._seen :]:
            klass = one.klass_below(self.root)
            before = self._defined.get(klass, one)
            if before.function is not one.function and not (_is_local(before) or _is_local(one)):
                self._twice[klass] = f"{_place(before)} and {_place(one)}"
            self._defined[klass] = one
            watched = replace(one, function=_watched(one.function), settings=one.settings.within("basic"))
            watched.prepare(klass)
            self._prepared[klass] = watched
        self._seen = len(registered)

    def run(self, job: RecordingContext, handler: Handler[..., Any]) -> Ended:
        """Run one job to its end. Blocks as long as the handler does. Raises what ends the test."""
        try:
            with self._as_a_child():
                end, error = self._perform(job, handler)
        except Crashed:
            return _died(job, RunEnd(None, status=signal.SIGKILL), None)
        if end.verb is None:
            return _died(job, end, error)
        job.report_progress()
        return _ended(job, end, error)

    def _perform(self, job: RecordingContext, handler: Handler[..., Any]) -> tuple[RunEnd, BaseException | None]:
        """Run the handler and the functions around it. Returns its end, and what has left it. Raises Crashed."""
        ends = around.begin(job, _TOLD) if around.registered else ()
        self._runner.raised = None
        try:
            answer = self._runner.perform(job, handler)
        except SystemExit as leaving:
            return end_of_exit(leaving), leaving
        end, error = end_of(answer), self._runner.raised
        job.check_alive()
        if ends and end.verb is not None:
            self._runner.end_around(ends, answer, _TOLD)
            job.check_alive()
        return end, error

    @contextmanager
    def _as_a_child(self) -> Iterator[None]:
        """Be in an empty directory, and have what handlers see in the environment."""
        here = os.getcwd()
        before = {name: os.environ.pop(name) for name in _HIDDEN if name in os.environ}
        os.environ[IN_POOL] = "1"
        try:
            # A handler that was called directly, or the test, may have removed the directory.
            os.makedirs(self.workdir, mode=0o700, exist_ok=True)
            os.chdir(self.workdir)
            yield
        finally:
            os.environ.pop(IN_POOL, None)
            os.environ.update(before)
            os.chdir(here)
            with suppress(OSError):  # it is a directory still, or gone
                os.unlink(self.workdir)  # a file or a link that a handler has put in its place
            shutil.rmtree(self.workdir, ignore_errors=True)
            os.makedirs(self.workdir, mode=0o700, exist_ok=True)


def _is_local(handler: Handler[..., Any]) -> bool:
    """Return whether a handler was defined in a function: a test may define one of its own under any name."""
    return "<locals>" in _place(handler)


def _place(handler: Handler[..., Any]) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', '')}"


def _watched(function: Any) -> Any:
    """Return the function with the points `start` and `return`."""

    @functools.wraps(function)
    def watched(job: RecordingContext, /, **arguments: Any) -> Any:
        job.reach("start")
        result = function(job, **arguments)
        if inspect.iscoroutine(result):
            return _awaited(job, result)
        job.reach("return")
        return result

    return watched


async def _awaited(job: RecordingContext, work: Any) -> Any:
    result = await work
    job.reach("return")
    return result


def _died(job: RecordingContext, end: RunEnd, error: BaseException | None) -> Ended:
    return Ended(_run(job, "died", error=error, message=end.death.reason, traceback=end.overflow or ""), end)


def _ended(job: RecordingContext, end: RunEnd, error: BaseException | None) -> Ended:
    verb, body = end.verb, end.body
    assert verb is not None
    if verb == Verb.SUSPENDED:
        return Ended(_run(job, OUTCOMES[verb], message=messages.unpack_suspension(body).name), end)
    if verb in (Verb.COMPLETED, Verb.FOLLOWED):
        raw = body if verb == Verb.COMPLETED else messages.unpack_completion(body).result
        return Ended(_run(job, OUTCOMES[verb], result=orjson.loads(raw) if raw else None), end)
    group, message, frames, _delay_s = messages.unpack_trouble(body)
    outcome = "failed" if verb == Verb.MISFIT else OUTCOMES[verb]  # no other release is there to take it
    return Ended(_run(job, outcome, error=error, group=group, message=message, traceback=frames or ""), end)


def _run(job: RecordingContext, outcome: str, **known: Any) -> Run:
    return Run(
        job.jid, job.klass, job.attempt, outcome,
        puts=job.puts, progress=job.reported, checkpoints=job.checkpoints, **known,
    )  # fmt: skip
