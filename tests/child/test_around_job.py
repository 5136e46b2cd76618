"""What wants to be around each job: it is told of its begin and its end, and cannot harm it."""

import pytest

from supervisor.child import child
from supervisor.child.handlers import Ending, around_job, hooks
from supervisor.messages import Trouble, Verb, pack_trouble


@pytest.fixture
def around():
    """Registers for one test."""
    before = list(hooks.around_job)
    yield around_job
    hooks.around_job[:] = before


def play(job, verb, parts):
    child._tell_end(child._begun(job), verb, parts)


def test_it_is_told_of_job_and_end_the_last_one_first(around):
    told = []
    for name in ("outer", "inner"):
        around(lambda job, name=name: told.append((name, job)) or (lambda ending: told.append((name, ending))))
    play("job", Verb.COMPLETED, [b"1"])
    ending = Ending("completed", None)
    assert told == [("outer", "job"), ("inner", "job"), ("inner", ending), ("outer", ending)]


@pytest.mark.parametrize(
    ("verb", "outcome"), [(Verb.RETRIED, "retried"), (Verb.FAILED, "failed"), (Verb.INTERRUPTED, "interrupted")]
)
def test_it_learns_why(around, verb, outcome):
    told = []
    around(lambda job: told.append)
    trouble = Trouble("ValueError", "no", "a traceback", 1.0)
    play("job", verb, [pack_trouble(trouble)])
    assert told == [Ending(outcome, trouble)]


def test_what_it_raises_is_a_line_of_output_and_keeps_nobody_else_from_being_told(around, capsys):
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
