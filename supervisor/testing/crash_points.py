"""The decorator `every_crash_point`. Used in the process of pytest. Must not know how a handler is run."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, ParamSpec, Protocol

from supervisor.testing.faults import Trial

_FIXTURE: Final = "leasehold"
P = ParamSpec("P")


class Trying(Protocol):
    """The part of the fixture that a test needs to run several times."""

    def trial(self, kill_at: int | None = None) -> AbstractContextManager[Trial]: ...


def every_crash_point(test: Callable[P, object]) -> Callable[P, None]:
    """Run a test once for each place in its handlers at which a process can die, with a death there.

    The test uses the fixture `leasehold`, puts and runs jobs, and returns their effects, which it makes anew in its
    body. The places are each checkpoint and each result of a step (before and after it is stored), each progress, each
    put and `next`, and the return of the handler. A job whose process has died runs again. The test fails, and names
    the places, if the effects are not what they are without a death, or if a run does not come to the place of its
    death. Raises TypeError for a test without the fixture, or a coroutine function.
    """
    if inspect.iscoroutinefunction(test):
        raise TypeError(f"@every_crash_point takes a plain function, not the coroutine function {test.__qualname__}")
    signature = inspect.signature(test)
    if _FIXTURE not in signature.parameters:
        raise TypeError(f"@every_crash_point: {test.__qualname__} must have the fixture {_FIXTURE} as a parameter")

    @functools.wraps(test)
    def tried(*args: P.args, **kwargs: P.kwargs) -> None:
        leasehold = signature.bind(*args, **kwargs).arguments[_FIXTURE]
        _try(functools.partial(test, *args, **kwargs), leasehold)

    return tried


def _try(test: Callable[[], Any], leasehold: Trying) -> None:
    with leasehold.trial() as undisturbed:
        expected = test()
    with leasehold.trial():
        again = test()
    if expected is None:
        raise AssertionError("the test returns None: return what its jobs have done, to compare it")
    if again != expected:
        raise AssertionError(
            f"two runs without a death differ already: {expected!r}, then {again!r}. Make the place of the effects in"
            " the body of the test, and leave jids, tokens and times out"
        )
    if not undisturbed.reached:
        raise AssertionError("no handler has run: the test must put jobs and call leasehold.run()")
    wrong: list[str] = []
    cause: Exception | None = None
    for index, place in enumerate(undisturbed.reached):
        if place.startswith("start "):
            continue  # nothing was done before it
        try:
            with leasehold.trial(index) as trial:
                effects = test()
        except Exception as error:  # noqa: BLE001  a foreign test may raise anything; it is one finding among others
            cause = cause or error
            wrong.append(f"killed at {place}: {type(error).__name__}: {error}")
        else:
            if trial.reached[index : index + 1] != [place]:
                wrong.append(f"not killed at {place}: this run of the test has not come there, as the one before did")
            elif effects != expected:
                wrong.append(f"killed at {place}: {effects!r}")
    if wrong:
        raise AssertionError("\n".join((f"without a death the effects are {expected!r};", *wrong))) from cause
