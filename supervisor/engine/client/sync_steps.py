# Generated from async_steps.py by `python -m tests.engine.client.sync_from_async`; do not edit.
"""Carries out calls of several steps for a Client. Runs in applications and commands. Must not do I/O itself."""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from supervisor.engine.model.errors import LeaseholdError

S = TypeVar("S")
T = TypeVar("T")


def followed(call: Generator[S, Any, T], answer_to: Callable[[S], Any]) -> T:
    """Return the result of a call. It receives the answer to each of its steps, or the LeaseholdError in its place."""
    answer: Any = None
    refusal: LeaseholdError | None = None
    try:
        while True:
            step = call.throw(refusal) if refusal else call.send(answer)
            try:
                answer, refusal = answer_to(step), None
            except LeaseholdError as error:
                refusal = error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what a generator returns is Any to typeshed
