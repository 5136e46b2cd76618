"""Counts and ages of leasable jobs: against a model, and in bounded work."""

import random

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import queue_counts


@pytest.fixture
def q(client):
    return client.queue("q")


@pytest.fixture
def depth(client):
    return lambda queue="q": calls_of(client).call(queue_counts.depths, [queue])[queue]


def test_an_empty_queue_has_no_oldest(client, depth):
    assert depth("nobody") == queue_counts.Depths(0, 0, 0, 0, 0, 0, 0, False, 0, 0, 0, None)


def test_jobs_that_wait_for_others_for_a_day_are_counted(q, clock, depth):
    q.put("k", jid="parent", delay="3d")
    q.put("k", depends=["parent"])
    clock.tick(86_000)
    q.put("k", depends=["parent"])
    assert (depth().depends, depth().old_depends) == (2, 0)
    clock.tick(500)
    assert (depth().depends, depth().old_depends) == (2, 1)


def test_oldest_counts_in_every_priority(q, clock, depth):
    q.put("k", jid="patient", priority=10)
    clock.tick(5)
    q.put("k", jid="urgent", priority=-10)
    clock.tick(2)
    assert depth().oldest_s == 7
    assert q.lease("w")[0].jid == "urgent"
    assert depth().oldest_s == 7
    assert q.lease("w")[0].jid == "patient"
    assert depth().oldest_s is None


def test_oldest_may_lie_in_any_lane_that_is_not_paused(q, clock, depth):
    q.put("k", lane="slow")
    clock.tick(5)
    q.put("k", lane="quick")
    q.put("k")
    clock.tick(2)
    assert (depth().oldest_s, depth().ready) == (7, 3)
    q.lane("slow").pause()
    assert (depth().oldest_s, depth().ready, depth().waiting) == (2, 2, 3)
    q.lane("slow").unpause()
    assert (depth().oldest_s, depth().ready) == (7, 3)


def test_delayed_job_has_its_age_from_its_due_time(q, client, clock, depth):
    q.put("k", jid="a", delay=100)
    q.put("k", jid="b", delay=100)
    clock.tick(99)
    assert (depth().oldest_s, depth().ready) == (None, 0)
    clock.tick(2)
    assert (depth().oldest_s, depth().ready) == (1, 2)
    assert q.lease("w")[0].jid == "a"  # and the other one lies in its line by now
    clock.tick(3)
    assert (depth().oldest_s, client.job("b").state) == (4, "waiting")
    (b,) = q.lease("w")
    clock.tick(10)
    b.retry(delay=0)
    clock.tick(1)
    assert depth().oldest_s == 1


def test_returned_job_has_waited_since_its_return(q, clock, depth):
    q.put("k")
    q.put("k")
    first, second = q.lease("w", 2)
    clock.tick(10)
    second.release()
    clock.tick(5)
    first.release()
    clock.tick(1)
    assert (depth().oldest_s, depth().front, depth().waiting) == (6, 2, 2)


def test_held_back_jobs_are_not_ready(q, client, server, namespace, depth):
    q.put_many([{"klass": "k"}] * 5)
    server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k"}')
    assert (depth().waiting, depth().entries, depth().ready) == (6, 1, 6)
    client.config.set("max-concurrency-q", 2)
    assert depth().ready == 2
    q.lease("w")
    assert depth().ready == 1
    q.pause()
    found = depth()
    assert (found.ready, found.waiting, found.paused) == (0, 5, True)
    assert found.oldest_s is not None  # so that a forgotten pause is seen


def test_clock_going_back_gives_no_negative_age(q, clock, depth):
    q.put("k")
    clock.tick(-50)
    assert depth().oldest_s == 0


def test_all_queues_are_told_with_their_oldest(client, clock):
    client.queue("a").put("k")
    clock.tick(3)
    client.queue("b").put("k")
    clock.tick(1)
    assert {name: each.oldest_s for name, each in client.queues().items()} == {"a": 4, "b": 1}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
def test_depths_agree_with_a_model_over_random_calls(client, q, clock, depth, seed):
    chance = random.Random(seed)
    lanes = [None, *(f"lane{n}" for n in range(8))]
    since, held, put = {}, [], 0  # jid -> from when on it can be leased
    for _ in range(150):
        clock.tick(chance.choice((0, 0.5, 1, 7)))
        match chance.choice(("put", "put", "put", "lease", "release", "retry", "prioritise")):
            case "put":
                delay, put = chance.choice((0, 0, 0, 2, 20)), put + 1
                q.put("k", jid=f"j{put}", priority=chance.randrange(12), lane=chance.choice(lanes), delay=delay)
                since[f"j{put}"] = clock.now + delay
            case "lease":
                found = q.lease("w", chance.choice((1, 3, 10)), ttl=100_000)
                assert all(since.pop(lease.jid) <= clock.now for lease in found)
                held += found
            case "release" if held:
                lease = held.pop(chance.randrange(len(held)))
                lease.release()
                since[lease.jid] = clock.now
            case "retry" if held:
                lease, delay = held.pop(chance.randrange(len(held))), chance.choice((0, 3))
                if lease.retry(delay=delay) >= 0:
                    since[lease.jid] = clock.now + delay
            case "prioritise" if since:
                client.job(chance.choice(list(since))).set_priority(chance.randrange(12))
        leasable = [at for at in since.values() if at <= clock.now]
        found = depth()
        assert found.ready == found.waiting == len(leasable)
        assert found.scheduled == len(since) - len(leasable)
        expected = clock.now - min(leasable) if leasable else None
        assert found.oldest_s == (expected if expected is None else pytest.approx(expected, abs=0.002))


def test_depths_cost_no_more_the_more_there_is(client, server, measured):
    def calls(queue):
        before = server.redis.info("commandstats")
        calls_of(client).call(queue_counts.depths, [queue])
        after = server.redis.info("commandstats")
        inside = ("cmdstat_hmget", "cmdstat_zrange", "cmdstat_zrangebyscore")
        return sum(after.get(name, {"calls": 0})["calls"] - before.get(name, {"calls": 0})["calls"] for name in inside)

    wide, deep = client.queue("wide"), client.queue("deep")
    wide.put_many([{"klass": "k", "lane": f"lane{n}", "priority": p} for n in range(300) for p in range(3)])
    deep.put_many([{"klass": "k", "priority": p} for p in range(1000)])
    released = deep.lease("w", 500)
    for lease in released:
        lease.release()
    measured(
        f"calls of Redis in one look: 300 lanes of 3 {calls('wide')}, 1,000 priorities and 500 in front {calls('deep')}"
    )
    assert calls("wide") < 100 * 7 + 20
    assert calls("deep") < 100 + 2 * 16 + 20
    for n in range(60):
        client.queue(f"q{n}").put_many([{"klass": "k", "lane": f"l{m}", "priority": m} for m in range(99)])
    before = server.calls("hmget")
    found = client.queues()
    assert server.calls("hmget") - before < 5000 + 100
    assert all(each.oldest_s is not None for each in found.values())  # the last ones, too
