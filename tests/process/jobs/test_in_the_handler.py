"""A running handler reports progress, learns that it should stop, and sets its backoff."""

import itertools
import signal

import pytest


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def test_progress_is_visible_during_and_after_the_job(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("say.progress", {"steps": [[0.25, "a quarter"], [1, "done"]], "gate": gate})
    stage.wait_until_counted(lambda: stage.client.job(jid).progress is not None)
    fraction, text, when_unix = stage.client.job(jid).progress
    assert (fraction, text) == (0.25, "a quarter")
    assert abs(when_unix - stage.ledger.starts(jid)[0].unix) < 5
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert stage.client.job(jid).progress[:2] == (1.0, "done")
    finish(stage, pool)


def test_failed_job_keeps_its_progress(stage):
    pool = stage.start(processes=1, on_error="fail").wait_ready()
    gate = stage.gate("gate")
    stage.open_gate(gate)
    jid = stage.queue.put("say.progress", {"steps": [[0.1, "begun"], [0.9, "nearly"]], "gate": gate, "fail": True})
    pool.wait_for("job.failed", jid=jid)
    assert stage.client.job(jid).progress[:2] == (0.9, "nearly")
    finish(stage, pool)


def test_progress_reports_are_thinned_and_never_block(stage, proxies):
    proxy = proxies(0)
    pool = stage.start(processes=1, redis_url=proxy.url).wait_ready()
    stage.wait_until_idle(1)
    before = proxy.counts()["batches"]
    jid = stage.queue.put("say.progress_for_ever")
    run_s = pool.wait_for("job.completed", jid=jid)["run_ms"] / 1000
    assert stage.client.job(jid).progress.fraction == pytest.approx(1, abs=0.001)
    assert proxy.counts()["batches"] - before <= 8 + 3 * run_s
    finish(stage, pool)


def test_progress_does_not_block_while_the_master_is_stopped(stage):
    pool = stage.start(processes=1, lease_ttl="60s").wait_ready()
    gate = stage.gate("gate")
    steps = [[n / 1000, "x" * 1000] for n in range(1000)] + [[1, "done"]]
    jid = stage.queue.put("say.progress", {"steps": steps, "gate": gate})
    stage.wait_for_starts(jid)
    pool.send(signal.SIGSTOP)
    stage.open_gate(gate)
    pool.send(signal.SIGCONT)
    pool.wait_for("job.completed", jid=jid)
    assert stage.client.job(jid).progress[:2] == (1.0, "done")
    finish(stage, pool)


def test_handler_that_catches_the_interruption_sees_should_stop(stage):
    pool = stage.start(processes=1, drain_timeout="0s", term_grace="10s").wait_ready()
    jid = stage.queue.put("say.stop", stage.gate("gate"))
    stage.wait_for_starts(jid)
    assert pool.drain() == 0
    assert stage.client.job(jid).state == "complete"
    assert stage.client.job(jid).result == "in peace"
    assert "told to stop: drain" in [event["line"] for event in pool.find("job.printed", jid=jid)]
    stage.assert_nothing_left()


@pytest.mark.parametrize("repeat", range(3))
def test_interruption_cancels_the_task_of_an_async_handler(stage, repeat):
    pool = stage.start(processes=1, drain_timeout="0s", term_grace="10s").wait_ready()
    jid = stage.queue.put("say.tasks")
    stage.wait_for_starts(jid)
    assert pool.drain() == 0
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths, job.failures) == ("waiting", 1, 0, 0)
    assert pool.find("job.released", jid=jid)[0]["reason"] == "drain"
    printed = [event["line"] for event in pool.find("job.printed", jid=jid)]
    assert printed == ["cancelled, told to stop: True", "in the end"]
    stage.assert_nothing_left(waiting=["default"])


def test_cancelled_async_handler_that_returns_completes(stage):
    pool = stage.start(processes=1, drain_timeout="0s", term_grace="10s").wait_ready()
    jid = stage.queue.put("say.tasks", "finish")
    stage.wait_for_starts(jid)
    assert pool.drain() == 0
    assert stage.client.job(jid).state == "complete"
    assert stage.client.job(jid).result == "in peace"
    stage.assert_nothing_left()


def test_left_over_thread_does_not_speak_for_the_next_job(stage):
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    jids = [stage.queue.put("say.leave_thread"), *(stage.queue.put("say.beside_thread") for _ in range(20))]
    stage.wait_until_ended(jids)
    jobs = stage.client.jobs(*jids)
    assert [job.state for job in jobs] == ["complete"] * 21
    assert [job.progress and job.progress.text for job in jobs] == [f"said of {jids[0]}", *[None] * 20]
    assert not pool.find("child.killed")
    finish(stage, pool)


def test_job_knows_its_lane(stage):
    pool = stage.start(processes=1).wait_ready()
    jids = [stage.queue.put("say.lane", lane="tenant-1"), stage.queue.put("say.lane")]
    stage.wait_until_ended(jids)
    assert [job.result for job in stage.client.jobs(*jids)] == [["tenant-1", 1], [None, 1]]
    finish(stage, pool)


def gaps(stage, jid):
    starts = [start.unix for start in stage.ledger.starts(jid)]
    return [later - earlier for earlier, later in itertools.pairwise(starts)]


def test_list_of_backoffs_repeats_its_last_one(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("say.backoff_list")
    stage.wait_until_ended([jid])
    assert [event["delay_s"] for event in pool.find("job.retried", jid=jid)] == [0.0, 0.2, 0.4, 0.4]
    for gap, least in zip(gaps(stage, jid), [0, 0.2, 0.4, 0.4], strict=True):
        assert least <= gap <= least + 3
    finish(stage, pool)


def test_backoff_may_be_a_function_of_the_failures(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("say.backoff_function")
    stage.wait_until_ended([jid])
    assert [event["delay_s"] for event in pool.find("job.retried", jid=jid)] == pytest.approx([0, 0.1, 0.2])
    finish(stage, pool)


def test_raising_backoff_is_printed_and_the_default_used(stage):
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("say.backoff_broken")
    retried = pool.wait_for("job.retried", jid=jid)
    assert 0 <= retried["delay_s"] <= 1
    assert retried["group"] == "LookupError"
    pool.wait_for("job.failed", jid=jid)
    said = "leasehold: backoff= of say.backoff_broken is not used: ZeroDivisionError: division by zero"
    assert pool.wait_for("job.printed", jid=jid, line=said)
    finish(stage, pool)
