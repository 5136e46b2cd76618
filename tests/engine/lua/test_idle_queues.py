"""Idle queues are forgotten after max-worker-age, and the number of queues is bounded."""

import threading

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import maintenance
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.outcomes import MOST_QUEUES, TOO_MANY_QUEUES, Completed
from tests.layouts import mark

DAY = 86_400


def run_one(client, queue="q"):
    client.queue(queue).put("k")
    client.settle([Completed(lease) for lease in client.queue(queue).lease("w")])


def names(server, namespace):
    return {name.decode() for name in server.redis.zrange(f"{{{namespace}}}:queues", 0, -1)}


def idle(server, namespace):
    return {name.decode() for name in server.redis.zrange(f"{{{namespace}}}:idle", 0, -1)}


def age(client, clock, seconds=DAY + 1):
    """Sweep for two rounds with this time between them."""
    client.sweep()
    clock.tick(seconds)
    client.sweep(1_000)


@pytest.fixture
def full(server, namespace):
    """Create as many queues as allowed, with q among them."""
    key, old = f"{{{namespace}}}:queues", {f"old{i}": i for i in range(MOST_QUEUES - 1)}
    server.redis.zadd(key, {**old, "q": 0})
    mark(server.redis, f"{{{namespace}}}:")


@pytest.mark.sampled(3)
def test_queues_that_completions_made_are_gone_after_a_day(client, clock, server, namespace, keys):
    for i in range(6):
        client.queue("q").put("k")
        (lease,) = client.queue("q").lease("w")
        then = [{"queue": f"made{i}-{j}", "klass": "k"} for j in range(1_000)]
        assert lease.complete(then=then)
    made = names(server, namespace) - {"q"}
    assert len(made) == 6_000
    for first in range(0, 6_000, 1_000):
        leases = client.lease("w", sorted(made)[first : first + 1_000], 1_000)
        client.settle([Completed(lease) for lease in leases])
    age(client, clock, DAY - 1)
    assert made < names(server, namespace)
    clock.tick(2)
    client.sweep(1_000)
    assert names(server, namespace) == set()
    left = {key.split(":")[0] for key in keys() if ":made" in key}  # a jid is random, and may have these letters
    assert left <= {"stats", "bins", "recent", "bell", "queue"} and not [
        key for key in keys() if key.startswith("bell:")
    ]


def test_a_queue_in_use_is_never_forgotten(client, clock, server, namespace):
    kept = {"waiting", "later", "running", "depends", "laned", "parked", "recurring", "pushed"}
    client.limit("l", running=0)
    client.queue("later").put("k", delay=9 * DAY)
    client.queue("waiting").put("k", jid="parent")
    client.queue("depends").put("k", depends=["parent"])
    client.queue("laned").put("k", lane="a")
    client.queue("parked").put("k", limit="l")
    client.queue("parked").lease("w")
    client.queue("recurring").recur("k", every=9 * DAY)
    client.queue("running").put("k")
    client.queue("running").lease("w", ttl=9 * DAY)
    run_one(client, "pushed")
    server.redis.lpush(f"{{{namespace}}}:in:pushed", b'{"klass": "k"}')
    run_one(client, "gone")
    for _ in range(3):
        age(client, clock)
    assert names(server, namespace) == kept
    assert idle(server, namespace) == set()


def test_a_queue_with_settings_is_never_forgotten(client, clock, server, namespace):
    kept = ("paused", "limited", "named", "weighted", "lane-paused")
    for name in (*kept, "gone"):
        run_one(client, name)
    client.queue("paused").pause()
    client.config.set("max-concurrency-limited", 3)
    client.config.set("klass-named", "k")
    client.queue("weighted").lane("a").weight(3)
    client.queue("lane-paused").lane("a").pause()
    for _ in range(3):
        age(client, clock)
    assert names(server, namespace) == set(kept)


def test_settings_keep_an_idle_queue(client, clock, server, namespace):
    run_one(client)
    client.sweep()
    assert idle(server, namespace) == {"q"}
    client.queue("q").pause()
    age(client, clock)
    assert (names(server, namespace), idle(server, namespace)) == ({"q"}, set())


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"tags": ["t"]}, {"delay": 1}])
def test_a_put_makes_an_idle_queue_used_again(client, clock, server, namespace, options):
    run_one(client)
    client.sweep()
    clock.tick(DAY - 1)
    client.queue("q").put("k", jid="j", **options)
    assert idle(server, namespace) == set()
    clock.tick(2)
    client.sweep()
    assert names(server, namespace) == {"q"}
    client.settle([Completed(lease) for lease in client.queue("q").lease("w")])
    client.cancel("j")
    age(client, clock, DAY - 1)
    assert names(server, namespace) == {"q"}


def test_a_queue_that_a_worker_serves_by_name_stays(client, clock, server, namespace):
    run_one(client)
    run_one(client, "other")
    client.sweep()
    for _ in range(3):
        clock.tick(DAY / 2)
        calls_of(client).run(maintenance.sweep(worker="w", queues=("q", "never put to"), now=clock.now))
    assert names(server, namespace) == {"q"}


def test_wait_for_a_forgotten_queue_ends(client, live, clock, server, namespace):
    run_one(client)
    age(client, clock)
    assert names(server, namespace) == set()
    found = []
    waiting = threading.Thread(target=lambda: found.extend(live.queue("q").lease("other", block=30)))
    waiting.start()
    while not server.redis.info("clients")["blocked_clients"]:
        pass
    live.queue("q").put("k", jid="j")
    waiting.join()
    assert [lease.jid for lease in found] == ["j"]


@pytest.mark.sampled(3)
def test_sweep_reads_idle_queues_by_the_thousand(client, full):
    first = calls_of(client).call(maintenance.sweep)
    assert first.next_offset == 200
    client.sweep(1_000)
    swept, rounds = calls_of(client).call(maintenance.sweep), 1
    while swept.next_offset:
        swept, rounds = (
            calls_of(client).call(maintenance.sweep, offset=swept.next_offset),
            rounds + 1,
        )
    assert rounds <= MOST_QUEUES / 1_000 + 1


def test_put_into_a_queue_too_many_changes_nothing(client, full, keys):
    before = keys()
    for call in (
        lambda: client.queue("new").put("k"),
        lambda: client.queue("new").put_many([{"klass": "k"}, {"klass": "k"}]),
        lambda: client.queue("new").recur("k", every=9),
    ):
        with pytest.raises(LeaseholdError, match="queue new is a new one, and there are 100000 already: put to one of"):
            call()
    assert keys() == before
    client.queue("q").put("k", jid="j")
    with pytest.raises(LeaseholdError, match="queue new is a new one"):
        client.job("j").move("new")
    assert client.job("j").queue == "q"


def test_completion_that_needs_a_queue_too_many_is_answered(client, full):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}"} for i in range(3))
    plain, following, going_on = q.lease("w", 3)
    outcomes = [
        Completed(plain),
        Completed(following, then=[{"queue": "q", "klass": "k", "jid": "a"}, {"queue": "new", "klass": "k"}]),
        Completed(going_on, next="new"),
    ]
    assert client.settle(outcomes) == [True, TOO_MANY_QUEUES, TOO_MANY_QUEUES]
    assert (client.job("a"), client.job("j1").state, client.job("j2").state) == (None, "running", "running")
    with pytest.raises(LeaseholdError, match="would make a new queue, and there are 100000 already"):
        following.complete(next="new")
    assert following.complete(next="old7") is True


def test_the_last_queue_there_may_be_is_had_once(client, full, server, namespace):
    server.redis.zrem(f"{{{namespace}}}:queues", "old0")
    client.queue("q").put_many([{"klass": "k"}, {"klass": "k"}])
    first, second = client.queue("q").lease("w", 2)
    then = [{"queue": "new", "klass": "k"}, {"queue": "new", "klass": "k"}]
    assert client.settle([Completed(first, then=then), Completed(second, next="newer")]) == [True, TOO_MANY_QUEUES]
