"""Operations under an injected clock that jumps, stands still and goes back."""

import datetime

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import LeaseLost


@pytest.fixture
def q(client):
    return client.queue("q")


def jids(leases):
    return [lease.jid for lease in leases]


# Every operation by this clock.


def test_each_stored_time_comes_from_the_clock(client, q, clock, server, namespace):
    clock.now = 5_000.25
    q.put("k", jid="x", tags=["t"], delay=1)
    q.recur("k", every=60, jid="r", offset=1)
    clock.tick(1)
    leases = q.lease("w", 2)
    assert {lease.expires_unix for lease in leases} == {clock.now + 30}
    leases[0].renew()
    client.log("x", "line")
    client.track("x")
    for lease in leases:
        lease.fail("g", "m") if lease.jid == "x" else lease.complete()
    job = client.job("x")
    assert (job.put_unix, job.failure["when"]) == (5_000.25, 5_001.25)
    assert {entry["when"] for entry in job.history} == {5_000.25, 5_001.25}
    assert (client.workers()[0].seen_unix, q.stats().date) == (5_001.25, datetime.date(1970, 1, 1))
    times = {
        score
        for key in ("queues", "workers-seen", "tag:t", "tracked-jobs", "failed", "complete", "groups")
        for _, score in server.redis.zrange(f"{{{namespace}}}:{key}", 0, -1, withscores=True)
    }
    assert times == {5_000_250, 5_001_250}


@pytest.mark.parametrize("now", [0, 0.001, 1, 1e9, 253_402_300_000])
def test_any_time_from_the_first_second_on_will_do(client, q, clock, now):
    clock.now = now
    q.put("k", jid="a", delay=10)
    assert (q.lease("w"), client.job("a").due_unix) == ([], pytest.approx(now + 10))
    clock.now = now + 10
    (held,) = q.lease("w")
    assert held.renew() == pytest.approx(now + 40)
    assert held.complete()
    client.sweep()
    assert q.stats().run.count == 1


def test_two_clients_may_have_two_clocks(client, q, server, namespace):
    q.put("k", jid="x")
    q.lease("w")
    with Client(server.url, namespace, lambda: 1_000_034.9) as later:
        assert (later.job("x").state, later.queue("q").lease("v")) == ("stalled", [])
    with Client(server.url, namespace, lambda: 1_000_035.0) as latest:
        assert jids(latest.queue("q").lease("v")) == ["x"]


def test_each_loss_has_a_whole_grace_of_its_own(client, q, clock):
    q.put("k", jid="x")
    (held,) = q.lease("w")
    for _ in range(3):
        clock.tick(34.999)
        assert q.lease("v") == []
        assert held.renew() == clock.now + 30
    clock.tick(35)
    assert jids(q.lease("v")) == ["x"]


# Forwards.


def test_due_jobs_keep_their_order_after_a_jump_of_years(client, q, clock):
    q.put("k", jid="leased", max_deaths=9)
    q.lease("w")
    q.put("k", jid="in-an-hour", delay=3600)
    q.put("k", jid="in-a-minute", delay=60)
    q.put("k", jid="there")
    clock.tick(20 * 365 * 86_400)
    assert jids(q.lease("v", 9)) == ["leased", "there", "in-a-minute", "in-an-hour"]


# Backwards.


def test_lease_is_longer_when_the_clock_goes_back_until_renewed(client, q, clock):
    q.put("k", jid="x")
    (held,) = q.lease("w")
    clock.tick(-1000)
    assert client.job("x").expires_unix == clock.now + 1030
    assert held.renew() == clock.now + 30
    clock.tick(35)
    assert jids(q.lease("v")) == ["x"]
    with pytest.raises(LeaseLost):
        held.renew()


def test_clock_going_back_delays_only_what_has_not_come(client, q, clock):
    q.put("k", jid="a", delay=10)
    q.put("k", jid="b", delay=20)
    clock.tick(10)
    (a,) = q.lease("w", 9)
    clock.tick(-1000)
    a.release()
    (a,) = q.lease("w", 9)
    assert (a.jid, a.complete()) == ("a", True)
    clock.tick(1010)
    assert jids(q.lease("w", 9)) == ["b"]


def test_stalled_job_runs_again_when_the_clock_goes_back(client, q, clock):
    q.put("k", jid="x")
    (held,) = q.lease("w")
    clock.tick(31)
    assert (client.job("x").state, q.counts().stalled) == ("stalled", 1)
    clock.tick(-2)
    assert (client.job("x").state, q.counts().running) == ("running", 1)
    assert held.complete()


def test_order_and_tokens_do_not_go_by_the_clock(client, q, clock):
    tokens = []
    for jid in "abc":
        q.put("k", jid=jid)
        clock.tick(-100)
    for jid in "abc":
        (held,) = q.lease("w")
        assert held.jid == jid
        tokens.append(held.token)
        clock.tick(-100)
    assert tokens == sorted(set(tokens))


def test_the_front_keeps_the_order_of_the_first_leases(client, q, clock):
    for jid in "ab":
        q.put("k", jid=jid)
    a, b = q.lease("w")[0], q.lease("w")[0]
    b.release()
    clock.tick(-500)
    a.release()
    assert jids(q.lease("w", 2)) == ["a", "b"]


def test_no_time_is_ever_counted_as_negative(client, q, clock):
    q.put("k", jid="x")
    clock.tick(-50)
    (held,) = q.lease("w")
    clock.tick(-50)
    held.complete()
    stats = q.stats()
    assert (stats.wait.mean, stats.run.mean, stats.wait.histogram[0], stats.run.histogram[0]) == (0, 0, 1, 1)


def test_recurring_jobs_come_neither_early_nor_twice(client, q, clock):
    q.recur("k", every=60, jid="r")
    assert q.lease("w")[0].complete()
    clock.tick(-600)
    assert q.lease("w", 9) == []
    clock.tick(659)
    assert q.lease("w", 9) == []
    clock.tick(1)
    assert jids(q.lease("w", 9)) == ["r-2"]


def test_a_dependent_keeps_its_stored_time(client, q, clock):
    q.put("k", jid="a")
    q.put("k", jid="b", depends=["a"], delay=60)
    due = client.job("b").due_unix
    clock.tick(-500)
    q.lease("w")[0].complete()
    assert (client.job("b").state, client.job("b").due_unix) == ("scheduled", due)


def test_nothing_that_is_kept_goes_before_its_time(client, q, clock):
    client.config.set("jobs-history", 60)
    client.config.set("max-worker-age", 60)
    q.put("k", jid="x")
    q.lease("w")[0].complete()
    clock.tick(-10_000)
    client.sweep()
    assert (client.job("x").state, [worker.name for worker in client.workers()]) == ("complete", ["w"])
    clock.tick(10_060)
    client.sweep()
    assert (client.job("x"), client.workers()) == (None, [])


def test_events_and_lines_have_the_time_of_their_call(client, q, clock):
    q.put("k", jid="x")
    with client.events(jid="x") as events:
        clock.tick(-77)
        q.lease("w")
        client.log("x", "line")
        assert events.get(5).when_unix == clock.now
    assert client.job("x").log[0]["when"] == clock.now


# Leases of no time, or less.


@pytest.mark.parametrize("ttl", [0, -0.001, -3, -4.999])
def test_zero_lease_is_stalled_at_once_and_held_for_the_grace(client, q, clock, ttl):
    q.put("k", jid="x")
    (held,) = q.lease("w", ttl=ttl)
    assert held.expires_unix == pytest.approx(clock.now + ttl)
    assert (client.job("x").state, q.counts().stalled, client.worker("w").stalled) == ("stalled", 1, ["x"])
    assert q.lease("v") == []
    assert held.renew() == clock.now + 30
    assert client.job("x").state == "running"


@pytest.mark.parametrize("ttl", [-5, -100, -1e6])
def test_lease_that_ended_before_the_grace_can_be_taken(client, q, ttl):
    q.put("k", jid="x", max_deaths=5)
    (held,) = q.lease("w", ttl=ttl)
    assert [(lease.jid, lease.deaths) for lease in q.lease("v")] == [("x", 1)]
    assert held.complete() is False


@pytest.mark.parametrize("ttl", [0, -100])
def test_late_complete_of_such_a_lease_counts_before_a_takeover(client, q, ttl):
    q.put("k", jid="x")
    (held,) = q.lease("w", ttl=ttl)
    assert [held.complete(), held.complete()] == [True, False]


@pytest.mark.parametrize("option", ["heartbeat", "grace", "jobs-history", "failed-history", "max-worker-age"])
def test_a_configured_time_cannot_be_negative(client, keys, option):
    with pytest.raises(ValueError, match=option):
        client.config.set(option, -1)
    assert keys() == set()
