"""lease, renew and sweep: order, duration, and expired leases."""

import pytest

from supervisor.engine.commands import leasing, settings
from supervisor.engine.model.errors import LeaseLost


def put(client, *jids, queue="q", **options):
    for jid in jids:
        client.queue(queue).put("k", jid=jid, **options)


def jids(leases):
    return [lease.jid for lease in leases]


def run(client, command):
    return client._store.run(command)


# The reply of a lease.


def test_a_lease_tells_everything_about_its_job(client, clock):
    put(client, "x", priority=2, retries=3, timeout=1.5, max_deaths=7)
    lease = client.queue("q").lease("w", ttl=12)[0]
    assert (lease.jid, lease.klass, lease.queue, lease.worker, lease.data) == ("x", "k", "q", "w", None)
    assert (lease.priority, lease.retries, lease.timeout_s, lease.max_deaths, lease.remaining) == (2, 3, 1.5, 7, 3)
    assert (lease.failures, lease.deaths, lease.interruptions) == (0, 0, 0)
    assert lease.expires_unix == clock.now + 12
    job = client.job("x")
    assert (job.state, job.worker, job.token, job.started) == ("running", "w", lease.token, True)
    assert job.expires_unix == clock.now + 12


def test_lease_tells_how_long_its_job_has_waited(client, clock):
    put(client, "a", "b", priority=1)
    clock.tick(1.5)
    put(client, "c", priority=2)
    clock.tick(0.25)
    a, b, c = client.queue("q").lease("w", 3)
    assert [lease.waited_s for lease in (a, b, c)] == [1.75, 1.75, 0.25]
    clock.tick(10)
    b.retry(delay=0)
    clock.tick(3)
    a.release()
    assert {lease.jid: lease.waited_s for lease in client.queue("q").lease("w", 3)} == {"a": 0, "b": 3}
    clock.tick(-100)
    c.release()
    clock.tick(-1)
    assert client.lease("w", ["q", "other"], order="round-robin")[0].waited_s == 0


@pytest.mark.parametrize("count", [1, 5], ids=["one by one", "at once"])
def test_delay_does_not_count_as_waiting(client, clock, count):
    put(client, "now")
    (lease,) = client.queue("q").lease("w")
    put(client, "a", "b", delay=60)
    put(client, "t", delay=60, trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    lease.retry(delay=50)
    clock.tick(70)
    leases = [lease for _ in range(4) for lease in client.queue("q").lease("w", count)]
    assert {lease.jid: lease.waited_s for lease in leases} == {"now": 20, "a": 10, "b": 10, "t": 10}
    assert [lease.trace for lease in leases if lease.jid in "at"].count(None) == 1
    leases[0].retry(delay=0)
    clock.tick(3)
    assert client.queue("q").lease("w")[0].waited_s == 3


def test_a_lease_lasts_for_the_heartbeat_of_its_queue(client, clock, config):
    put(client, "a", "b")
    put(client, "c", queue="other")
    assert client.queue("q").lease("w")[0].expires_unix == clock.now + 30
    config(heartbeat=20, **{"heartbeat-other": 7.5})
    leases = client.lease("w", ["q", "other"], 2)
    assert [lease.expires_unix for lease in leases] == [clock.now + 20, clock.now + 7.5]
    timing = run(client, settings.timing(["q", "other"]))
    assert (timing.heartbeat_s, timing.grace_s) == (7.5, 5.0)


def test_tokens_only_grow_in_the_order_of_the_answer(client):
    put(client, *"abcde")
    leases = client.queue("q").lease("w", 3)
    leases[0].release()
    leases += client.queue("q").lease("v", 9)
    tokens = [lease.token for lease in leases]
    assert tokens == sorted(set(tokens))
    put(client, "a")
    assert client.queue("q").lease("w")[0].token > tokens[-1]


def test_lease_starts_only_the_first_jobs_on_request(client):
    put(client, *"abc")
    run(client, leasing.lease("w", ["q"], 3, starting=1, now=1_000_000.0))
    assert [job.started for job in client.jobs("a", "b", "c")] == [True, False, False]


def test_a_renew_can_say_that_a_job_has_started(client, clock):
    put(client, "a")
    grant = run(client, leasing.lease("w", ["q"], 1, starting=0, now=clock.now))
    entry = leasing.Renewal("a", grant.leases[0].token, started=True)
    assert run(client, leasing.renew("w", [entry], now=clock.now)) == [clock.now + 30]
    assert client.job("a").started


def test_a_lease_of_more_than_a_thousand_is_refused(client):
    with pytest.raises(ValueError, match="count"):
        client.queue("q").lease("w", 1_001)


def test_a_lease_gives_a_thousand_at_once(client):
    client.queue("q").put_many({"klass": "k"} for _ in range(1_001))
    assert len(client.queue("q").lease("w", 1_000)) == 1_000


# Order.


def test_queues_are_served_as_listed(client):
    for queue, n in (("A", 5), ("B", 2), ("C", 3)):
        put(client, *(f"{queue}{i}" for i in range(n)), queue=queue)
    got = [jid for _ in range(5) for jid in jids(client.lease("w", ["C", "B", "A"], 2))]
    assert "".join(jid[0] for jid in got) == "CCCBBAAAAA"


def test_returned_jobs_come_first_in_lease_order(client):
    put(client, *"abcde")
    q = client.queue("q")
    a, b, c = q.lease("w", 3)
    put(client, "urgent", priority=-9)
    c.release()
    a.release(started=False)
    assert jids(q.lease("v", 1)) == ["a"]
    b.release()
    assert jids(q.lease("v", 9)) == ["b", "c", "urgent", "d", "e"]


def test_job_keeps_its_turn_over_many_returns(client):
    put(client, *"abc")
    q = client.queue("q")
    a, b, _ = q.lease("w", 3)
    a.release()
    (a,) = q.lease("w")
    b.release()
    a.release()
    assert jids(q.lease("w", 2)) == ["a", "b"]


def test_a_retried_job_has_lost_its_turn(client):
    put(client, *"abc")
    q = client.queue("q")
    a, b = q.lease("w", 2)
    a.retry()
    b.release()
    assert jids(q.lease("w", 3)) == ["b", "c", "a"]


# Expiry.


def test_expired_lease_is_not_taken_over_before_the_grace_ends(client, clock):
    put(client, "a")
    q = client.queue("q")
    q.lease("w")
    clock.tick(30)
    assert (client.job("a").state, q.lease("v")) == ("stalled", [])
    clock.tick(4.999)
    assert q.lease("v") == []
    clock.tick(0.001)
    assert jids(q.lease("v")) == ["a"]


def test_the_grace_is_an_option_of_the_queue(client, clock, config):
    config(grace=100, **{"grace-q": 0})
    put(client, "a")
    client.queue("q").lease("w")
    clock.tick(30)
    assert jids(client.queue("q").lease("v")) == ["a"]


@pytest.mark.parametrize("late_s", [1, 10, 10_000])
def test_late_renew_or_complete_succeeds_before_a_takeover(client, clock, late_s):
    put(client, *"ab")
    a, b = client.queue("q").lease("w", 2)
    clock.tick(30 + late_s)
    assert a.renew() == clock.now + 30
    assert client.job("a").state == "running"
    assert b.complete() is True


def test_first_holder_can_do_nothing_after_a_takeover(client, clock):
    put(client, "a")
    q = client.queue("q")
    old = q.lease("w")[0]
    clock.tick(35)
    new = q.lease("v")[0]
    assert new.token > old.token
    assert (old.complete(), old.fail("g", "m"), old.release()) == (False, False, False)
    for refused in (old.renew, old.retry, lambda: old.died("timeout")):
        with pytest.raises(LeaseLost):
            refused()
    assert client.job("a").token == new.token
    assert new.complete() is True


def test_worker_that_leases_a_job_again_needs_the_new_token(client, clock):
    put(client, "a")
    q = client.queue("q")
    old = q.lease("w")[0]
    clock.tick(35)
    new = q.lease("w")[0]
    assert old.complete() is False
    assert new.complete() is True


def test_another_worker_cannot_use_a_right_token(client):
    put(client, "a")
    lease = client.queue("q").lease("w")[0]
    lease.worker = "v"
    assert lease.complete() is False


def test_a_lease_without_takeover_leaves_lost_workers_jobs_alone(client, clock):
    put(client, *"ab")
    client.queue("q").lease("w")
    clock.tick(100)
    grant = run(client, leasing.lease("v", ["q"], 5, takeover=False, now=clock.now))
    assert jids(grant.leases) == ["b"]
    assert grant.next_at_unix == clock.now + 5  # a grace later it may


def test_lost_job_counts_a_death_only_after_its_start(client, clock):
    put(client, *"ab")
    run(client, leasing.lease("w", ["q"], 2, starting=1, now=clock.now))
    clock.tick(35)
    leases = client.queue("q").lease("v", 2)
    assert [(lease.jid, lease.deaths, lease.interruptions) for lease in leases] == [("a", 1, 0), ("b", 0, 0)]
    failure = client.job("a").failure
    assert (failure["group"], failure["worker"], failure["when"]) == ("died:lost", "w", clock.now)
    assert client.job("b").failure is None


def test_jobs_lost_too_often_wait_then_fail(client, clock):
    put(client, "a")
    q = client.queue("q")
    q.lease("w")
    clock.tick(35)
    q.lease("w")
    clock.tick(35)
    assert q.lease("w") == []
    assert (client.job("a").state, client.job("a").due_unix) == ("scheduled", clock.now + 1)
    clock.tick(1)
    assert jids(q.lease("w")) == ["a"]
    clock.tick(35)
    assert q.lease("w") == []
    assert client.failed() == {"died:lost": 1}


def test_lost_and_returned_jobs_merge_by_turn(client, clock):
    put(client, *"abcdef")
    q = client.queue("q")
    held = {lease.jid: lease for lease in q.lease("w", 5)}
    held["b"].release()
    held["d"].release()
    clock.tick(35)
    assert jids(q.lease("v", 2)) == ["a", "b"]
    assert jids(q.lease("v", 9)) == ["c", "d", "e", "f"]


def test_delayed_death_returns_to_the_front_by_turn(client, clock):
    put(client, *"abc")
    q = client.queue("q")
    for _ in range(2):
        q.lease("w")[0].died("SIGKILL")
    b = q.lease("w")[0]
    b.release()
    clock.tick(1)
    assert jids(q.lease("w", 3)) == ["a", "b", "c"]


def test_lease_reads_at_most_its_count_and_sixteen(client, clock):
    q = client.queue("q")
    q.put_many({"klass": "k", "max_deaths": 1} for _ in range(40))
    q.lease("w", 40)
    clock.tick(35)
    grant = run(client, leasing.lease("v", ["q"], 1, now=clock.now))
    assert (grant.leases, client.failed()) == ([], {"died:lost": 17})
    assert grant.next_at_unix == clock.now  # there are more to look at


def test_delayed_death_beside_a_due_job_sets_the_next_time(client, clock, server, namespace):
    q = client.queue("q")
    put(client, "a")
    q.lease("w")[0].died("oom")
    q.lease("w")
    put(client, "due", delay=30)
    clock.tick(35)
    server.redis.delete(f"{{{namespace}}}:bell:q")
    grant = run(client, leasing.lease("v", ["q"], 5, now=clock.now))
    assert (jids(grant.leases), grant.next_at_unix) == (["due"], clock.now + 1)
    assert server.redis.llen(f"{{{namespace}}}:bell:q") == 1


def test_a_sweep_takes_lost_workers_jobs_without_leasing_them(client, clock):
    put(client, *"abc")
    put(client, "d", queue="other", max_deaths=1)
    client.lease("w", ["q", "other"], 4)
    assert client.sweep() == 0
    clock.tick(35)
    assert client.sweep(2) == 2
    assert client.sweep() == 2
    assert client.sweep() == 0
    assert client.failed() == {"died:lost": 1}
    assert jids(client.queue("q").lease("v", 9)) == ["a", "b", "c"]


def test_the_clock_may_go_backwards(client, clock):
    put(client, "a")
    lease = client.queue("q").lease("w")[0]
    clock.tick(-500)
    assert client.queue("q").lease("v") == []
    assert lease.renew() == clock.now + 30
    clock.tick(35)
    assert jids(client.queue("q").lease("v")) == ["a"]


# The time of the next jobs in the reply.


def test_an_empty_lease_knows_when_the_next_job_comes(client, clock):
    def next_at():
        return run(client, leasing.lease("v", ["q", "p"], 1, now=clock.now)).next_at_unix

    assert next_at() is None
    put(client, "late", delay=100)
    assert next_at() == clock.now + 100
    put(client, "sooner", delay=50, queue="p")
    assert next_at() == clock.now + 50
    put(client, "x")
    client.queue("q").lease("w")
    assert next_at() == clock.now + 35


def test_full_lease_returns_no_next_time(client, clock):
    put(client, "a", "b")
    put(client, "late", delay=100)
    assert run(client, leasing.lease("w", ["q"], 1, now=clock.now)).next_at_unix is None


def test_a_grant_says_its_own_time(client, live, clock):
    assert run(client, leasing.lease("w", ["q"], 1, now=clock.now)).now_unix == clock.now
    assert run(live, leasing.lease("w", ["q"], 1)).now_unix > clock.now


# Faults that must not stop a lease.


def test_ids_without_a_record_are_moved_aside(client, server, namespace, clock):
    put(client, *(f"ghost-{i}" for i in range(5)), "real")
    put(client, "due", delay=1)
    held = client.queue("q").lease("w", 2)
    held[0].release()
    for i in range(5):
        server.redis.delete(f"{{{namespace}}}:job:ghost-{i}", f"{{{namespace}}}:data:ghost-{i}")
    server.redis.delete(f"{{{namespace}}}:job:due", f"{{{namespace}}}:data:due")
    assert jids(client.queue("q").lease("v", 1)) == ["real"]
    clock.tick(60)
    assert jids(client.queue("q").lease("v", 1)) == ["real"]
    ghosts = {*(f"ghost-{i}" for i in range(5)), "due"}
    assert {jid.decode() for jid in server.redis.zrange(f"{{{namespace}}}:phantoms", 0, -1)} == ghosts
    server.redis.delete(f"{{{namespace}}}:held:w")  # ghost-1 was leased when it vanished


def test_id_in_a_wrong_place_is_not_leased_twice(client, server, namespace):
    put(client, "a")
    client.queue("q").lease("w")
    server.redis.zadd(f"{{{namespace}}}:queue:q:front", {"a": 1})
    assert client.queue("q").lease("v") == []
    assert client.job("a").worker == "w"


# Size.


def test_reply_has_one_job_or_at_most_a_mebibyte_of_payload(client):
    q = client.queue("q")
    for name, size in [("a", 400_000), ("b", 400_000), ("c", 400_000), ("d", 3_000_000), ("e", 1), ("f", 1)]:
        q.put("k", b"x" * size, jid=name)
    got = [q.lease("w", 10) for _ in range(4)]
    assert [jids(leases) for leases in got] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert [lease.raw for leases in got[:3] for lease in leases] == [b"x" * n for n in (400_000,) * 3 + (3_000_000,)]


# Blocking.


def test_a_blocking_lease_ends_at_its_deadline(live):
    assert live.queue("q").lease("w", block=0.05) == []


def test_a_blocking_lease_wakes_for_a_put(live, server, namespace):
    import threading

    got = []
    waiter = threading.Thread(target=lambda: got.extend(live.queue("q").lease("w", block=20)))
    waiter.start()
    while not any(b"blpop" in line for line in server.redis.execute_command("CLIENT", "LIST").split(b"\n")):
        pass
    live.queue("q").put("k", jid="x")
    waiter.join(10)
    assert jids(got) == ["x"]


def test_a_blocking_lease_wakes_when_a_schedule_comes(live):
    live.queue("q").put("k", jid="x", delay=0.2)
    assert jids(live.queue("q").lease("w", block=20)) == ["x"]


@pytest.mark.parametrize("odd", ["often", "9" * 30, "-" + "9" * 400], ids=["word", "large", "huge"])
def test_damaged_record_does_not_block_other_leases(client, clock, server, namespace, odd):
    queue = client.queue("q")
    for jid in ("good", "bad", "fine", "worse"):
        queue.put("k", jid=jid)
    dense, full = (f"{{{namespace}}}:job:{jid}" for jid in ("bad", "worse"))
    was = server.redis.get(dense)
    server.redis.set(dense, was.replace(b"\nk\n\n", f"\nk\np{odd}\n".encode()))
    client.log("worse", "makes its record a full one")
    server.redis.hset(full, "timeout", odd)
    grant = run(client, leasing.lease("w", ["q"], 4, now=clock.now))
    assert ([lease.jid for lease in grant.leases], grant.unreadable) == (["good", "fine"], ["bad", "worse"])
    server.redis.set(dense, server.redis.get(dense).replace(f"p{odd}".encode(), b""))
    server.redis.hdel(full, "timeout")


def test_a_queue_whose_name_is_damaged_hides_no_other(client, server, namespace):
    client.queue("q").put("k", jid="a")
    server.redis.zadd(f"{{{namespace}}}:queues", {b"\xff\xfe": 1, "": 2, "x" * 65: 3})
    assert [lease.jid for lease in client.lease("w", ["*"])] == ["a"]
    server.redis.zrem(f"{{{namespace}}}:queues", b"\xff\xfe", "", "x" * 65)
