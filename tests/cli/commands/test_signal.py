"""`leasehold signal`: a job goes on, and what cannot be sent is refused in one sentence."""

import pytest


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


def test_job_that_waits_goes_on_with_the_value(shell, jobs, queue):
    queue.put("k", jid="j")
    queue.lease("w")[0].suspend("approval", "7d")
    assert "scheduled, waiting for the signal approval, at most until" in shell.good("job", "j")
    assert shell.line("signal", "j", "approval", '{"by": "ann"}') == "j has the signal approval: it is waiting"
    assert queue.lease("w")[0].signals == {"approval": {"by": "ann"}}


def test_signal_that_reaches_no_job_is_refused(shell, jobs, queue):
    assert "nobody" in shell.refused(1, "signal", "nobody", "approval")
    queue.put("k", jid="done")
    queue.lease("w")[0].complete()
    assert "done is complete" in shell.refused(1, "signal", "done", "approval")


def test_value_that_is_not_json_is_refused(shell):
    assert "JSON" in shell.refused(2, "signal", "j", "approval", "yes")
