"""Functions of `around_job` learn a job's begin and end, and cannot harm the job."""

import pytest

from supervisor.child import child
from supervisor.child.handlers import Ending, around_job, hooks
from supervisor.messages import Trouble, Verb, pack_trouble


@pytest.fixture
def around():
    """Registers functions for one test."""
    before = list(hooks.around_job)
    yield around_job
    hooks.around_job[:] = before


def play(job, verb, parts):
    child._end_around(child._begin_around(job), verb, parts)


def test_around_job_ends_in_reverse_order(around):
    told = []
    for name in ("outer", "inner"):
        around(lambda job, name=name: told.append((name, job)) or (lambda ending: told.append((name, ending))))
    play("job", Verb.COMPLETED, [b"1"])
    ending = Ending("completed", None)
    assert told == [("outer", "job"), ("inner", "job"), ("inner", ending), ("outer", ending)]


@pytest.mark.parametrize(
    ("verb", "outcome"), [(Verb.RETRIED, "retried"), (Verb.FAILED, "failed"), (Verb.INTERRUPTED, "interrupted")]
)
def test_around_job_learns_the_reason(around, verb, outcome):
    told = []
    around(lambda job: told.append)
    trouble = Trouble("ValueError", "no", "a traceback", 1.0)
    play("job", verb, [pack_trouble(trouble)])
    assert told == [Ending(outcome, trouble)]


def test_exception_in_around_job_is_printed_and_others_still_run(around, capsys):
    told = []

    def begin_badly(job):
        raise ValueError("no begin")

    def end_badly(ending):
        raise ValueError("no end")

    around(begin_badly)
    around(lambda job: told.append)
    around(lambda job: end_badly)
    play("job", Verb.COMPLETED, [b""])
    assert told == [Ending("completed")]
    assert capsys.readouterr().err == (
        "leasehold: what is to be around a job has not begun: ValueError: no begin\n"
        "leasehold: what is to be around a job has not ended: ValueError: no end\n"
    )
