"""A job past its time gets the soft timeout, then it is killed with all its processes.

TEST_FULL=1: the long job takes a minute.
"""

import pytest
from supervised import await_ends
from watched import FULL

from tests.lengths import PATIENCE

#: Longest delay of an event on a loaded machine.
LATE_S = 8.0
#: An event may come so much early, because the log tells of a start when it has been ordered.
EARLY_S = 0.05
BURN_S = 60.0 if FULL else 5.0
#: The stacks are asked for in its last tenth. A child that computes must get a processor by then.
LIMIT_S = 3.0 * PATIENCE

ONE = pytest.mark.parametrize("jobs_per_child", [1, 0])


def since_start_s(pool, event):
    """Return the seconds from the order to start a job, where its time begins, to this event."""
    return event["time"] - pool.find("job.started", jid=event["jid"])[-1]["time"]


def finish(stage, *pools):
    stage.assert_no_zombies()
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left()


@ONE
def test_handler_may_complete_after_its_soft_timeout(stage, measured, jobs_per_child):
    pool = stage.start(processes=2, jobs_per_child=jobs_per_child).wait_ready()
    gate = stage.gate("gate")
    jids = [stage.queue.put(klass, gate, timeout=6.0) for klass in ("timed.clean_up", "timed.clean_up_later")]
    after = stage.queue.put("good.noop", timeout=2.0)
    stage.wait_until_ended([*jids, after])
    for job in stage.client.jobs(*jids):
        assert (job.state, job.failures, job.deaths) == ("complete", 0, 0)
        told_s = since_start_s(pool, pool.wait_for("job.printed", jid=job.jid))
        measured(f"a limit of 6 s is near: {job.klass} told after {told_s:.3f} s")
        assert 5.4 - EARLY_S <= told_s <= 5.4 + LATE_S
    printed = "".join(event["line"] for event in pool.find("job.printed", jid=jids[0]))
    assert printed == "cleaning up: the time limit of 6 s is near"
    assert not pool.find("child.killed")
    finish(stage, pool)


@pytest.mark.parametrize("repeat", range(5))
def test_soft_timeout_reaches_a_handler_despite_slow_stack_dumps(stage, repeat):
    """The kernel restarts a blocking call after the stacks are written. The soft timeout must not be lost there."""
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("timed.clean_up_among_threads", stage.gate("gate"), timeout=8.0 * PATIENCE, max_deaths=1)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).state == "complete"
    finish(stage, pool)


def test_term_grace_bounds_the_clean_up(stage):
    pool = stage.start(term_grace="0.4s").wait_ready()
    jid = stage.queue.put("timed.clean_up", stage.gate("gate"), timeout=8.0, max_deaths=1)
    assert since_start_s(pool, pool.wait_for("job.printed", jid=jid)) >= 7.6 - EARLY_S
    finish(stage, pool)


@pytest.mark.parametrize(("klass", "function"), [("good.hold", "wait_at"), ("timed.await_for_ever", "await_for_ever")])
def test_uncaught_soft_timeout_fails_with_its_stack(stage, klass, function):
    pool = stage.start(on_error="fail").wait_ready()
    jid = stage.queue.put(klass, stage.gate("gate"), timeout=4)
    event = pool.wait_for("job.failed", jid=jid)
    job = stage.client.job(jid)
    assert (job.state, job.failures, job.deaths, job.interruptions) == ("failed", 0, 0, 0)
    assert stage.client.failed() == {"timeout": 1}
    assert job.failure["message"] == event["message"]
    assert "the time limit of 4 s is near" in job.failure["message"]
    assert "SoftTimeout" in job.failure["traceback"]
    assert job.failure["stack"]
    if klass == "good.hold":
        assert f"in {function}" in job.failure["stack"]
    assert not pool.find("child.killed")
    finish(stage, pool)


def test_soft_timeout_spends_a_retry(stage):
    pool = stage.start().wait_ready()
    jid = stage.queue.put("timed.limited", stage.gate("gate"), retries=1)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.failures, job.deaths) == ("failed", 2, 0)
    assert stage.client.failed() == {"timeout": 1}
    assert [event["group"] for event in pool.find("job.retried", jid=jid)] == ["timeout"]
    finish(stage, pool)


def test_handlers_own_outcome_counts_after_a_soft_timeout(stage):
    pool = stage.start(on_error="fail").wait_ready()
    jid = stage.queue.put("timed.translate", stage.gate("gate"), timeout=4)
    stage.wait_until_ended([jid])
    assert stage.client.failed() == {"RuntimeError": 1}
    finish(stage, pool)


@pytest.mark.sampled(3)
@ONE
@pytest.mark.parametrize(
    ("klass", "data", "stack"),
    [
        ("timed.catch_all", None, "in catch_all"),
        ("timed.receive", None, "in receive"),
        ("timed.block_the_loop", None, "in block_the_loop"),
        ("timed.clean_up_too_long", ["gate", "gate"], "in clean_up_too_long"),
        ("timed.programs", None, ""),
        ("bad.c_sleep", 1000, ""),
        ("misbehave.spin_in_c", {}, "in spin_in_c"),
        ("misbehave.lock_in_c", {}, "in lock_in_c"),
        ("misbehave.ignore_term", {}, "in ignore_term"),
    ],
)
def test_hard_timeout_kills_a_job_and_its_processes(stage, measured, jobs_per_child, klass, data, stack):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    stage.gate("gate")
    jid = stage.queue.put(klass, data, timeout=LIMIT_S, max_deaths=1)
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([jid, after])
    assert await_ends(stage.ledger.left_behind(jid), 0.0) == []
    job = stage.client.job(jid)
    assert (job.state, job.failures, job.deaths, job.interruptions) == ("failed", 0, 1, 0)
    assert stage.client.failed() == {"died:timeout": 1}
    assert f"was killed by us: the job passed its time limit of {LIMIT_S:g} s" in job.failure["message"]
    assert stack in job.failure.get("stack", "")
    killed_s = since_start_s(pool, pool.find("child.killed")[0])
    measured(f"started -> killed at its limit of {LIMIT_S:g} s: {killed_s:.3f} s")
    assert LIMIT_S - EARLY_S <= killed_s <= LIMIT_S + LATE_S
    assert stage.client.job(after).state == "complete"
    finish(stage, pool)


def test_time_limit_of_job_precedes_handler_and_flag(stage):
    pool = stage.start(processes=5, job_timeout="5s", on_error="fail").wait_ready()
    gate = stage.gate("gate")
    limits = [
        ("good.hold", {"timeout": 2.0}, 2.0),
        ("timed.limited", {"timeout": 4.0}, 4.0),
        ("timed.limited", {}, 3.0),
        ("good.hold", {}, 5.0),
    ]
    jids = [stage.queue.put(klass, gate, **options) for klass, options, _ in limits]
    endless = [stage.queue.put("timed.no_limit", gate)]
    stage.wait_until_ended(jids)
    for jid, (_, _, limit_s) in zip(jids, limits, strict=True):
        assert f"limit of {limit_s:g} s" in stage.client.job(jid).failure["message"]
        (failed,) = pool.find("job.failed", jid=jid)
        assert 0.9 * limit_s - EARLY_S <= since_start_s(pool, failed) <= limit_s + LATE_S
    assert stage.states(endless) == ["running"]
    stage.open_gate(gate)
    stage.wait_until_ended(endless)
    assert stage.states(endless) == ["complete"]
    finish(stage, pool)


@pytest.mark.parametrize(("flag", "own"), [("0", None), ("0.3s", 0)])
def test_time_limit_of_0_is_no_limit(stage, flag, own):
    pool = stage.start(job_timeout=flag).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate, **({} if own is None else {"timeout": own}))
    stage.wait_for_starts(jid)
    stage.let_time_pass(0.8)  # a limit would pass
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.failures, job.deaths) == ("complete", 0, 0)
    finish(stage, pool)


@pytest.mark.sampled(3)
def test_time_limit_counts_per_job_of_a_child(stage):
    """Many jobs of one child take far longer together than the limit, and those sent ahead wait in its socket."""
    pool = stage.start(processes=1, jobs_per_child=0, job_timeout="3s", on_error="fail").wait_ready()
    jids = stage.queue.put_many([{"klass": "good.nap", "data": 0.004} for _ in range(900)])
    late = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_until_ended([*jids, late])
    assert set(stage.states(jids)) == {"complete"}
    assert stage.client.failed() == {"timeout": 1}
    assert len({start.pid for start in stage.ledger.starts()}) == 1
    finish(stage, pool)


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_job_that_holds_the_gil_outlives_its_lease_and_runs_once(stage):
    stage.config(grace=2.5)
    pool = stage.start(processes=1, lease_ttl="3s").wait_ready()
    jid = stage.queue.put("timed.burn_in_c", BURN_S)
    stage.wait_for_starts(jid)
    peer = stage.start(processes=1, lease_ttl="3s").wait_ready()  # it would take what is not renewed
    stage.wait_until_ended([jid], BURN_S + 30)
    job = stage.client.job(jid)
    assert (job.state, job.failures, job.deaths, job.interruptions) == ("complete", 0, 0, 0)
    assert job.result >= 0
    assert len(stage.ledger.starts(jid)) == 1
    assert len(stage.find("job.completed", jid=jid)) == 1
    assert not stage.find("job.stale")
    finish(stage, pool, peer)
