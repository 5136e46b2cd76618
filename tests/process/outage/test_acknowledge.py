"""Ends of jobs count once the replica has them: a failover then loses and doubles nothing."""

import signal
from collections.abc import Iterator

import pytest
from supervised import Stage

from supervisor.exit_codes import Exit
from tests import sentinels


@pytest.fixture
def group(tmp_path_factory) -> Iterator[sentinels.Group]:
    with sentinels.group(tmp_path_factory.mktemp("s"), replicas=1) as made:
        yield made


@pytest.fixture
def group_stage(stage, group) -> Iterator[Stage]:
    """The stage, with a primary that has one replica."""
    with stage.at(group):
        yield stage


@pytest.fixture
def replica(group) -> sentinels.Member:
    return group.replica()


def start_with_a_held_job(stage, replica, **flags):
    """Return a pool, and a job that runs until its gate is open. Only the primary knows what comes next."""
    pool = stage.start(processes=2, **flags).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(1)
    assert stage.server.redis.wait(1, 5000) == 1
    cut_off(stage, replica)
    return pool, held


def cut_off(stage, replica):
    """Stop the replica, with nothing in its socket that it would read later."""
    replica.send(signal.SIGSTOP)
    stage.server.redis.client_kill_filter(_type="replica")


def elect(group, replica):
    """Let the primary die, and the replica take its place."""
    old = group.primary()
    old.kill()
    replica.send(signal.SIGCONT)
    group.await_election(old)
    group.join(old, "--replica-priority", "0")  # two sentinels that are late would elect it, before it has the data


@pytest.mark.slow
@pytest.mark.parametrize("by", ["flag", "config"])
def test_end_of_a_job_counts_once_a_replica_has_the_outcome(group_stage, replica, by):
    stage = group_stage
    if by == "config":
        stage.client.config.set("acknowledge", 1)
    pool, held = start_with_a_held_job(stage, replica, **({"acknowledge": 1} if by == "flag" else {}))
    stage.open_gate("gate")
    said = pool.wait_for("redis.unacknowledged")["message"]
    assert said.startswith("0 of 1 replicas have acknowledged within 1 s: ")
    other = stage.queue.put("good.hold", stage.gate("other"))
    stage.wait_for_starts(other)  # jobs are leased meanwhile
    assert pool.find("job.completed") == []
    replica.send(signal.SIGCONT)
    pool.wait_for("redis.acknowledged")
    assert pool.wait_for("job.completed")["jid"] == held
    stage.open_gate("other")
    stage.wait_until_ended([held, other])
    assert pool.drain() == 0
    assert len(pool.find("redis.unacknowledged")) == 1 and pool.find("redis.lost") == []
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_outcome_that_the_new_primary_lacks_is_repeated(group_stage, group, replica):
    stage = group_stage
    pool, held = start_with_a_held_job(stage, replica, acknowledge=1)
    stage.open_gate("gate")
    pool.wait_for("redis.unacknowledged")
    elect(group, replica)
    pool.wait_for("job.completed")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert pool.drain() == 0
    assert [event["jid"] for event in pool.find("job.completed")] == [held] and pool.find("job.stale") == []
    stage.assert_nothing_left()


@pytest.fixture
def storing(group_stage, replica):
    """A pool, and a job that waits for its checkpoint, which only the primary has."""
    stage = group_stage
    pool = stage.start(acknowledge=1).wait_ready()
    job = stage.queue.put("steps.after_gate", {"gate": stage.gate("gate")})
    stage.wait_until_start_is_known(job)
    stage.wait_until_heard(1)
    assert stage.server.redis.wait(1, 5000) == 1
    cut_off(stage, replica)
    stage.open_gate("gate")
    pool.wait_for("redis.unacknowledged")
    assert stage.client.job(job).saved == "first" and not stored(pool)
    return pool, job


def stored(pool):
    """Return which of its checkpoints the job takes for stored."""
    return [event["line"] for event in pool.find("job.printed") if event["line"].startswith("stored")]


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_checkpoint_that_the_new_primary_lacks_is_repeated(group_stage, group, replica, storing):
    stage, (pool, job) = group_stage, storing
    elect(group, replica)
    stage.wait_until_ended([job])
    assert stored(pool) == ["stored: first", "stored: second"] and len(stage.ledger.starts(job)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_job_whose_checkpoint_lacks_the_replica_can_be_cancelled(group_stage, replica, storing):
    stage, (pool, job) = group_stage, storing
    stage.client.cancel(job)
    assert pool.wait_for("lease.lost")["reason"] == "cancelled"
    replica.send(signal.SIGCONT)
    pool.wait_for("redis.acknowledged")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_jobs_run_though_the_account_may_not_ask_for_replicas(own_stage, own_server):
    stage = own_stage
    own_server.redis.execute_command("ACL", "SETUSER", "default", "-wait")
    stage.client.config.set("acknowledge", 1)
    pool = stage.start(lease_ttl="3s").wait_ready()
    once = stage.queue.put("good.noop", at_most_once=True)
    assert pool.wait_for("redis.unacknowledged")["message"].startswith("WAIT failed: NOPERM")
    other = stage.queue.put("good.noop")
    stage.wait_for_starts(other)
    assert stage.ledger.starts(once) == [] and pool.find("redis.lost") == []
    own_server.redis.execute_command("ACL", "SETUSER", "default", "+wait")
    stage.client.config.set("acknowledge", 0)
    stage.wait_until_ended([once, other])
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_job_that_must_not_start_twice_waits_for_the_replica(group_stage, replica):
    stage = group_stage
    pool, held = start_with_a_held_job(stage, replica, acknowledge=1)
    once = stage.queue.put("good.noop", at_most_once=True)
    pool.wait_for("redis.unacknowledged")
    pool.wait_for("lease.granted", nth=3)  # it was handed back, and is offered again
    assert stage.ledger.starts(once) == []
    replica.send(signal.SIGCONT)
    stage.wait_until_ended([once])
    assert len(stage.ledger.starts(once)) == 1
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_drain_without_the_replica_ends_in_time_and_says_so(group_stage, replica):
    stage = group_stage
    pool, held = start_with_a_held_job(stage, replica, acknowledge=1, drain_timeout="1s", term_grace="1s")
    pool.send(signal.SIGTERM)
    assert pool.wait() == Exit.NOT_HANDED_BACK
    replica.send(signal.SIGCONT)
    assert stage.client.job(held).state == "waiting"
    stage.client.cancel(held)
    stage.client.deregister(pool.worker)
    stage.server.redis.delete(f"{{{stage.namespace}}}:mail:{pool.worker}")  # its own word to itself, which has a TTL
    stage.assert_nothing_left()
