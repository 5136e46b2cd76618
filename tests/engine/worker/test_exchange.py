"""Numbered exchanges, resume, mail and wake-up keys: the calls that the master's exchanges need."""

import pytest

from supervisor.engine.commands import leasing, mailbox, settling
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.outcomes import Completed, Died, Released, Retried, Unknown
from tests.layouts import mark


@pytest.fixture
def run(client):
    return client._store.run


@pytest.fixture
def woken(server, namespace):
    """Return whether a queue's wake-up key has a token, and take it."""

    def take(queue="q"):
        tokens = server.redis.llen(f"{{{namespace}}}:bell:{queue}")
        server.redis.delete(f"{{{namespace}}}:bell:{queue}")
        assert tokens <= 1
        return tokens == 1

    return take


def put(client, *jids, queue="q", **options):
    for jid in jids:
        client.queue(queue).put("k", jid=jid, **options)


# Numbers.


def test_repeated_settle_changes_nothing_and_gets_the_same_reply(client, run, server, namespace):
    run(leasing.resume("w", 1, []))
    put(client, *"abcdef")
    held = client.queue("q").lease("w", 5)
    outcomes = [Completed(held[0]), Retried(held[1], message="m"), Released(held[2]), Died(held[3], "oom")]
    settle = settling.settle("w", [*outcomes, Unknown(held[4], 1)], number=7, now=1_000_000.0)
    first = run(settle)
    before = server.dump(namespace)
    assert run(settle) == first == [True, 4, True, "waiting", "scheduled"]
    assert server.dump(namespace) == before


def test_an_empty_settle_takes_its_number_too(run):
    assert run(settling.settle("w", [], number=3)) == []
    assert run(settling.settle("w", [], number=3)) == []


def test_a_settle_below_the_last_number_is_stale(client, run):
    run(leasing.resume("w", 1, []))
    put(client, "a", "b")
    a, b = client.queue("q").lease("w", 2)
    assert run(settling.settle("w", [Completed(a)], number=7)) == [True]
    assert run(settling.settle("w", [Completed(b)], number=6)) == [False]
    assert run(settling.settle("w", [Retried(b)], number=6)) == [None]
    assert client.job("b").state == "running"
    assert run(settling.settle("w", [Completed(b)], number=8)) == [True]


def test_numbers_of_one_worker_mean_nothing_to_another(client, run):
    put(client, "a")
    run(settling.settle("v", [], number=100))
    (held,) = client.queue("q").lease("w")
    assert run(settling.settle("w", [Completed(held)], number=1)) == [True]


def test_a_lease_below_the_last_number_gives_nothing(client, run):
    run(leasing.resume("w", 1, []))
    put(client, "a")
    run(settling.settle("w", [], number=5))
    assert run(leasing.lease("w", ["q"], 1, number=4)).leases == []
    assert client.job("a").state == "waiting"
    assert len(run(leasing.lease("w", ["q"], 1, number=5)).leases) == 1


def test_the_record_of_a_worker_ends_by_itself(client, run, server, namespace, config):
    config(**{"max-worker-age": 50})
    run(leasing.resume("w", 1, []))
    run(settling.settle("w", [], number=5))
    assert 49_000 < server.redis.pttl(f"{{{namespace}}}:worker:w") <= 50_000


def test_workers_not_seen_for_long_are_forgotten(client, clock, server, namespace):
    client.queue("q").lease("old")
    clock.tick(86_401)
    client.queue("q").lease("new")
    client.sweep()
    assert server.redis.zrange(f"{{{namespace}}}:workers-seen", 0, -1) == [b"new"]
    assert [worker.name for worker in client.workers()] == ["new"]


def test_a_numbered_call_of_a_worker_that_was_deregistered_is_refused(client, run):
    put(client, "a")
    run(leasing.resume("w", 1, []))
    client.deregister("w")
    for call in (leasing.lease("w", ["q"], 1, number=2), leasing.resume("w", 2, [])):
        with pytest.raises(StoreUnavailable, match="DEREGISTERED"):
            run(call)
    assert client.job("a").state == "waiting"


# Resume.


def test_resume_renews_known_leases_and_hands_back_others(client, run, clock):
    put(client, *"abcd")
    known = client.queue("q").lease("w", 2)
    run(leasing.lease("w", ["q"], 2, now=clock.now))  # its answer never came
    put(client, "a")
    clock.tick(10)
    resumed = run(leasing.resume("w", 1, [(held.jid, held.token) for held in known], now=clock.now))
    assert (resumed.expires, resumed.handed_back) == ([0.0, clock.now + 30], 2)
    jobs = client.jobs(*"abcd")
    assert [job.state for job in jobs] == ["waiting", "running", "waiting", "waiting"]
    assert [(job.deaths, job.interruptions, job.failures, job.started) for job in jobs[2:]] == [(0, 0, 0, False)] * 2
    assert [held.jid for held in client.queue("q").lease("v", 9)] == ["c", "d", "a"]


def test_after_a_resume_what_was_sent_before_is_refused(client, run):
    run(leasing.resume("w", 1, []))
    put(client, "a", "b")
    (held,) = client.queue("q").lease("w")
    run(leasing.resume("w", 5, [(held.jid, held.token)]))
    assert run(leasing.lease("w", ["q"], 1, number=4)).leases == []
    assert run(settling.settle("w", [Completed(held)], number=4)) == [False]
    with pytest.raises(StoreUnavailable, match="SUPERSEDED"):
        run(leasing.resume("w", 5, []))
    assert client.job("a").state == "running"
    assert run(settling.settle("w", [Completed(held)], number=6)) == [True]


def test_a_settle_is_still_answered_as_before_after_a_resume(client, run):
    run(leasing.resume("w", 1, []))
    put(client, "a")
    (held,) = client.queue("q").lease("w")
    settle = settling.settle("w", [Completed(held)], number=4)
    assert run(settle) == [True]
    run(leasing.resume("w", 5, []))
    assert run(settle) == [True]


def test_a_resume_knows_a_job_by_its_token_not_by_its_jid(client, run, clock):
    put(client, "a")
    old = client.queue("q").lease("w")[0]
    clock.tick(35)
    client.queue("q").lease("w")
    resumed = run(leasing.resume("w", 1, [(old.jid, old.token)], now=clock.now))
    assert (resumed.expires, resumed.handed_back) == ([0.0], 1)


def test_a_resume_of_thousands_works(client, run, clock):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(5_000))
    held = [one for _ in range(5) for one in q.lease("w", 1_000)]
    resumed = run(leasing.resume("w", 1, [(one.jid, one.token) for one in held[:2_500]], now=clock.now))
    assert (len(resumed.expires), resumed.handed_back) == (2_500, 2_500)


# Mail.


def test_a_mailbox_keeps_the_newest_hundred_for_an_hour(run, server, namespace):
    for i in range(105):
        depth = run(mailbox.tell("w", f"message {i}"))
    mail = f"{{{namespace}}}:mail:w"
    assert (depth, server.redis.llen(mail), server.redis.lindex(mail, 0)) == (100, 100, b"message 5")
    assert 3_590_000 < server.redis.pttl(mail) <= 3_600_000


# Bells.


def test_put_sets_one_wakeup_token(client, woken):
    put(client, "a", "b")
    assert woken()


def test_put_wakes_only_its_queue(client, woken):
    put(client, "a")
    assert not woken("other")


def test_only_the_earliest_scheduled_job_wakes(client, woken):
    put(client, "a", delay=100)
    assert woken()
    put(client, "b", delay=200)
    assert not woken()
    put(client, "c", delay=50)
    assert woken()


def test_every_return_to_the_queue_wakes_a_worker(client, woken, clock):
    q = client.queue("q")
    put(client, "a")
    for give_back in ("release", "retry"):
        held = q.lease("w")[0]
        woken()
        getattr(held, give_back)()
        assert woken(), give_back
    held = q.lease("w")[0]
    woken()
    held.died("oom")
    assert woken()
    held = q.lease("w")[0]
    woken()
    held.died("oom")  # a later death is scheduled, which brings a time forward
    assert woken()


def test_completing_and_failing_wake_no_worker(client, woken):
    put(client, "a", "b")
    a, b = client.queue("q").lease("w", 2)
    woken()
    a.complete()
    b.fail("g", "m")
    assert not woken()


def test_resume_deregister_and_sweep_wake_a_worker(client, run, woken, clock):
    put(client, "a")
    run(leasing.lease("w", ["q"], 1, now=clock.now))
    woken()
    run(leasing.resume("w", 1, [], now=clock.now))
    assert woken()
    client.queue("q").lease("w")
    woken()
    client.deregister("w")
    assert woken()
    client.queue("q").lease("w")
    woken()
    clock.tick(35)
    client.sweep()
    assert woken()


def test_full_lease_wakes_the_next_worker_if_jobs_are_left(client, woken):
    put(client, "a", "b")
    woken()
    client.queue("q").lease("w")
    assert woken()
    client.queue("q").lease("w")
    assert not woken()


def test_full_lease_wakes_a_worker_for_each_queue_with_jobs(client, woken, clock):
    for queue in ("one", "waiting", "scheduled", "front", "lost", "empty"):
        put(client, queue, queue=queue, delay=1 if queue == "scheduled" else 0)
    client.lease("gone", ["lost", "empty"], 2)
    client.queue("front").lease("w")[0].release()
    clock.tick(35)
    for queue in ("one", "waiting", "scheduled", "front", "lost", "empty"):
        woken(queue)
    client.jobs("empty")
    client.lease("w", ["one", "waiting", "scheduled", "front", "lost"], 1)
    assert [woken(queue) for queue in ("one", "waiting", "scheduled", "front", "lost")] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert not woken("empty")


def test_lease_of_no_jobs_passes_the_wakeup_on(client, woken):
    put(client, "a")
    woken()
    assert client.queue("q").lease("w", 0) == []
    assert woken()
    assert client.job("a").state == "waiting"


def test_unfilled_lease_clears_needless_wakeup_keys(client, woken):
    put(client, "a")
    client.lease("w", ["other", "q"], 2)
    assert not woken()


def test_lost_jobs_wake_no_worker_without_takeover(client, run, woken, clock):
    put(client, "a", "b")
    client.queue("q").lease("w", 1)
    woken()
    clock.tick(35)
    run(leasing.lease("v", ["q"], 1, takeover=False, now=clock.now))
    assert not woken()


def test_reply_cut_at_its_size_wakes_the_next_worker(client, woken):
    q = client.queue("q")
    for _ in range(2):
        q.put("k", b"x" * 800_000)
    woken()
    assert len(q.lease("w", 5)) == 1
    assert woken()


def test_tokens_grow_after_the_server_has_lost_writes(client, run, server, namespace):
    """The counter is set back, as a failover to a replica that lags behind does."""
    run(leasing.resume("w", 1, []))
    put(client, *"abcd")
    seen = [lease.token for lease in client.queue("q").lease("w", 3)]
    server.redis.set(f"{{{namespace}}}:token", 1)
    resumed = run(leasing.resume("w", 2, [], highest=seen[-1]))
    assert resumed.handed_back == 3
    again = [lease.token for lease in client.queue("q").lease("w", 4)]
    assert min(again) > max(seen)


def test_a_resume_never_sets_the_token_counter_back(client, run, server, namespace):
    put(client, *"abc")
    seen = [lease.token for lease in client.queue("q").lease("w", 3)]
    run(leasing.resume("v", 1, [], highest=1))
    assert int(server.redis.get(f"{{{namespace}}}:token")) == seen[-1]


@pytest.mark.parametrize("damage", ["no number", "-3"])
def test_a_resume_leaves_a_damaged_counter_to_check(run, server, namespace, damage):
    mark(server.redis, f"{{{namespace}}}:")
    server.redis.set(f"{{{namespace}}}:token", damage)
    run(leasing.resume("w", 1, [], highest=7))
    assert server.redis.get(f"{{{namespace}}}:token") == damage.encode()
    server.redis.delete(f"{{{namespace}}}:token")
