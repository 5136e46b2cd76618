"""A master that stands still, a Redis that is away: nobody is robbed too early, nothing done twice, nothing lost."""

import os
import signal
import time

import pytest
from supervised import await_ends


def test_a_master_stopped_past_its_ttl_settles_nothing_after_a_peer_has_taken_over(stage):
    """Its job has ended in the meantime: the outcome comes late and is refused."""
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="1s").wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    first.send(signal.SIGSTOP)
    second = stage.start(processes=1, lease_ttl="1s").wait_ready()
    assert stage.wait_for_starts(jid, 2)[1].attempt == 2
    stage.open_gate(gate)
    second.wait_for("job.completed", jid=jid)
    first.send(signal.SIGCONT)
    first.wait_for("job.stale", jid=jid)
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.interruptions) == ("complete", 1, 0)
    assert len(stage.find("job.completed", jid=jid)) == 1
    after = stage.queue.put_many([{"klass": "good.noop"} for _ in range(10)])
    stage.wait_until_ended(after)
    assert [pool.drain() for pool in (first, second)] == [0, 0]
    stage.assert_nothing_left()


def test_a_stale_child_is_stopped_when_its_master_learns_that_the_lease_is_lost(stage):
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="1s", term_grace="0.3s").wait_ready()
    jid = stage.queue.put("good.short_or_long", stage.gate("gate"))
    (start,) = stage.wait_for_starts(jid)
    first.send(signal.SIGSTOP)
    second = stage.start(processes=1, lease_ttl="30s").wait_ready()
    stage.wait_for_starts(jid, 2)
    first.send(signal.SIGCONT)
    first.wait_for("lease.lost", jid=jid)
    assert await_ends([start.pid], 15.0) == []
    stage.open_gate("gate")
    second.wait_for("job.completed", jid=jid)
    assert len(stage.ledger.starts(jid)) == 2
    assert len(stage.find("job.completed", jid=jid)) == 1
    assert not first.find("job.died")
    assert [pool.drain() for pool in (first, second)] == [0, 0]
    stage.assert_nothing_left()


@pytest.mark.parametrize(("at_most_once", "state", "starts"), [(False, "complete", 1), (True, "failed", 0)])
def test_what_was_leased_for_an_idle_master_that_stood_still_does_not_start_when_its_lease_has_run_out(
    stage, at_most_once, state, starts
):
    """The lease comes with the end of its wait: it finds that when it goes on."""
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="3s").wait_ready()
    stage.wait_until_idle(1)
    first.send(signal.SIGSTOP)
    jid = stage.queue.put("good.noop", at_most_once=at_most_once)
    assert stage.client.job(jid).worker == first.worker
    second = stage.start(processes=1, lease_ttl="3s").wait_ready()
    stage.wait_until_settled([jid])
    first.send(signal.SIGCONT)
    first.wait_for("lease.granted")
    assert [pool.drain() for pool in (first, second)] == [0, 0]
    job = stage.client.job(jid)
    assert (job.state, job.deaths, len(stage.ledger.starts(jid))) == (state, int(at_most_once), starts)
    stage.assert_nothing_left()


def test_what_an_idle_master_that_has_vanished_was_given_has_not_started(stage):
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="3s").wait_ready()
    stage.wait_until_idle(1)
    first.send(signal.SIGSTOP)
    jid = stage.queue.put("good.noop", max_deaths=1)
    assert stage.client.job(jid).worker == first.worker
    first.send(signal.SIGKILL)
    first.wait()
    assert stage.finish_elsewhere(first, jid).deaths == 0
    assert len(stage.ledger.starts(jid)) == 1


def test_what_an_idle_master_starts_is_known_to_have_started_before_it_does(stage):
    """It stands still as soon as its job has begun: nothing that it would have said later is said."""
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="1s").wait_ready()
    stage.wait_until_idle(1)
    jid = stage.queue.put("bad.stop_the_master", stage.gate("gate"))
    stage.wait_for_starts(jid)
    first.send(signal.SIGKILL)
    first.wait()
    stage.open_gate("gate")
    assert stage.finish_elsewhere(first, jid).deaths == 1
    assert len(stage.ledger.starts(jid)) == 2


def test_a_short_stop_costs_nothing(stage):
    """Suspended past a job's limit but within its lease: the child's answer is read before the deadline is acted on."""
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate, timeout=3.0)
    (start,) = stage.wait_for_starts(jid)
    pool.send(signal.SIGSTOP)
    stage.open_gate(gate)
    assert await_ends([start.pid], 15.0) == []  # it has answered, and left after its last job
    stage.let_time_pass(3.2)  # the limit passes; no event tells of it
    pool.send(signal.SIGCONT)
    pool.wait_for("job.completed", jid=jid)
    job = stage.client.job(jid)
    assert (job.state, job.deaths) == ("complete", 0)
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_zygote_that_hangs_is_replaced_and_its_children_finish(stage):
    pool = stage.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    held = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(held)
    hung = pool.zygote_pid
    os.kill(hung, signal.SIGSTOP)
    jids = stage.queue.put_many([{"klass": "good.noop"} for _ in range(10)])
    stage.wait_until_ended(jids)
    assert pool.find("zygote.retired")
    assert pool.zygote_pid != hung
    assert stage.client.job(held).state == "running"
    stage.open_gate(gate)
    stage.wait_until_ended([held])
    assert set(stage.states([held, *jids])) == {"complete"}
    assert [len(stage.ledger.starts(jid)) for jid in (held, *jids)] == [1] * 11
    assert not pool.find("job.died")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_redis_away_for_seconds_costs_nothing(own_stage, own_server, how):
    stage = own_stage
    stage.config(grace=3)  # who is back must not rob the other one, who may be late
    pools = [stage.start(processes=2, lease_ttl="9s").wait_ready() for _ in range(2)]
    gate = stage.gate("gate")
    held = [stage.queue.put("good.hold", gate) for _ in range(3)]
    for jid in held:
        stage.wait_for_starts(jid)
    rest = stage.queue.put_many([{"klass": "good.nap", "data": 0.01} for _ in range(100)])
    if how == "stopped":
        own_server.process.send_signal(signal.SIGSTOP)
    else:
        own_server.kill()
    stage.open_gate(gate)  # outcomes come while nobody can be told of them
    for pool in pools:
        pool.wait_for("redis.lost")
    stage.let_time_pass(2.0)  # the outage
    if how == "stopped":
        own_server.process.send_signal(signal.SIGCONT)
    else:
        own_server.start()
    for pool in pools:
        pool.wait_for("redis.connected")
    stage.wait_until_ended([*held, *rest])
    assert set(stage.states([*held, *rest])) == {"complete"}
    assert [len(stage.ledger.starts(jid)) for jid in (*held, *rest)] == [1] * 103
    assert not stage.find("job.stale")
    assert not stage.find("job.died")
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


def test_a_long_job_outlives_an_outage_longer_than_its_lease(own_stage, own_server):
    """INV-5: its child runs all the while, and nobody else may have it: whoever comes back renews first."""
    stage = own_stage
    stage.config(grace=2.5)
    pools = [stage.start(processes=1, lease_ttl="1s").wait_ready() for _ in range(2)]
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    own_server.kill()
    for pool in pools:
        pool.wait_for("redis.lost")
    stage.let_time_pass(4.5)  # longer than TTL and grace
    own_server.start()
    for pool in pools:
        pool.wait_for("redis.connected")
    stage.let_time_pass(3.5)  # a peer that would rob it would do so now
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert len(stage.ledger.starts(jid)) == 1
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.interruptions) == ("complete", 0, 0)
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_drain_while_redis_is_away_exits_75_within_the_budget_and_loses_nothing(own_stage, own_server, how, measured):
    stage = own_stage
    stage.config(grace=0.3)
    pool = stage.start(processes=1, lease_ttl="2s", drain_timeout="1s", term_grace="0.5s").wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    rest = stage.queue.put_many([{"klass": "good.noop"} for _ in range(3)])
    stage.wait_for_starts(jid)
    if how == "stopped":
        own_server.process.send_signal(signal.SIGSTOP)
    else:
        own_server.kill()
        pool.wait_for("redis.lost")
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 75
    took_s = time.monotonic() - began_at
    measured(f"drain while Redis is {how}, budget 1.5 s + 2 s: {took_s:.2f} s")
    drained_s = pool.find("master.stopped")[0]["time"] - pool.find("master.draining")[0]["time"]
    assert drained_s <= 1.5 + 2 + 3
    assert took_s <= 12.0  # with the interpreter's own way down, which a loaded machine makes long
    if how == "stopped":
        own_server.process.send_signal(signal.SIGCONT)
    else:
        own_server.start()
    stage.open_gate(gate)
    second = stage.start(processes=1, lease_ttl="2s")
    stage.wait_until_ended([jid, *rest])
    assert set(stage.states([jid, *rest])) == {"complete"}
    assert second.drain() == 0


def test_a_drain_of_an_idle_supervisor_while_redis_is_away_exits_75_without_waiting_for_it(own_stage, own_server):
    """The lease behind its wait has not been answered: a job may be held in its name."""
    stage = own_stage
    stage.config(grace=0.3)
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    own_server.kill()
    pool.wait_for("redis.lost")
    assert pool.drain() == 75
    drained_s = pool.find("master.stopped")[0]["time"] - pool.find("master.draining")[0]["time"]
    assert drained_s <= 0.15 + 1.0 + 3  # half the grace and what the last exchange gets, of the 30 s of a drain


def test_a_drain_while_redis_is_away_exits_0_where_nothing_can_be_held(own_stage, own_server):
    """Its globs match no queue: no lease stands behind its wait."""
    stage = own_stage
    stage.config(grace=0.3)
    pool = stage.start(processes=1, queue="nothing-*").wait_ready()
    stage.wait_until_heard(1)
    own_server.kill()
    pool.wait_for("redis.lost")
    assert pool.drain() == 0
