"""Expiry: a job without a start in time fails in group expired."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from supervisor.engine.model.outcomes import Died, Released, Retried


def expired(client):
    return [job.jid for job in client.failed("expired")[1]]


def test_a_job_that_is_started_in_time_runs(client, clock):
    client.queue("q").put("k", jid="j", expires=10)
    clock.tick(9.999)
    (lease,) = client.queue("q").lease("w")
    clock.tick(20)
    assert lease.complete() is True
    assert expired(client) == []


def test_expired_job_is_never_leased(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    q.put("k", jid="other")
    clock.tick(10)
    assert [lease.jid for lease in q.lease("w", 9)] == ["other"]
    job = client.job("j")
    assert (job.state, job.failure["group"], expired(client)) == ("failed", "expired", ["j"])
    assert job.failure["message"] == "it was not started within 10 s of its put"


def test_a_sweep_finds_what_no_lease_asks_for(client, clock):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}", "expires": i} for i in range(1, 6))
    clock.tick(3)
    client.sweep()
    assert sorted(expired(client)) == ["j1", "j2", "j3"]
    assert (q.length(), q.counts().waiting) == (2, 2)


@pytest.mark.parametrize("state", ["scheduled", "depends", "parked", "in a lane", "in a paused lane", "in front"])
def test_job_expires_in_every_place(client, clock, state):
    q = client.queue("q")
    client.limit("shut", running=0)
    q.put("k", jid="parent", delay=1000)
    options = {
        "scheduled": {"delay": 20}, "depends": {"depends": ["parent"]}, "parked": {"limit": "shut"},
        "in a lane": {"lane": "a"}, "in a paused lane": {"lane": "a"},
    }.get(state, {})  # fmt: skip
    q.put("k", jid="j", expires=10, **options)
    if state == "in a paused lane":
        q.lane("a").pause()
    if state == "parked":
        assert q.lease("w") == []
    if state == "in front":
        q.lease("w")[0].release(started=False)
    clock.tick(10)
    client.sweep()
    assert expired(client) == ["j"]


def test_the_time_counts_from_the_put_with_its_delay(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", delay=6, expires=10)
    assert client.job("j").start_by_unix == clock.now + 10
    clock.tick(6)
    assert len(q.lease("w")) == 1


@pytest.mark.parametrize(
    "way",
    [Retried, Released, lambda it: Died(it, "oom")],
    ids=["retried", "interrupted", "died"],
)
def test_started_job_does_not_expire_after_its_return(client, clock, way):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    client.settle([way(lease) for lease in q.lease("w")])
    clock.tick(60)
    client.sweep()
    assert [lease.jid for lease in q.lease("w")] == ["j"]
    assert client.job("j").start_by_unix is None


def test_released_unstarted_job_still_expires(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    q.lease("w")[0].release(started=False)
    assert client.job("j").start_by_unix == clock.now + 10
    clock.tick(10)
    assert q.lease("w") == []
    assert expired(client) == ["j"]


def test_job_of_a_worker_lost_before_the_start_expires(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    calls_of(client).run(leasing.lease("w", ["q"], starting=0, now=clock.now))
    clock.tick(60)
    assert q.lease("w2") == []
    assert expired(client) == ["j"]


def test_a_job_that_runs_is_not_touched(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    (lease,) = q.lease("w", ttl=1000)
    clock.tick(500)
    client.sweep()
    assert lease.complete() is True


def test_a_new_put_begins_a_new_time(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    clock.tick(9)
    q.put("k", jid="j")
    assert client.job("j").start_by_unix == clock.now + 10
    clock.tick(9)
    assert len(q.lease("w")) == 1


def test_put_may_take_an_expiry_away(client, clock, keys):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    q.put("k", jid="j", expires=None)
    assert (client.job("j").start_by_unix, "expiring" in keys()) == (None, False)
    clock.tick(100)
    client.sweep()
    assert len(q.lease("w")) == 1


def test_an_unfailed_job_has_its_time_again(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", expires=10)
    clock.tick(11)
    client.sweep()
    assert client.unfail("expired") == 1
    clock.tick(9)
    assert len(q.lease("w")) == 1


def test_advanced_job_has_a_new_deadline(client, clock):
    client.queue("q").put("k", jid="j", expires=10)
    client.queue("q").lease("w")[0].complete(next="r")
    clock.tick(10)
    assert client.queue("r").lease("w") == []
    assert expired(client) == ["j"]


def test_dependents_of_an_expired_job_see_a_failure(client, clock):
    q = client.queue("q")
    q.put("k", jid="parent", expires=10)
    q.put("k", jid="fails", depends=["parent"], on_parent_failure="fail")
    q.put("k", jid="runs", depends=["parent"], on_parent_failure="run")
    clock.tick(10)
    assert q.lease("w") == []
    assert client.job("fails").state == "failed"
    assert [lease.jid for lease in q.lease("w", 9)] == ["runs"]


def test_expired_jobs_ahead_hold_up_no_lease_for_long(client, clock):
    q = client.queue("q")
    q.put_many({"klass": "k", "expires": 1} for _ in range(500))
    q.put("k", jid="good")
    clock.tick(2)
    found = []
    for _ in range(500 // 17 + 2):
        found += q.lease("w")
    assert [lease.jid for lease in found] == ["good"]
    assert client.failed() == {"expired": 500}


def test_an_expired_job_gives_no_slot_away(client, clock):
    client.limit("one", running=1)
    q = client.queue("q")
    q.put("k", jid="late", expires=1, limit="one")
    q.put("k", jid="next", limit="one")
    clock.tick(2)
    assert [lease.jid for lease in q.lease("w", 9)] == ["next"]
    assert client.limit("one").in_use == 1


def test_ended_job_leaves_no_deadline(client, clock, keys):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}", "expires": 10} for i in range(4))
    q.lease("w")[0].complete()
    q.lease("w")[0].fail("g", "m")
    client.cancel("j2")
    clock.tick(10)
    client.sweep()
    assert "expiring" not in keys()


def test_recurring_jobs_do_not_pile_up_without_workers(client, clock):
    q = client.queue("q")
    q.recur("k", every=10, offset=0, jid="r", expires=10)
    for _ in range(5):
        clock.tick(10)
        client.sweep()
    assert len(q.lease("w", 9)) <= 2
