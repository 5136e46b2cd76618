"""The memory of cancelled jobs: time, actor and bounds."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import bulk, choices, leasing, maintenance
from supervisor.engine.commands.job_queries import Cancelled
from supervisor.engine.commands.leasing import GONE, Renewal
from supervisor.engine.commands.maintenance import CancelledUnheld

WEEK_S = 7 * 86400


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.mark.parametrize("state", ["waiting", "scheduled", "running", "failed"])
def test_a_cancelled_job_is_remembered(client, q, clock, state):
    q.put("k", jid="x", delay=60 if state == "scheduled" else 0)
    if state in ("running", "failed"):
        (held,) = q.lease("w")
        if state == "failed":
            held.fail("g", "m")
    assert client.cancelled("x") is None
    client.cancel("x", by="kim@web-1")
    cancelled_at = clock.now
    clock.tick(60)
    assert client.cancelled("x") == Cancelled("x", cancelled_at, "kim@web-1")
    assert client.cancel("x", by="robin@web-2") == []
    assert client.cancelled("x") == Cancelled("x", cancelled_at, "kim@web-1")
    assert client.check() == []


def unheard(client):
    return calls_of(client).call(maintenance.unheard)


@pytest.mark.parametrize("state", ["waiting", "scheduled", "depends", "failed"])
def test_a_cancelled_job_that_no_worker_had_is_told_to_one(client, q, state):
    q.put("parent", jid="parent")
    options = {"delay": 60 if state == "scheduled" else 0, "depends": ["parent"] if state == "depends" else []}
    q.put("k", jid="x", **options)
    if state == "failed":
        client.job("x").fail("g", "m")
    client.cancel("x", by="kim@web-1")
    assert unheard(client) == [CancelledUnheld("x", "q", "k", "kim@web-1")]
    assert unheard(client) == []


def test_a_cancelled_job_of_a_worker_is_told_to_that_one_alone(client, q):
    q.put("k", jid="x")
    q.lease("w")
    client.cancel("x")
    assert unheard(client) == []


def test_the_newest_thousand_wait_for_an_hour(client, server, namespace, q):
    q.put_many({"klass": "k", "jid": f"x-{n}"} for n in range(1_200))
    q.delete()
    assert 0 < server.redis.pttl(f"{{{namespace}}}:unheard") <= 3_600_000
    told = unheard(client)
    assert len(told) == 1_000 and {each.by for each in told} == {None} and unheard(client) == []


WAYS = {
    "client": lambda client, q: client.cancel("x", by="kim"),
    "job": lambda client, q: client.job("x").cancel(by="kim"),
    "data": lambda client, q: q.cancel({"n": 1}, by="kim"),
    "queue": lambda client, q: q.delete(by="kim"),
    "lane": lambda client, q: q.lane("l").delete(by="kim"),
    "choice": lambda client, q: calls_of(client).call(bulk.cancel, choices.Choice("q"), ["x"], by="kim"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_cancellation_has_its_actor(client, q, clock, way):
    q.put("k", {"n": 1}, jid="x", lane="l")
    with client.events() as stream:
        WAYS[way](client, q)
        told = stream.get(5)
    assert (told.name, told.jid, told.fields) == ("job.cancelled", "x", {"by": "kim"})
    assert client.cancelled("x") == Cancelled("x", clock.now, "kim")


def test_second_cancellation_replaces_the_first(client, q, clock):
    for by in ("kim", None):
        q.put("k", jid="x")
        clock.tick(1)
        client.cancel("x", by=by)
        assert client.cancelled("x") == Cancelled("x", clock.now, by)


def test_the_newest_ten_thousand_are_remembered(client, q, clock, server, namespace):
    for batch in range(12):
        jids = [f"{batch}-{i}" for i in range(1000)]
        q.put_many({"klass": "k", "jid": jid} for jid in jids)
        clock.tick(1)
        assert len(client.cancel(*jids, by="kim")) == 1000
    assert server.redis.zcard(f"{{{namespace}}}:cancelled") == 10_000
    assert server.redis.hlen(f"{{{namespace}}}:cancelled-by") == 10_000
    assert client.cancelled("1-999") is None
    assert client.cancelled("2-0").by == "kim"


def test_after_a_week_nothing_is_remembered(client, q, clock, server, namespace):
    for jid in ("a", "b"):
        q.put("k", jid=jid)
        client.cancel(jid, by="kim")
        clock.tick(WEEK_S + 1)
    assert client.cancelled("a") is None
    for key in ("cancelled", "cancelled-by"):
        assert 0 < server.redis.pttl(f"{{{namespace}}}:{key}") <= WEEK_S * 1000


def test_worker_of_a_cancelled_job_learns_the_actor(client, q):
    q.put_many({"klass": "k", "jid": jid} for jid in "abc")
    a, b, c = q.lease("w", 3)
    client.cancel("a", by="kim")
    client.cancel("c")
    renewals = calls_of(client).call(leasing.renew, "w", [Renewal(lease.jid, lease.token) for lease in (a, b, c)])
    assert [end == GONE for end in renewals] == [True, False, True]
    assert renewals.cancelled_by == {0: "kim", 2: ""}
    resumed = calls_of(client).call(leasing.resume, "w", 1, [(lease.jid, lease.token) for lease in (a, b, c)])
    assert resumed.expires == renewals and resumed.expires.cancelled_by == renewals.cancelled_by


def test_worker_of_a_job_that_redis_has_lost_learns_of_no_cancel(client, q, server, namespace):
    q.put("k", jid="x")
    [lease] = q.lease("w")
    server.redis.delete(f"{{{namespace}}}:job:x", f"{{{namespace}}}:queue:q:running", f"{{{namespace}}}:held:w")
    renewals = calls_of(client).call(leasing.renew, "w", [Renewal(lease.jid, lease.token)])
    assert (list(renewals), renewals.cancelled_by) == ([GONE], {})
