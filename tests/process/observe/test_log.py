"""The log line of every outcome has all its fields."""

import os
import re
import signal

import pytest
from supervised import ROOT

from supervisor.ops.events import OUTCOME

ALWAYS = set(OUTCOME) - {"trace"}
#: The zygote reports a child's usage if the child cannot. Without a zygote it is unknown.
USED = {"cpu_ms", "max_rss_bytes"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BOTH = pytest.mark.parametrize("jobs_per_child", [1, 0])


def assert_said(pool, event, jid, **fields):
    """Check that the job has one line of this event, with all fields and sensible values."""
    (said,) = pool.find(event, jid=jid, **fields)
    assert set(said) >= ALWAYS, set(said)
    assert said["worker"] == pool.worker
    assert said["queue"] == "default"
    assert 0 <= said["wait_ms"] < 60_000
    assert 0 <= said["run_ms"] < 60_000
    assert 0 <= said["cpu_ms"] < 60_000
    assert 2**20 <= said["max_rss_bytes"] < 2**30
    return said


@BOTH
def test_the_line_of_each_outcome_has_all_fields(stage, jobs_per_child):
    pool = stage.start(processes=2, jobs_per_child=jobs_per_child, term_grace="0.2s").wait_ready()
    put = stage.queue.put
    ends = {
        "job.completed": put("good.noop", trace=TRACE),
        "job.retried": put("bad.retry", {"times": 1}),
        "job.failed": put("bad.fail"),
        "job.died": put("bad.leave", {"status": 3, "times": 1}),
        "job.returned": put("good.noop", persistent=True),
    }
    raising, timed = put("bad.raises", retries=0), put("bad.spin", timeout=0.5, retries=0)
    stage.wait_until_ended([jid for event, jid in ends.items() if event != "job.returned"] + [raising, timed])
    pool.wait_for("job.returned", jid=ends["job.returned"])
    stage.client.job(ends["job.returned"]).cancel()
    for event, jid in ends.items():
        said = pool.find(event, jid=jid)
        assert said, event
        assert set(said[0]) >= ALWAYS, (event, set(said[0]))
    assert assert_said(pool, "job.completed", ends["job.completed"])["trace"] == TRACE
    completed = assert_said(pool, "job.completed", ends["job.died"])
    assert completed["attempt"] == 2 and "trace" not in completed
    assert assert_said(pool, "job.died", ends["job.died"])["reason"] == "exit-3"
    assert assert_said(pool, "job.retried", ends["job.retried"])["attempt"] == 1
    assert assert_said(pool, "job.failed", raising)["group"] == "LookupError"
    assert assert_said(pool, "job.failed", timed)["group"] == "timeout"
    for jid in (raising, timed):
        failure = stage.client.job(jid).failure
        assert 0 < failure["cpu_s"] < 60 and failure["max_rss_bytes"] >= 2**20

    gate = stage.gate("gate")
    cancelled, drained = put("good.hold", gate), put("good.hold", gate)
    for jid in (cancelled, drained):
        stage.wait_for_starts(jid)
    stage.client.cancel(cancelled)
    pool.wait_for("job.stale", jid=cancelled)
    assert assert_said(pool, "job.stale", cancelled)["reason"] == "cancelled"
    once = put("good.hold", gate, at_most_once=True)
    stage.wait_for_starts(once)
    pool.send(signal.SIGQUIT)
    assert pool.wait() == 0
    assert assert_said(pool, "job.released", drained)["reason"] == "drain"
    assert assert_said(pool, "job.failed", once)["group"] == "interrupted"
    stage.assert_nothing_left(waiting=["default"])


@BOTH
def test_usage_covers_the_jobs_processes_and_no_earlier_job(stage, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, on_error="fail").wait_ready()
    burnt = [stage.queue.put("spend.burn", {"seconds": 0.1, "then": then}, max_deaths=1) for then in ("", "raise")]
    small = stage.queue.put("good.noop")
    burnt.append(stage.queue.put("spend.burn", {"seconds": 0.1, "then": "die"}, max_deaths=1))
    stage.wait_until_ended([*burnt, small])
    for jid, event in zip(burnt, ("job.completed", "job.failed", "job.died"), strict=True):
        assert 190 <= assert_said(pool, event, jid)["cpu_ms"] < 380
    assert assert_said(pool, "job.completed", small)["cpu_ms"] < 95
    assert 0.19 <= stage.client.job(burnt[1]).failure["cpu_s"] < 0.38
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_job_of_a_lost_zygote_has_unknown_usage(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    os.kill(pool.zygote_pid, signal.SIGKILL)
    said = pool.wait_for("job.released", jid=jid)
    assert set(said) >= ALWAYS - USED
    assert not USED & set(said)
    assert (said["reason"], said["attempt"]) == ("zygote-lost", 1)
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_operations_explain_each_of_these_fields():
    page = (ROOT / "deploy/docs/log.md").read_text()
    table = page.partition("| field of an outcome |")[2].partition("\n\n")[0]
    assert {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)} \
        == {*OUTCOME, "worker"}  # fmt: skip
