"""Runs the functions of `around_put` before and after a put. Runs in applications and commands. Must not do I/O."""

import inspect
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from supervisor.engine.model.errors import LeaseholdError


@dataclass(slots=True)
class Put:
    """One call of put, add or put_many, before it is checked and sent.

    `verb`: put or add. `queue`: its name. `jobs`: a dict of put's arguments for each job, its data as the handler's
    process will decode it; what a function changes in them is put. Their number must stay. `answers`: once they are
    put, the jids that put answers, or the bool of add. The caller gets these whatever functions make of the list.
    """

    verb: str
    queue: str
    jobs: list[dict[str, Any]]
    answers: list[str | bool] = field(default_factory=list)


#: A generator function, which yields once, or a function that returns a context manager.
AroundPut = Callable[[Put], Generator[Any, None, Any] | AbstractContextManager[Any]]
A = TypeVar("A", bound=AroundPut)


#: The functions for all clients of this process.
registered: list[AroundPut] = []


def around_put(function: A) -> A:
    """Have `function(put)` run around each put of every client of this process, also around typed puts.

    It is what `Client.around_put` is for one client, and runs outside of those. A job of `job.put` in a handler is put
    by the supervisor, so no function sees it.
    """
    registered.append(checked(function))
    return function


def checked(function: A) -> A:
    """Return the function. Raises TypeError if it cannot be called."""
    if not callable(function):
        raise TypeError(f"around must be a function of the put, not {function!r:.100}")
    return function


@contextmanager
def around(functions: Sequence[AroundPut], put: Put) -> Iterator[Put]:
    """Run functions around a put, the first one outermost. What one raises before the put refuses it."""
    for job in put.jobs:
        if isinstance(job.get("data"), orjson.Fragment):  # of a typed put
            job["data"] = json.loads(orjson.dumps(job["data"]))
    with ExitStack() as stack:
        for function in functions:
            manager: Any = contextmanager(function) if inspect.isgeneratorfunction(function) else function
            stack.enter_context(manager(put))
        yield put
        return
    # Only a function that swallows an exception comes here.
    raise LeaseholdError("a function of around_put has swallowed the error of a put: what was put is unknown")


def check_count(put: Put, given: int) -> None:
    """Raise ValueError if functions have added or removed jobs: the caller gets one answer for each that it gave."""
    if len(put.jobs) != given:
        raise ValueError(
            f"a function of around_put may change jobs, not add or remove them: put.jobs has {len(put.jobs)}, and"
            f" {given} {'was' if given == 1 else 'were'} given"
        )
