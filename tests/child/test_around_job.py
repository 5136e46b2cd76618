"""Functions of `around_job` learn a job's begin and end, and cannot harm the job."""

import contextlib

import pytest

from supervisor.child import around
from supervisor.child.around import Ending, around_job
from supervisor.messages import Trouble


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(around, "registered", [])


def play(ending, job="job"):
    around.end(around.begin(job), ending)


def test_around_job_ends_in_reverse_order():
    told = []

    @around_job
    def outer(job):
        told.append(("outer", job))
        told.append(("outer", (yield)))

    @around_job
    def inner(job):
        told.append(("inner", job))
        told.append(("inner", (yield)))

    ending = Ending("completed")
    play(ending)
    assert told == [("outer", "job"), ("inner", "job"), ("inner", ending), ("outer", ending)]


def test_context_manager_gets_the_exception_and_cannot_swallow_it():
    told = []

    @around_job
    @contextlib.contextmanager
    def plain(job):
        try:
            yield
        except KeyError as error:
            told.append(error)

    class Timer:
        def __init__(self, job):
            told.append(job)

        def __enter__(self):
            told.append("enter")

        def __exit__(self, kind, error, trace):
            told.append(kind)
            return True

    around_job(Timer)
    error = KeyError("x")
    play(Ending("failed", Trouble("KeyError", "x"), error))
    assert told == ["job", "enter", KeyError, error]
    told.clear()
    play(Ending("completed"))
    assert told == ["job", "enter", None]


def test_exception_in_around_job_is_printed_and_others_still_run(capsys):
    told = []

    @around_job
    def begin_badly(job):
        raise ValueError("no begin")
        yield

    @around_job
    def good(job):
        told.append((yield))

    @around_job
    def end_badly(job):
        yield
        raise ValueError("no end")

    @around_job
    def twice(job):
        yield
        yield

    @around_job
    def never(job):
        yield from ()

    around_job(lambda job: 7)
    play(Ending("completed"))
    assert told == [Ending("completed")]
    said = capsys.readouterr().err
    for line in (
        "begin_badly has not begun: ValueError: no begin",
        "never has not begun: RuntimeError: it has ended without a yield",
        "has not begun: TypeError: it must be a generator, or return a context manager, not 7",
        "has not ended: RuntimeError: it has yielded twice",
        "has not ended: ValueError: no end",
    ):
        assert line in said
    assert said.count("\n") == 5


def test_argument_that_is_not_a_function_is_refused():
    with pytest.raises(TypeError, match="@around_job takes a function of the job, not 7"):
        around_job(7)
