"""Functions of `around_job` in a real child: each outcome, with its exception."""

import json

import pytest

from tests.process.apps import start_app

APP = """
import json
from supervisor import Fail, Retry, around_job


@around_job
def outer(job):
    count("outer")
    ending = yield
    line = [job.data and job.klass, ending.outcome, ending.trouble and ending.trouble.group, repr(ending.exception)]
    with open(HERE / "endings", "a") as file:
        file.write(json.dumps(line) + "\\n")


@around_job
class Inner:
    def __init__(self, job): ...
    def __enter__(self): ...
    def __exit__(self, kind, error, trace):
        print("inner", kind and kind.__name__)
        return True


@handler
def good(job): ...


@handler
async def late(job):
    raise KeyError("late")


@handler
def again(job):
    if job.attempt == 1:
        raise Retry(0)


@handler
def wrong(job):
    raise Fail("never", "no")


@handler
def shaped(job, user: int): ...


@handler(name="hold_here")
def hold_here(job):
    wait_at("gate")
"""


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_around_job_sees_each_outcome_and_its_exception(stage, jobs_per_child):
    pool = start_app(stage, APP, processes=1, jobs_per_child=jobs_per_child, on_error="fail")
    jids = [stage.queue.put(klass, 1) for klass in ("good", "late", "wrong", "shaped", "again")]
    stage.wait_until(lambda: set(stage.states(jids)) <= {"complete", "failed"}, "the end of all")
    assert pool.drain() == 0
    endings = [json.loads(line) for line in (stage.directory / "endings").read_text().splitlines()]
    assert [ending[:3] for ending in endings] == [
        ["good", "completed", None],
        ["late", "failed", "KeyError"],
        ["wrong", "failed", "never"],
        ["shaped", "misfit", None],
        ["again", "retried", None],
        ["again", "completed", None],
    ]
    assert [ending[3].partition("(")[0] for ending in endings] == [
        "None",
        "KeyError",
        "Fail",
        "None",
        "Retry",
        "None",
    ]
    assert pool.find("job.printed", line="inner KeyError") != []
    stage.assert_nothing_left()


RAISING = """
from supervisor import around_job


@around_job
def again(job):
    ending = yield
    if ending.exception is not None:
        raise ending.exception


@around_job
def leave(job):
    yield
    sys.exit(1)


@handler
def good(job): ...


@handler(name="hold_here")
def hold_here(job):
    wait_at("gate")
"""


def test_around_job_that_raises_changes_no_outcome(stage):
    stage.gate("gate")
    pool = start_app(stage, RAISING, processes=1, drain_timeout="0s")
    good = stage.queue.put("good")
    stage.wait_until(lambda: stage.states([good]) == ["complete"], "the end of the job")
    held = stage.queue.put("hold_here")
    stage.wait_until(lambda: (stage.directory / "gates/gate.reached").exists(), "the handler")
    assert pool.drain() == 0
    job = stage.client.job(held)
    assert (job.deaths, job.interruptions) == (0, 1)
    stage.client.cancel(held)
    stage.assert_nothing_left()


FORKING = """
import select

from supervisor import around_job


def fork():
    \"\"\"Return in both processes. The fork has the time to do harm.\"\"\"
    pid = os.fork()
    if pid:
        select.select([os.pidfd_open(pid)], [], [], 0.3)


@around_job
def begins_in_a_fork(job):
    if job.data == "first":
        fork()
    yield


@around_job
def ends_in_a_fork(job):
    yield
    if job.data == "second":
        fork()


def begin(job):
    count(job.jid)


@handler
def alone(job):
    begin(job)


@handler(concurrency=2)
async def beside(job):
    begin(job)
"""


@pytest.mark.parametrize("half", ["first", "second"])
@pytest.mark.parametrize("klass", ["alone", "beside"])
def test_fork_of_around_job_does_not_go_on_with_the_job(stage, klass, half):
    pool = start_app(stage, FORKING, processes=1, jobs_per_child=0)
    jids = [stage.queue.put(klass, half, max_deaths=1) for _ in range(5)]
    stage.wait_until_ended(jids)
    assert [(job.state, job.deaths) for job in stage.client.jobs(*jids)] == [("complete", 0)] * 5
    assert [(stage.directory / jid).read_text() for jid in jids] == ["x"] * 5
    assert not pool.find("child.killed")
    assert pool.drain() == 0
    stage.assert_nothing_left()


SILENT = """
from supervisor import around_job


class Silent(Exception):
    def __str__(self):
        return None


@around_job
def silent(job):
    yield
    raise Silent


@handler
def good(job): ...


@handler
def without_output(job):
    sys.stdout = sys.stderr = None
"""


@pytest.mark.parametrize("klass", ["good", "without_output"])
@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_error_of_around_job_that_cannot_be_printed_changes_no_outcome(stage, klass, jobs_per_child):
    pool = start_app(stage, SILENT, processes=1, jobs_per_child=jobs_per_child)
    jids = [stage.queue.put(klass, max_deaths=1) for _ in range(2)]
    stage.wait_until_ended(jids)
    assert [(job.state, job.deaths) for job in stage.client.jobs(*jids)] == [("complete", 0)] * 2
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_around_job_learns_of_an_interruption(stage):
    stage.gate("gate")
    pool = start_app(stage, APP, processes=1, drain_timeout="0s")
    jid = stage.queue.put("hold_here", 1)
    stage.wait_until(lambda: (stage.directory / "gates/gate.reached").exists(), "the handler")
    assert pool.drain() == 0
    ending = json.loads((stage.directory / "endings").read_text())
    assert ending[:2] == ["hold_here", "interrupted"] and "drain" in ending[3]
    stage.client.cancel(jid)
    stage.assert_nothing_left()
