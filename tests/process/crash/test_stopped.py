"""A stopped master and an outage of Redis: nothing is taken over too early, done twice, or lost."""

import contextlib
import os
import signal
import time

import pytest
from apps import flag, put, start_app, wait_for_arrival
from supervised import await_ends


def test_stopped_master_settles_nothing_after_a_take_over(stage):
    """The job has ended at the other master meanwhile, so Redis refuses the late outcome."""
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="1s").wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_until_start_is_known(jid)
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


def test_child_stops_when_its_lease_is_known_lost(stage):
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


def stop_in_its_wait(stage, pool):
    """Stop a master while it waits for wake-ups. A master without a ready child waits for mail, which is one key."""
    mail_bytes = len(f"BLPOP{stage.prefix}mail:{pool.worker}") + len("wait in seconds")

    def waits_for_queues():
        waits = [client for client in stage.server.redis.client_list() if client["cmd"] == "blpop"]
        return any("b" in client["flags"] and int(client["argv-mem"]) > mail_bytes for client in waits)

    stage.wait_until(waits_for_queues, "wait for wake-ups")
    pool.send(signal.SIGSTOP)


@pytest.mark.parametrize(("at_most_once", "state", "starts"), [(False, "complete", 1), (True, "failed", 0)])
def test_stopped_idle_master_starts_nothing_with_an_expired_lease(stage, at_most_once, state, starts):
    """The lease comes at the end of the master's wait, and the master reads it when it continues."""
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="3s").wait_ready()
    stop_in_its_wait(stage, first)
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


def test_lease_of_a_vanished_idle_master_counts_as_unstarted(stage):
    stage.config(grace=0.3)
    first = stage.start(processes=1, lease_ttl="3s").wait_ready()
    stop_in_its_wait(stage, first)
    jid = stage.queue.put("good.noop", max_deaths=1)
    assert stage.client.job(jid).worker == first.worker
    first.send(signal.SIGKILL)
    first.wait()
    assert stage.finish_elsewhere(first, jid).deaths == 0
    assert len(stage.ledger.starts(jid)) == 1


def let_child_win(pool):
    """Have the child that the master wakes run before the master goes on, where the kernel lets us."""
    (child,) = pool.child_pids()
    with contextlib.suppress(PermissionError):
        for pid in (pool.pid, child):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})
        os.sched_setscheduler(child, os.SCHED_FIFO, os.sched_param(1))


def living(pools):
    return [pool for pool in pools if pool.process.poll() is None]


def await_two_counted_deaths(stage, pools, jid, measured):
    """Wait until the job has failed by its second death. It has killed one more master at the most."""
    stage.wait_until_counted(lambda: not living(pools) or stage.client.job(jid).state == "failed")
    job, killed = stage.client.job(jid), len(pools) - len(living(pools))
    measured(f"{killed} masters killed, {job.deaths} deaths counted")
    assert (job.state, job.deaths) == ("failed", 2), job.history
    assert job.failure["group"] == "died:lost"
    assert killed in (2, 3)


def finish_the_living(stage, pools):
    left = living(pools)
    for pool in pools:
        if pool not in left:
            stage.client.deregister(pool.worker)
    assert {pool.drain() for pool in left} == {0}
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_job_that_kills_masters_fails_after_its_deaths(stage, measured):
    """The first start may stay unknown, because the master reports a start once the child has the job."""
    stage.config(grace=0.3)
    stage.client.cancel(stage.queue.put("good.noop"))  # from now on a put wakes by the wake-up key, not by mail
    pools = [stage.start(processes=1, lease_ttl="1s", sandbox="none") for _ in range(4)]
    for pool in pools:
        let_child_win(pool.wait_ready())
    stage.wait_until_idle(4)
    jid = stage.queue.put("bad.kill_the_master", 0.05, max_deaths=2)
    await_two_counted_deaths(stage, pools, jid, measured)
    finish_the_living(stage, pools)


@pytest.mark.sampled(2)
def test_job_of_a_quick_klass_kills_one_busy_master_uncounted_at_most(stage, measured):
    """Such jobs are sent ahead, and their starts are not reported. The one that came back waits for an idle child."""
    stage.config(grace=0.3)
    pools = [stage.start(processes=1, jobs_per_child=0, lease_ttl="1s", sandbox="none").wait_ready() for _ in range(4)]
    stage.wait_until_idle(4)
    others = stage.queue.put_many({"klass": "bad.kill_the_master"} for _ in range(2_000))
    jid = stage.queue.put("bad.kill_the_master", 0.0, max_deaths=2)
    others += stage.queue.put_many({"klass": "bad.kill_the_master"} for _ in range(2_000))
    await_two_counted_deaths(stage, pools, jid, measured)
    stage.wait_until_counted(lambda: not stage.queue.counts().total)
    assert {
        each.state for first in range(0, 4_000, 1_000) for each in stage.client.jobs(*others[first : first + 1_000])
    } == {"complete"}
    finish_the_living(stage, pools)


def test_short_stop_costs_nothing(stage):
    """Stopped past a job's limit but within its lease: the child's outcome is read before the deadline is handled."""
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate, timeout=3.0)
    (start,) = stage.wait_for_starts(jid)
    pool.send(signal.SIGSTOP)
    stage.open_gate(gate)
    assert await_ends([start.pid], 15.0) == []  # it has answered, and left after its last job
    stage.let_time_pass(3.2)  # past the limit, which no event reports
    pool.send(signal.SIGCONT)
    pool.wait_for("job.completed", jid=jid)
    job = stage.client.job(jid)
    assert (job.state, job.deaths) == ("complete", 0)
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_hung_zygote_is_replaced_and_its_children_finish(stage):
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


@pytest.mark.slow
def test_zygote_that_hangs_between_fork_and_report_harms_no_job(stage):
    """The master knows neither pid nor pidfd of the new child, although that says that it is ready."""
    source = """
def stop():
    if is_set("stop"):
        (HERE / "stop").unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
os.register_at_fork(after_in_parent=stop)
"""
    pool = start_app(stage, source, processes=2).wait_ready()
    gates = [stage.gate("first"), stage.gate("second")]
    held = put(stage, "hold", data=gates[0])
    wait_for_arrival(stage, gates[0])
    flag(stage, "stop")
    stage.wait_until_ended(put(stage, "noop"))  # the fork of its child's successor stops the zygote
    stage.wait_until_counted(lambda: not (stage.directory / "stop").exists())
    stage.wait_until_ended(put(stage, "noop"))  # uses up the child that was forked ahead
    held += put(stage, "hold", data=gates[1])
    pool.wait_for("zygote.retired", timeout_s=40)
    pool.wait_for("zygote.ready", nth=2)
    wait_for_arrival(stage, gates[1])
    for gate in gates:
        stage.open_gate(gate)
    stage.wait_until_ended(held)
    counts = [(job.state, job.deaths, job.interruptions) for job in stage.client.jobs(*held)]
    assert counts == [("complete", 0, 0)] * 2
    assert not pool.find("zygote.lost")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_short_outage_costs_nothing(own_stage, own_server, how):
    stage = own_stage
    stage.config(grace=3)  # the first one back must wait for the other
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
    stage.open_gate(gate)  # outcomes come during the outage
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


def test_long_job_outlives_an_outage_longer_than_its_lease(own_stage, own_server):
    """INV-5: its child runs meanwhile, and no peer may have the job: the first one back renews first."""
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
    stage.let_time_pass(3.5)  # a peer would take it over now
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert len(stage.ledger.starts(jid)) == 1
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.interruptions) == ("complete", 0, 0)
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_drain_without_redis_exits_75_and_loses_nothing(own_stage, own_server, how, measured):
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
    assert took_s <= 12.0  # includes the interpreter's shutdown, which is slow on a loaded machine
    if how == "stopped":
        own_server.process.send_signal(signal.SIGCONT)
    else:
        own_server.start()
    stage.open_gate(gate)
    second = stage.start(processes=1, lease_ttl="2s")
    stage.wait_until_ended([jid, *rest])
    assert set(stage.states([jid, *rest])) == {"complete"}
    assert second.drain() == 0


def test_idle_drain_without_redis_exits_75_at_once(own_stage, own_server):
    """The lease behind its wait is unanswered: it may hold a job."""
    stage = own_stage
    stage.config(grace=0.3)
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    own_server.kill()
    pool.wait_for("redis.lost")
    assert pool.drain() == 75
    drained_s = pool.find("master.stopped")[0]["time"] - pool.find("master.draining")[0]["time"]
    assert drained_s <= 0.15 + 1.0 + 3  # half the grace and the last exchange's time, of the drain's 30 s


def test_drain_without_redis_exits_0_if_nothing_is_held(own_stage, own_server):
    """The supervisor's globs match no queue, so no lease stands behind its wait."""
    stage = own_stage
    stage.config(grace=0.3)
    pool = stage.start(processes=1, queue="nothing-*").wait_ready()
    stage.wait_until_heard(1)
    own_server.kill()
    pool.wait_for("redis.lost")
    assert pool.drain() == 0
