"""A Redis that refuses calls, that has lost acknowledged writes, or that a replica has replaced."""

import shutil
import signal

import pytest
from servers import stopped
from supervised import await_ends

from supervisor import StoreUnavailable
from supervisor.master.model.ledger import MOST_BYTES


def test_full_redis_refuses_puts_and_runs_stored_jobs(own_stage, own_server):
    stage = own_stage
    pool = stage.start(processes=1).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    behind = stage.queue.put_many([{"klass": "good.noop"} for _ in range(3)])
    own_server.redis.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="Nothing has changed"):
        stage.queue.put("good.noop")
    stage.open_gate("gate")
    stage.wait_until_ended([held, *behind])
    assert not pool.find("redis.lost") and not pool.find("redis.failed")
    own_server.redis.config_set("maxmemory", 0)
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_completion_with_puts_waits_for_memory(own_stage, own_server):
    """A full Redis refuses a handler's puts as any put. The job has ended, and nothing of it may be lost."""
    stage = own_stage
    pool = stage.start(processes=1, lease_ttl="1s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    puts = [["waits", "good.noop", None, {}]]
    behind = [stage.queue.put("follow.after", {"put": puts}) for _ in range(2)]
    plain = stage.queue.put("good.noop")
    own_server.redis.config_set("maxmemory", 1)
    stage.open_gate("gate")
    stage.wait_until_ended([held, plain])
    told = pool.wait_for("redis.failed")
    assert "the memory of Redis is full" in told["message"] and told["waiting"] in (1, 2)
    assert pool.wait_for("redis.failed", nth=2)["waiting"] == 2
    assert stage.states(behind) == ["running", "running"], "their leases go on"
    assert stage.client.queue("waits").length() == 0
    own_server.redis.config_set("maxmemory", 0)
    stage.wait_until_ended(behind)
    assert [len(stage.ledger.starts(jid)) for jid in behind] == [1, 1]
    assert stage.client.queue("waits").length() == 2
    for lease in stage.client.queue("waits").lease("me", 10):
        assert lease.complete()
    stage.client.deregister("me")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_many_completions_that_wait_for_memory_stop_leasing(own_stage, own_server):
    """The completions are kept in the supervisor's memory, so there is a bound."""
    stage = own_stage
    pool = stage.start(processes=1, jobs_per_child=0, dispatch_ahead="0s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    size = 2**20
    behind = stage.queue.put_many({"klass": "follow.large_after", "data": size} for _ in range(100))
    own_server.redis.config_set("maxmemory", 1)
    stage.open_gate("gate")
    for jid in behind[: MOST_BYTES // size]:
        stage.wait_for_starts(jid)
    pool.wait_for("redis.failed", nth=len(pool.find("redis.failed")) + 2)
    assert len(stage.ledger.starts(*behind)) <= MOST_BYTES // size + 4
    assert stage.states(behind).count("waiting") >= 100 - MOST_BYTES // size - 4
    own_server.redis.config_set("maxmemory", 0)
    stage.wait_until_ended(behind)
    assert len(stage.ledger.starts(*behind)) == 100
    stage.client.queue("waits").delete()
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize(("signo", "patience"), [(signal.SIGTERM, "1s"), (signal.SIGQUIT, "60s")])
def test_drain_ends_completions_that_wait_for_memory(own_stage, own_server, signo, patience):
    """Jobs whose completions are refused go to the front, and at-most-once jobs fail. Their children have not died."""
    stage = own_stage
    pool = stage.start(processes=1, lease_ttl="3s", drain_timeout=patience).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    puts = {"put": [["waits", "good.noop", None, {}]]}
    plain, once = stage.queue.put("follow.after", puts), stage.queue.put("follow.after", puts, at_most_once=True)
    own_server.redis.config_set("maxmemory", 1)
    stage.open_gate("gate")
    pool.wait_for("redis.failed")
    pool.wait_for("child.reaped", nth=3)  # each has ended its job
    pool.send(signo)
    assert pool.wait() == 0
    assert pool.find("job.released")[0]["jid"] == plain and not pool.find("job.died")
    own_server.redis.config_set("maxmemory", 0)
    first, second = stage.client.jobs(plain, once)
    assert (first.state, first.deaths, first.interruptions) == ("waiting", 0, 1)
    assert (second.state, second.deaths, second.failure["group"]) == ("failed", 0, "interrupted")
    assert "the memory of Redis was full" in second.failure["message"]
    peer = stage.start(processes=1).wait_ready()
    peer.wait_for("job.completed", jid=plain)
    assert [len(stage.ledger.starts(jid)) for jid in (plain, once)] == [2, 1]
    (follower,) = stage.client.queue("waits").lease("me", 10)
    assert follower.complete()
    stage.client.deregister("me")
    assert peer.drain() == 0
    stage.assert_nothing_left()


def test_unpromoted_replica_stops_no_running_job(own_stage, own_server):
    """A replica without the scripts stops none either."""
    stage = own_stage
    stage.config(grace=0.5)
    pool = stage.start(processes=2, lease_ttl="1s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    own_server.redis.replicaof("127.0.0.1", "1")
    stage.wait_until(
        lambda: sum("READONLY" in lost["message"] for lost in pool.find("redis.lost")) >= 2, "READONLY twice"
    )
    assert pool.find("redis.connected") == [], "it only lets us connect"
    own_server.redis.replicaof("NO", "ONE")
    own_server.redis.script_flush()
    pool.wait_for("redis.connected")
    behind = stage.queue.put("good.noop")
    stage.wait_until_ended([behind])
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert [len(stage.ledger.starts(jid)) for jid in (held, behind)] == [1, 1]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_lost_writes_undo_recent_puts_and_completions(own_stage, own_server):
    stage = own_stage
    stage.config(grace=0.5)
    pool = stage.start(processes=2, lease_ttl="10s", term_grace="0.3s").wait_ready()
    held, ends = (stage.queue.put("good.hold", stage.gate(gate)) for gate in ("held", "ends"))
    for jid in (held, ends):
        stage.wait_for_starts(jid)
    behind = stage.queue.put("good.noop")
    before, now = own_server.directory / "before", own_server.directory / "appendonlydir"
    shutil.copytree(now, before)
    stage.open_gate("ends")
    stage.wait_until_ended([ends, behind])
    gone = stage.queue.put("good.hold", stage.gate("gone"))
    (start,) = stage.wait_for_starts(gone)
    own_server.kill()
    shutil.rmtree(now)
    before.rename(now)
    own_server.start()
    pool.wait_for("lease.lost", jid=gone, reason="cancelled")
    assert await_ends([start.pid], 10.0) == []
    for jid in (ends, behind):
        pool.wait_for("job.completed", jid=jid, nth=2)
    stage.open_gate("held")
    stage.wait_until_ended([held])
    assert stage.states([held, ends, behind, gone]) == ["complete", "complete", "complete", "lost"]
    assert [len(stage.ledger.starts(jid)) for jid in (held, ends, behind, gone)] == [1, 2, 2, 1]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_emptied_redis_stops_jobs_and_renames_the_worker(own_stage, own_server):
    stage = own_stage
    pool = stage.start(processes=1, lease_ttl="1s", term_grace="0.3s").wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    (start,) = stage.wait_for_starts(held)
    own_server.redis.flushall()
    pool.wait_for("lease.lost", jid=held)
    assert await_ends([start.pid], 10.0) == []
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([after])
    assert pool.wait_for("worker.deregistered")["old"] == pool.worker
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_refused_calls_are_repeated_until_accepted(own_stage, own_server):
    """A lease is sent alone; an outcome goes with the calls that each supervisor must make."""
    stage = own_stage
    stage.config(grace=0.5)
    pool = stage.start(processes=2).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_idle(1)
    own_server.refuse_scripts()
    own_server.redis.rpush(f"{stage.prefix}bell:default", "1")
    assert "Redis refused lease: NOPERM" in pool.wait_for("redis.failed")["message"]
    stage.open_gate("gate")
    assert "Redis refused" in pool.wait_for("redis.lost")["message"]
    own_server.accept_scripts()
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([held, after])
    assert [len(stage.ledger.starts(jid)) for jid in (held, after)] == [1, 1]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_supervisor_cut_off_alone_loses_its_jobs_to_a_peer(stage, proxies):
    stage.config(grace=0.5)
    line = proxies(0)
    alone = stage.start(processes=1, lease_ttl="1s", term_grace="0.3s", redis_url=line.url).wait_ready()
    jid = stage.queue.put("good.short_or_long", stage.gate("gate"))
    (start,) = stage.wait_for_starts(jid)
    stage.wait_until_start_is_known(jid)
    with stopped(line.process):
        peer = stage.start(processes=1).wait_ready()
        stage.wait_for_starts(jid, 2)
    alone.wait_for("lease.lost", jid=jid, reason="lease-lost")
    assert await_ends([start.pid], 10.0) == []
    stage.open_gate("gate")
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.interruptions) == ("complete", 1, 0)
    assert [pool.drain() for pool in (alone, peer)] == [0, 0]
    stage.assert_nothing_left()
