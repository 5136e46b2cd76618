"""Runs the functions of `around_job` before and after a handler. Runs in children.

Owns the order: the first registered is the outermost. No function of theirs can fail a job or change its outcome.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from supervisor.child.answers import print_line, text_of
from supervisor.messages import Trouble

if TYPE_CHECKING:
    from supervisor.child.context import JobContext


class Ending(NamedTuple):
    """How a run ended: completed, retried, failed, interrupted, suspended or misfit; and why, in words and as the
    exception that left the handler.

    A misfit has data that do not fit the parameters, and its handler was not called. Another release takes the job, or
    it is `broken`: a child cannot know.
    """

    outcome: str
    trouble: Trouble | None = None
    exception: BaseException | None = None


#: A generator function, which yields once and gets the Ending there, or a function that returns a context manager.
Around = Callable[["JobContext"], Generator[Any, Ending, Any] | AbstractContextManager[Any]]
A = TypeVar("A", bound=Around)
End = Callable[[Ending], object]
Kinds = type[BaseException] | tuple[type[BaseException], ...]

registered: list[Around] = []


def around_job(function: A) -> A:
    """Have `function(job)` run around each handler: a generator that yields once, or a context manager.

    The generator gets an `Ending` from its yield. The context manager gets the exception that left the handler, and
    cannot swallow it. Both halves run in the child, count towards the job's time, and are not interrupted. An exception
    of either becomes a line in the job's output. The first function is the outermost. They are not called again for a
    job whose child dies.
    """
    if not callable(function):
        raise TypeError(f"@around_job takes a function of the job, not {function!r}")
    registered.append(function)
    return function


def begin(job: "JobContext", told: Kinds = BaseException) -> list[End]:
    """Run the first halves. Returns the second ones, in the order of the first.

    `told`: exceptions of theirs that become a line in the job's output. Others leave, and Ctrl-C in any case.
    """
    ends: list[End] = []
    pid = os.getpid()
    for function in registered:
        try:
            ends.append(_begun(function, job))
            _end_fork(pid, 0)
        except BaseException as error:  # foreign code, which must not fail the job
            if _must_pass(error, pid, told):
                raise
            _tell("has not begun", function, error)
            _end_fork(pid, 1)
    return ends


def end(ends: Sequence[End], ending: Ending, told: Kinds = BaseException) -> None:
    """Run the second halves, the last one first. `told`: as for `begin`."""
    pid = os.getpid()
    for one in reversed(ends):
        try:
            one(ending)
            _end_fork(pid, 0)
        except BaseException as error:  # foreign code, which must not fail the job
            if _must_pass(error, pid, told, ending.exception):
                raise
            _tell("has not ended", one, error)
            _end_fork(pid, 1)


def _must_pass(error: BaseException, pid: int, told: Kinds, of_handler: BaseException | None = None) -> bool:
    """Return whether an exception goes on to the caller.

    `pid`: of the process that the job runs in. `of_handler`: the exception that left the handler.
    """
    if error is of_handler:
        return False  # the function raises again what it has got
    if os.getpid() != pid and not isinstance(error, Exception):
        return True  # a fork that the function has made leaves by sys.exit
    # Ctrl-C ends an application, and its tests, that run jobs in their own process.
    return isinstance(error, KeyboardInterrupt) or not isinstance(error, told)


def _end_fork(pid: int, status: int) -> None:
    """End a fork that a function has made and that has left the function: only its parent goes on with the job."""
    if os.getpid() != pid:
        os._exit(status)


def _begun(function: Around, job: "JobContext") -> End:
    made = function(job)
    if isinstance(made, Generator):
        for _ in made:
            return partial(_send, made)
        raise RuntimeError("it has ended without a yield")
    if not isinstance(made, AbstractContextManager):
        raise TypeError(f"it must be a generator, or return a context manager, not {made!r:.100}")
    made.__enter__()
    return partial(_leave, made)


def _send(generator: Generator[Any, Ending, Any], ending: Ending) -> None:
    try:
        generator.send(ending)
    except StopIteration:
        return
    generator.close()
    raise RuntimeError("it has yielded twice")


def _leave(manager: AbstractContextManager[Any], ending: Ending) -> None:
    error = ending.exception
    manager.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)


def _tell(what: str, function: object, error: BaseException) -> None:
    name = getattr(getattr(function, "func", function), "__qualname__", "")
    print_line(f"around_job {name} {what}: {type(error).__name__}: {text_of(error)}")
