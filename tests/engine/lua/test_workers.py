"""Workers as queries show them: presence, leases, and loss."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, settling, workers
from supervisor.engine.model.errors import LeaseholdError, LeaseLost
from supervisor.engine.model.outcomes import Released


@pytest.fixture
def q(client):
    queue = client.queue("q")
    queue.put_many({"klass": "k", "jid": jid} for jid in "abcdef")
    return queue


def names(client):
    return [worker.name for worker in client.workers()]


# Jobs that may have been started just before their worker was lost.


def was_lost(client, clock):
    """Lease all that waits, as a worker that goes on, and name the jobs that another one may have started."""
    leases = calls_of(client).run(leasing.lease("other", ["q"], 6, starting=0, now=clock.now)).leases
    return [lease.jid for lease in leases if lease.was_lost]


def lease_two(client, clock, starting=0):
    return calls_of(client).run(leasing.lease("w", ["q"], 2, ttl_s=5, starting=starting, now=clock.now)).leases


def test_unstarted_jobs_of_a_worker_that_was_taken_for_lost_are_marked(client, q, clock):
    lease_two(client, clock)
    clock.tick(60)
    assert was_lost(client, clock) == ["a", "b"]


def test_unstarted_jobs_of_a_worker_that_an_operator_forgets_are_marked(client, q, clock):
    lease_two(client, clock, starting=1)
    client.deregister("w")
    assert was_lost(client, clock) == ["b"]


def test_jobs_that_a_worker_itself_hands_back_are_not_marked(client, q, clock):
    first, _second = lease_two(client, clock)
    calls_of(client).call(settling.settle, "w", [Released(first, started=False)])
    calls_of(client).call(leasing.resume, "w", 1, [])
    assert was_lost(client, clock) == []


def test_put_of_a_job_takes_the_mark_away(client, q, clock):
    lease_two(client, clock)
    clock.tick(60)
    client.sweep()
    q.put("k", jid="a")
    assert was_lost(client, clock) == ["b"]


# Presence.


def test_the_most_recently_active_comes_first(client, q, clock):
    for name in ("v", "w", "u"):
        clock.tick(1)
        q.lease(name)
    assert names(client) == ["u", "w", "v"]
    clock.tick(1)
    q.lease("v", 0)
    assert names(client) == ["v", "u", "w"]
    assert client.workers()[0].seen_unix == clock.now


def test_worker_that_only_asks_or_renews_is_listed(client, clock):
    client.queue("q").lease("idle")
    assert names(client) == ["idle"]
    client.queue("q").put("k")
    (held,) = client.queue("q").lease("busy")
    clock.tick(20)
    held.renew()
    assert [(worker.name, worker.seen_unix) for worker in client.workers()] == [
        ("busy", clock.now), ("idle", clock.now - 20),
    ]  # fmt: skip


def test_workers_are_shown_with_running_and_stalled_leases(client, q, clock):
    q.lease("w", 2, ttl=10)
    q.lease("w", 1, ttl=100)
    clock.tick(14)
    q.lease("v", 1)
    assert [(worker.name, worker.running, worker.stalled) for worker in client.workers()] == [
        ("v", 1, 0), ("w", 1, 2),
    ]  # fmt: skip
    held = client.worker("w")
    assert (held.running, held.stalled) == (["c"], ["a", "b"])


def test_worker_holds_its_open_leases(client, q):
    a, b, c = q.lease("w", 3)
    a.complete()
    b.release()
    assert client.worker("w").running == ["c"]
    c.complete(next="other")
    assert (client.worker("w").running, client.worker("w").stalled) == ([], [])


def test_unknown_worker_holds_nothing(client):
    held = client.worker("nobody")
    assert (held.seen_unix, held.running, held.stalled) == (None, [], [])


def test_worker_unseen_for_max_worker_age_is_forgotten(client, q, clock, keys):
    client.config.set("max-worker-age", 100)
    q.lease("w")[0].complete()
    clock.tick(60)
    q.lease("v")[0].complete()
    clock.tick(40)
    assert names(client) == ["v"]
    client.sweep()
    clock.tick(60)
    client.sweep()
    assert (names(client), {"workers-seen", "held:w", "held:v"} & keys()) == ([], set())


def test_worker_whose_leases_run_is_not_forgotten(client, q, clock, server, namespace):
    """An upgrade finds its leases by the index of workers."""
    client.config.set("max-worker-age", 20)
    q.lease("w", ttl=100)
    clock.tick(60)
    client.sweep()
    seen = f"{{{namespace}}}:workers-seen"
    assert (client.worker("w").running, server.redis.zcard(seen)) == (["a"], 1)
    clock.tick(60)
    client.sweep()  # takes the job
    client.sweep()
    assert (client.job("a").state, server.redis.zcard(seen)) == ("waiting", 0)


def test_forgotten_worker_has_lost_its_jobs_to_others(client, q, clock):
    client.config.set("max-worker-age", 20)
    q.lease("w")
    clock.tick(36)
    client.sweep()
    assert (names(client), client.worker("w").running, client.job("a").state) == ([], [], "waiting")


# Sent away.


def test_jobs_of_a_deregistered_worker_go_to_the_front_uncounted(client, q):
    leases = q.lease("w", 2)
    q.put("k", jid="urgent", priority=-9)
    assert client.deregister("w") == 2
    assert [job.jid for job in q.peek(3)] == ["a", "b", "urgent"]
    job = client.job("a")
    assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
    assert (names(client), client.worker("w").seen_unix) == ([], None)
    assert [lease.complete() for lease in leases] == [False, False]
    with pytest.raises(LeaseLost):
        leases[0].renew()


def test_unknown_worker_is_not_deregistered(client, q):
    q.lease("w")
    assert [client.deregister("w"), client.deregister("w"), client.deregister("stranger")] == [1, 0, 0]


def test_only_a_worker_deregistered_by_others_gets_a_hint(client, server, namespace):
    for own in (False, True):
        calls_of(client).call(settling.settle, "w", [], number=1)
        calls_of(client).call(workers.deregister, "w", own=own)
        assert server.redis.lrange(f"{{{namespace}}}:mail:w", 0, -1) == ([] if own else [b"lost"])
        server.redis.delete(f"{{{namespace}}}:mail:w")


def test_a_worker_may_come_back_under_its_name(client, q):
    q.lease("w")
    client.deregister("w")
    assert [lease.jid for lease in q.lease("w")] == ["a"]
    assert names(client) == ["w"]


def test_worker_of_a_taken_job_gets_a_hint(client, q, server, namespace):
    mail = f"{{{namespace}}}:mail:w"
    for take in (
        lambda: client.job("a").release(), lambda: client.job("a").fail("g", "m"), lambda: q.put("k", jid="a"),
        lambda: client.job("a").move("q"), lambda: client.cancel("a"),
    ):  # fmt: skip
        q.put("k", jid="a")
        calls_of(client).call(settling.settle, "w", [], number=1)
        leases = calls_of(client).call(leasing.lease, "w", ["q"], 9, number=2).leases
        server.redis.delete(mail)
        take()
        assert server.redis.lrange(mail, 0, -1) == [b"lost %d" % lease.token for lease in leases if lease.jid == "a"]
        client.deregister("w")


@pytest.mark.parametrize("at_once", [True, False])
def test_hints_of_several_taken_jobs_become_one_of_all(client, server, namespace, at_once):
    jids = client.queue("q").put_many({"klass": "k"} for _ in range(4))
    calls_of(client).call(settling.settle, "w", [], number=1)
    first, *_ = calls_of(client).call(leasing.lease, "w", ["q"], 9, number=2).leases
    for taken in [jids] if at_once else [[jid] for jid in jids]:
        client.cancel(*taken)
    assert server.redis.lrange(f"{{{namespace}}}:mail:w", 0, -1) == [b"lost %d" % first.token, b"lost"]


# Queues that are needed no more.


def test_empty_queue_is_forgotten_until_its_next_job(client):
    q = client.queue("q")
    q.put("k", jid="x")
    q.lease("w")[0].complete()
    assert [q.forget(), q.forget(), client.queues()] == [True, False, {}]
    assert client.job("x").state == "complete"
    q.put("k")
    assert list(client.queues()) == ["q"]


@pytest.mark.parametrize(
    "fill",
    [
        lambda q: q.put("k"), lambda q: q.put("k", delay=60), lambda q: q.put("k") and q.lease("w"),
        lambda q: q.put("k") and q.lease("w")[0].release(), lambda q: q.recur("k", every=60),
    ],
)  # fmt: skip
def test_a_queue_in_which_something_lies_is_not_forgotten(client, server, namespace, fill):
    fill(client.queue("q"))
    before = server.dump(namespace)
    with pytest.raises(LeaseholdError, match="queue q is not empty"):
        client.queue("q").forget()
    assert server.dump(namespace) == before
