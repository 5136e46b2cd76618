"""Functions of `around_job` learn a job's begin and end, and cannot harm the job."""

import contextlib
import os
import sys

import pytest

from supervisor.child import around
from supervisor.child.around import Ending, around_job
from supervisor.child.orders import Interrupted, SoftTimeout
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


def test_context_manager_gets_the_exception_and_cannot_swallow_any():
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


def test_exception_without_a_text_and_output_that_is_gone_end_nothing(capsys, monkeypatch):
    class Silent(Exception):
        def __str__(self):
            return None

    @around_job
    def outer(job):
        told.append((yield))

    @around_job
    def silent(job):
        raise Silent
        yield

    told = []
    play(ending := Ending("completed"))
    assert "silent has not begun: Silent: Silent, whose text cannot be had (TypeError)" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)
    play(ending)
    assert told == [ending] * 2


def test_exit_and_interruption_in_around_job_end_nothing(capsys):
    told = []

    @around_job
    def outer(job):
        told.append((yield))

    @around_job
    def again(job):
        raise (yield).exception

    @around_job
    def leaves(job):
        yield
        sys.exit(3)

    @around_job
    def leaves_at_once(job):
        sys.exit(4)
        yield

    for error in (Interrupted("drain"), SoftTimeout("near"), KeyboardInterrupt()):
        told.clear()
        play(ending := Ending("interrupted", None, error))
        assert told == [ending]
        said = capsys.readouterr().err
        for line in (
            "leaves_at_once has not begun: SystemExit: 4",
            "has not ended: SystemExit: 3",
            f"has not ended: {type(error).__name__}: {error}",
        ):
            assert line in said


@pytest.mark.parametrize("half", ["first", "second"])
def test_ctrl_c_passes(half):
    @around_job
    def pressed(job):
        if half == "first":
            raise KeyboardInterrupt
        yield
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(Ending("completed"))


@pytest.mark.parametrize("half", ["first", "second"])
def test_fork_that_exits_does_not_go_on_with_the_job(half):
    statuses = []

    def fork_and_exit():
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    @around_job
    def forks(job):
        if half == "first":
            fork_and_exit()
        yield
        if half == "second":
            fork_and_exit()

    assert play_with_forks() == 1
    assert statuses == [3]


def play_with_forks():
    """Play a job. Return how many processes have come to its end."""
    pid, (came, comes) = os.getpid(), os.pipe()
    try:
        play(Ending("completed"))
        os.write(comes, b"x")
    except SystemExit as leaving:
        os._exit(leaving.code)
    finally:
        if os.getpid() != pid:
            os._exit(99)
        os.close(comes)
    with os.fdopen(came, "rb") as told:
        return len(told.read())


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("half", ["first", "second"])
def test_fork_that_leaves_its_function_does_not_go_on_with_the_job(half, raises):
    statuses = []

    def fork_and_go_on():
        pid = os.fork()
        if pid:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif raises:
            raise ValueError

    @around_job
    def forks(job):
        if half == "first":
            fork_and_go_on()
        yield
        if half == "second":
            fork_and_go_on()

    assert play_with_forks() == 1
    assert statuses == [int(raises)]


def test_argument_that_is_not_a_function_is_refused():
    with pytest.raises(TypeError, match="@around_job takes a function of the job, not 7"):
        around_job(7)
