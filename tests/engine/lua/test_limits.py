"""Limits on running jobs and on starts, over all queues and workers."""

import random
import time
from collections import deque

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown
from tests.lengths import LONG

KEY = "api:stripe"


def put(queue, n, first=0, **options):
    queue.put_many({"klass": "k", "jid": f"{options.get('limit', 'free')}-{i}", **options} for i in range(first, n))


def jids(leases):
    return [lease.jid for lease in leases]


# Several limits of one job.


def test_job_starts_only_while_all_its_limits_have_room(client):
    client.limit("tenant", running=2)
    client.limit("service", running=1)
    q = client.queue("q")
    put(q, 2, limit=("tenant", "service"))
    first, *more = q.lease("w", 9)
    assert (more, first.limited) == ([], True)
    assert [(one.in_use, one.parked) for one in (client.limit("tenant"), client.limit("service"))] == [(1, 0), (1, 1)]
    assert {holder.jid for key in ("tenant", "service") for holder in client.limit_jobs(key).holders} == {first.jid}
    first.complete()
    assert len(q.lease("w", 9)) == 1


def test_parked_job_takes_no_slot_of_its_other_limits(client):
    client.limit("tenant", running=1)
    client.limit("service", running=0)
    q = client.queue("q")
    q.put("k", jid="both", limit=["tenant", "service"])
    q.put("k", jid="one", limit="tenant")
    assert jids(q.lease("w", 9)) == ["one"]
    job = client.job("both")
    assert (job.state, job.parked, job.limit) == ("waiting", True, ("tenant", "service"))


def test_slot_that_a_job_cannot_use_goes_to_the_next_one(client):
    for key in ("a", "b"):
        client.limit(key, running=1)
    q = client.queue("q")
    q.put("k", jid="holds-b", limit="b")
    (holder,) = q.lease("w", 9)
    q.put("k", jid="both", limit=("a", "b"))
    q.put("k", jid="only-b", limit="b")
    assert q.lease("w", 9) == []
    q.put("k", jid="holds-a", limit="a")
    assert jids(q.lease("w", 9)) == ["holds-a"]
    holder.complete()
    assert jids([*q.lease("w", 9), *q.lease("w", 9)]) == ["only-b"]
    assert (client.limit("a").parked, client.limit("b").parked) == (0, 1)


def test_backlog_under_one_limit_holds_no_slot_of_another(client):
    for key in ("service", "busy"):
        client.limit(key, running=1)
        client.queue("q").put("k", jid=f"holds-{key}", limit=key)
    q = client.queue("q")
    by_jid = {lease.jid: lease for lease in q.lease("w", 9)}
    put(q, 300, limit=("service", "busy"))
    q.put("k", jid="other", limit=("service", "idle"))
    while client.limit("service").parked < 301:
        assert q.lease("w", 9) == []
    by_jid["holds-service"].complete()
    assert jids(q.lease("w", 1)) == ["other"]
    assert [client.limit(key).parked for key in ("service", "busy")] == [0, 300]
    by_jid["holds-busy"].complete()
    assert q.lease("w", 1) == []
    client.limit("service", running=2)
    assert len(q.lease("w", 9)) == 1


def test_jobs_with_different_limits_take_turns_under_their_common_one(client):
    client.limit("service", running=0)
    q = client.queue("q")
    for tenant in "abc":
        for i in range(3):
            q.put("k", jid=f"{tenant}-{i}", limit=(tenant, "service"))
    assert q.lease("w", 20) == []
    client.limit("service", running=4)
    assert sorted(jids(q.lease("w", 20))) == ["a-0", "a-1", "b-0", "c-0"]


def test_check_finds_a_line_of_several_limits_that_stands_nowhere(client, namespace, server):
    client.limit("b", running=0)
    q = client.queue("q")
    put(q, 1, limit=("a", "b"), lane="x")
    assert q.lease("w", 9) == []
    assert client.check() == []
    server.redis.delete(f"{{{namespace}}}:limited:b\nq")
    assert {finding.kind for finding in client.check(repair=True)} == {"unlisted-limit"}
    assert client.check() == []
    client.unlimit("b")
    assert len(q.lease("w", 9)) == 1


def test_each_rate_counts_a_start_of_a_job_with_two(client, clock):
    client.limit("a", rate="5/m")
    client.limit("b", rate="2/m")
    q = client.queue("q")
    put(q, 9, limit=("a", "b"))
    assert len(q.lease("w", 9)) == 2
    put(q, 9, 0, limit="a")
    assert len(q.lease("w", 9)) == 3
    clock.now += 60
    assert len(q.lease("w", 9)) == 5


def test_limit_that_a_job_names_twice_gives_one_slot(client):
    client.limit(KEY, running=1)
    client.queue("q").put("k", limit=(KEY, KEY))
    assert client.queue("q").lease("w")
    assert client.limit(KEY).in_use == 1


# Limits on running jobs.


def test_running_jobs_never_exceed_the_limit_over_all_queues(client):
    client.limit(KEY, running=3)
    for name in ("a", "b"):
        client.queue(name).put_many({"klass": "k", "limit": KEY} for _ in range(4))
    first = client.queue("a").lease("w1", 2)
    assert len(client.queue("b").lease("w2", 5)) == 1
    assert client.lease("w3", ["a", "b"], 9) == []
    assert (client.limit(KEY).in_use, client.limit(KEY).parked) == (3, 5)
    client.settle([Completed(lease) for lease in first])
    assert len(client.lease("w3", ["a", "b"], 9)) == 2


def test_one_lease_takes_no_more_than_the_room(client):
    client.limit(KEY, running=3)
    put(client.queue("q"), 10, limit=KEY)
    assert jids(client.queue("q").lease("w", 10)) == [f"{KEY}-{i}" for i in range(3)]


def test_parked_job_blocks_no_other_job(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 10, limit=KEY)
    put(q, 3)
    assert jids(q.lease("w", 4)) == [f"{KEY}-0", "free-0", "free-1", "free-2"]


def test_a_limit_of_nothing_lets_nothing_start(client):
    client.limit(KEY, running=0)
    q = client.queue("q")
    put(q, 2, limit=KEY)
    assert q.lease("w", 5) == []
    client.limit(KEY, running=1)
    assert jids(q.lease("w", 5)) == [f"{KEY}-0"]


def test_a_key_for_which_nothing_is_set_limits_nothing(client):
    put(client.queue("q"), 5, limit=KEY)
    assert len(client.queue("q").lease("w", 9)) == 5
    assert client.limit(KEY).in_use == 5


def test_running_jobs_count_when_a_limit_is_set_later(client):
    q = client.queue("q")
    put(q, 5, limit=KEY)
    first, second = q.lease("w", 2)
    client.limit(KEY, running=2)
    assert q.lease("w", 9) == []
    first.complete()
    assert len(q.lease("w", 9)) == 1
    second.complete()


def test_lowered_limit_lets_running_jobs_end(client):
    client.limit(KEY, running=3)
    q = client.queue("q")
    put(q, 6, limit=KEY)
    leases = q.lease("w", 3)
    client.limit(KEY, running=1)
    for lease in leases[:2]:
        lease.complete()
        assert q.lease("w", 5) == []
    leases[2].complete()
    assert len(q.lease("w", 5)) == 1


def test_raised_limit_starts_parked_jobs_at_once(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 6, limit=KEY)
    q.lease("w")
    assert q.lease("w", 9) == []
    client.limit(KEY, running=4)
    assert len(q.lease("w", 9)) == 3


def test_each_key_has_its_own_room(client):
    client.limit("a", running=1)
    client.limit("b", running=2)
    q = client.queue("q")
    for key in "ab":
        put(q, 3, limit=key)
    assert jids(q.lease("w", 9)) == ["a-0", "b-0", "b-1"]


# The place that a parked job has.


def test_unparked_job_returns_to_its_place(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 1, limit=KEY)
    (lease,) = q.lease("w")
    put(q, 3, 1, limit=KEY, priority=-1)
    put(q, 2)
    assert jids(q.lease("w")) == ["free-0"]
    lease.complete()
    assert jids(q.lease("w", 3)) == [f"{KEY}-1", "free-1"]


def test_parked_jobs_start_by_priority_and_age(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    for jid, priority in (("runs", -9), ("b", 0), ("c", 0), ("a", -1), ("d", 5)):
        q.put("k", jid=jid, limit=KEY, priority=priority)
    served = []
    for _ in range(5):
        (lease,) = q.lease("w", 9)
        served.append(lease.jid)
        lease.complete()
    assert served == ["runs", "a", "b", "c", "d"]


def test_lanes_have_their_turns_among_the_parked_too(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    for lane, n in (("a", 50), ("b", 3), ("c", 3)):
        q.put_many({"klass": "k", "lane": lane, "limit": KEY} for _ in range(n))
    served = ""
    for _ in range(12):
        (lease,) = q.lease("w", 9)
        served += lease.lane
        lease.complete()
    assert {lane: served.count(lane) for lane in "bc"} == {"b": 3, "c": 3}


def test_job_returned_without_room_goes_first_later(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 3, limit=KEY)
    (lease,) = q.lease("w")
    client.limit(KEY, running=0)
    lease.release()
    assert q.lease("w", 9) == []
    client.limit(KEY, running=1)
    assert jids(q.lease("w", 9)) == [f"{KEY}-0"]


def test_parked_job_is_shown_and_can_be_changed(client):
    client.limit(KEY, running=0)
    q = client.queue("q")
    put(q, 6, limit=KEY)
    assert q.lease("w", 9) == []
    job = client.job(f"{KEY}-0")
    assert (job.state, job.parked, job.limit) == ("waiting", True, KEY)
    job.set_priority(5)
    client.job(f"{KEY}-1").move("r")
    client.job(f"{KEY}-2").cancel()
    client.job(f"{KEY}-3").fail("g", "m")
    q.put("k", jid=f"{KEY}-4", limit=None)
    assert client.limit(KEY).parked == 2
    assert jids(q.lease("w", 9)) == [f"{KEY}-4"]
    assert client.queue("r").lease("w", 9) == []
    client.limit(KEY, running=9)
    assert sorted(jids(client.lease("w", ["q", "r"], 9))) == [f"{KEY}-0", f"{KEY}-1", f"{KEY}-5"]


def test_queues_of_one_limit_do_not_starve_each_other(client):
    client.limit(KEY, running=1)
    for name in ("a", "b"):
        client.queue(name).put_many({"klass": "k", "limit": KEY} for _ in range(4))
    served = ""
    for _ in range(8):
        leases = client.lease("wa", ["a"]) or client.lease("wb", ["b"])
        served += leases[0].queue
        leases[0].complete()
    assert sorted(served) == sorted("aaaabbbb")


def test_freed_slot_wakes_the_waiting_queues(client, server, namespace):
    client.limit(KEY, running=1)
    for name in ("a", "b"):
        client.queue(name).put("k", limit=KEY)
    (lease,) = client.queue("a").lease("w")
    assert client.queue("b").lease("w") == []
    server.redis.delete(f"{{{namespace}}}:bell:b")
    lease.complete()
    assert server.redis.llen(f"{{{namespace}}}:bell:b") == 1


@pytest.fixture
def parked_in_many(client):
    """Park a job of each of 150 queues under one limit."""
    queues = [client.queue(f"q{i:03}") for i in range(150)]
    client.limit(KEY, running=0)
    for queue in queues:
        queue.put("k", limit=KEY)
        assert queue.lease("w") == []
    return queues


def test_removed_limit_frees_parked_jobs_in_all_queues(client, parked_in_many):
    client.unlimit(KEY)
    assert sum(len(queue.lease("w")) for queue in parked_in_many) == 150


def test_queue_without_workers_keeps_no_slot(client, parked_in_many):
    client.limit(KEY, running=1)
    assert len(parked_in_many[-1].lease("w")) == 1


# A slot belongs to a lease.

ENDS = {
    "completed": lambda it, client: it.complete(),
    "completed, going on": lambda it, client: it.complete(next="elsewhere"),
    "retried": lambda it, client: it.retry(),
    "retried later": lambda it, client: it.retry(delay=5),
    "retried once too often": lambda it, client: it.retry(group="g"),
    "failed": lambda it, client: it.fail("g", "m"),
    "released": lambda it, client: it.release(),
    "handed back": lambda it, client: it.release(started=False),
    "dead": lambda it, client: it.died("oom"),
    "of no known klass": lambda it, client: client.settle([Unknown(it, 5)]),
    "returned": lambda it, client: client.settle([Returned(it)]),
    "cancelled": lambda it, client: client.cancel(it.jid),
    "failed by hand": lambda it, client: client.job(it.jid).fail("g", "m"),
    "moved": lambda it, client: client.job(it.jid).move("elsewhere"),
    "put again": lambda it, client: client.queue("q").put("k", jid=it.jid, limit=None),
    "released by hand": lambda it, client: client.job(it.jid).release(),
    "of a worker that left": lambda it, client: client.deregister("w"),
    "deleted": lambda it, client: client.queue("q").delete(running="stop"),
    "not known to its worker": lambda it, client: calls_of(client).run(leasing.resume("w", 1, [], now=1_000_000)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_slot_is_free_when_its_lease_is_over(client, server, namespace, end):
    client.limit(KEY, running=1)
    q = client.queue("q")
    q.put("k", jid="holder", limit=KEY, retries=0 if "too often" in end else 5)
    (lease,) = q.lease("w")
    assert client.limit(KEY).in_use == 1
    ENDS[end](lease, client)
    assert client.limit(KEY).in_use == 0
    assert not server.redis.exists(f"{{{namespace}}}:holders:{KEY}")
    client.cancel("holder")
    q.put("k", jid="next", limit=KEY)
    assert jids(q.lease("w2", 9)) == ["next"]


@pytest.mark.parametrize("twice", ["complete", "release", "fail"])
def test_ended_lease_frees_no_second_slot(client, twice):
    """Neither frees a slot that another job has by now."""
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 4, limit=KEY)
    (lease,) = q.lease("w")
    arguments = ("g", "m") if twice == "fail" else ()
    assert getattr(lease, twice)(*arguments) is True
    (other,) = q.lease("w")
    assert getattr(lease, twice)(*arguments) is False
    assert (client.limit(KEY).in_use, q.lease("w", 9)) == (1, [])
    other.complete()


def test_expired_lease_keeps_its_slot_until_the_takeover(client, clock):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 2, limit=KEY)
    (lease,) = q.lease("w")
    clock.tick(31)
    assert (q.lease("w2", 9), client.limit(KEY).in_use) == ([], 1)
    lease.renew()
    clock.tick(36)
    assert jids(q.lease("w2", 9)) == [f"{KEY}-0"]
    assert client.limit(KEY).in_use == 1
    clock.tick(36)
    assert client.sweep() == 1
    assert client.limit(KEY).in_use == 0
    with pytest.raises(LeaseLost):
        lease.renew()


def test_lost_job_goes_before_those_that_waited_for_its_slot(client, clock):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 3, limit=KEY)
    q.lease("w")
    assert q.lease("w") == []
    clock.tick(36)
    assert jids(q.lease("w2", 9)) == [f"{KEY}-0"]


def test_running_job_put_without_its_limit_frees_the_slot(client):
    client.limit(KEY, running=1)
    q = client.queue("q")
    put(q, 2, limit=KEY)
    (lease,) = q.lease("w")
    q.put("k", jid=lease.jid, limit=None)
    assert lease.complete() is False
    assert client.limit(KEY).in_use == 0
    assert sorted(jids(q.lease("w", 9))) == [f"{KEY}-0", f"{KEY}-1"]
    assert client.limit(KEY).in_use == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_overrun_and_no_lost_slot_in_any_sequence(client, clock, server, namespace, seed):
    """800 random acts on 30 jobs of three queues; the invariants hold after each one."""
    chance = random.Random(seed)
    prefix, names = f"{{{namespace}}}:", [f"j{i}" for i in range(30)]
    leases, allowed, started = [], 1, 0
    client.limit(KEY, running=1)
    for jid in names:
        lane = chance.choice([None, "l", "m"])
        client.queue(chance.choice("abc")).put("k", jid=jid, limit=KEY, lane=lane, retries=50)

    def running_and_slots():
        with server.redis.pipeline(transaction=False) as pipeline:
            for queue in "abc":
                pipeline.zrange(f"{prefix}queue:{queue}:running", 0, -1)
            pipeline.zrange(f"{prefix}holders:{KEY}", 0, -1)
            *running, holders = pipeline.execute()
        return {jid for some in running for jid in some}, set(holders)

    def lease():
        nonlocal started
        queues = chance.sample("abc", chance.randint(1, 3))
        found = client.lease(chance.choice(["w1", "w2"]), queues, chance.randint(1, 9))
        leases.extend(found)
        started += len(found)
        if found and allowed is not None:
            assert len(running_and_slots()[0]) <= allowed

    def settle():
        if leases:
            lease = chance.choice(leases[-3:])
            ways = [
                Completed(lease), Completed(lease, next="b"), Retried(lease), Retried(lease, delay=2), Released(lease),
                Released(lease, started=False), Died(lease, "oom", default_max_deaths=0), Failed(lease, "g", "m"),
            ]  # fmt: skip
            client.settle([chance.choice(ways)])

    def limit():
        nonlocal allowed
        allowed = chance.choice([1, 1, 1, 0, 2])
        client.limit(KEY, running=allowed)

    def unlimit():
        nonlocal allowed
        client.unlimit(KEY)
        allowed = None

    def put_again():
        options = chance.choice([{}, {}, {"delay": 3}, {"lane": "l"}])
        client.queue(chance.choice("abc")).put("k", jid=chance.choice(names), limit=KEY, **options)

    def by_hand():
        job = client.job(chance.choice(names))
        if job and job.state != "complete":
            fail, move = (lambda: job.fail("g", "m")), (lambda: job.move("c"))
            chance.choice([job.cancel, fail, move, lambda: job.set_priority(3), job.release])()

    lane = client.queue("a").lane("l")
    rare = [
        by_hand, limit, client.sweep, lane.pause, lane.unpause, lambda: client.deregister("w1"),
        lambda: client.unfail("g"), lambda: clock.tick(chance.choice([0.5, 3, 36])),
    ]  # fmt: skip
    steps = [*rare, *[put_again] * 6, *[lease] * 9, *[settle] * 8]
    for step in range(800):
        unlimit() if step % 200 == 190 else limit() if step % 200 == 0 else chance.choice(steps)()
        running, holders = running_and_slots()
        assert running == holders
    assert started > 60

    # All of the state expires in the end, and nothing is left.
    client.limit(KEY, running=1)
    lane.unpause()
    client.deregister("w1")
    client.deregister("w2")
    for _ in range(3 * len(names)):
        clock.tick(60)
        found = client.lease("w3", ["a", "b", "c"], 9)
        assert len(found) <= 1
        client.settle([Completed(one) for one in found])
    assert {job.state for job in client.jobs(*names) if job} <= {"complete", "failed"}
    assert (client.limit(KEY).in_use, client.limit(KEY).parked) == (0, 0)


# Limits on the rate of starts.


@pytest.mark.sampled(2)
def test_no_more_start_in_any_second_than_may(client, clock):
    """Four workers, 10 starts a second, 20 seconds, in steps of 10 ms."""
    client.limit(KEY, rate="10/s")
    q = client.queue("q")
    q.put_many({"klass": "k", "limit": KEY} for _ in range(300))
    chance, window, per_second = random.Random(1), deque(), [0] * 20
    for step in range(2000):
        for lease in q.lease(f"w{step % 4}", chance.choice([1, 1, 2, 30])):
            window.append(clock.now)
            per_second[step // 100] += 1
            lease.complete()
        while window and window[0] <= clock.now - 1:
            window.popleft()
        assert len(window) <= 10
        clock.tick(0.01)
    assert all(9 <= starts <= 11 for starts in per_second), per_second


def test_rate_holds_with_a_slow_clock(client, clock):
    client.limit(KEY, rate="2/100ms")
    q = client.queue("q")
    put(q, 9, limit=KEY)
    assert len(q.lease("w", 9)) == 2
    time.sleep(0.15)  # by which the server would have ended a key of 100 ms
    clock.tick(0.05)
    assert q.lease("w", 9) == []
    clock.tick(0.06)
    assert len(q.lease("w", 9)) == 2


def test_a_rate_holds_when_the_clock_jumps(client, clock):
    """Within any second of a clock that goes on. A clock that goes back begins a new count."""
    client.limit(KEY, rate="10/s")
    q = client.queue("q")
    q.put_many({"klass": "k", "limit": KEY} for _ in range(1000))
    chance, starts, total = random.Random(2), [], 0
    for _ in range(400):
        starts += [clock.now] * len(q.lease("w", 30))
        assert sum(start > clock.now - 1 for start in starts) <= 10
        jump = chance.choice([0.05, 0.05, 0.2, 1, 100, -0.3, -50])
        clock.tick(jump)
        total += len(starts) if jump < 0 else 0
        starts = [] if jump < 0 else starts
    assert total > 100


def test_rate_survives_a_clock_that_goes_back(client, clock):
    client.limit(KEY, rate="2/m")
    q = client.queue("q")
    q.put_many({"klass": "k", "limit": KEY} for _ in range(20))
    assert len(q.lease("w", 9)) == 2
    clock.tick(-86_400)
    started = 0
    for _ in range(20):
        started += len(q.lease("w", 9))
        clock.tick(6)
    assert 3 <= started <= 6


def test_a_lease_says_when_there_will_be_room_again(client, clock):
    client.limit(KEY, rate="2/10s")
    q = client.queue("q")
    put(q, 5, limit=KEY)
    assert len(q.lease("w", 5)) == 2
    clock.tick(4)
    grant = calls_of(client).run(leasing.lease("w", ["q"], 5, now=clock.now))
    assert (grant.leases, grant.next_at_unix) == ([], 1_000_010.0)
    clock.tick(5.999)
    assert q.lease("w", 5) == []
    clock.tick(0.001)
    assert len(q.lease("w", 5)) == 2


def test_starts_count_whatever_becomes_of_them(client, clock):
    client.limit(KEY, rate="3/m")
    q = client.queue("q")
    put(q, 5, limit=KEY)
    for _ in range(3):
        q.lease("w")[0].release()
        clock.tick(1)
    assert q.lease("w") == []
    clock.tick(57)
    assert jids(q.lease("w", 9)) == [f"{KEY}-0"]


def test_both_limits_of_a_key_hold(client, clock):
    client.limit(KEY, running=1, rate="2/m")
    q = client.queue("q")
    put(q, 9, limit=KEY)
    for _ in range(2):
        (lease,) = q.lease("w", 9)
        assert q.lease("w", 9) == []
        lease.complete()
    assert q.lease("w", 9) == []
    clock.tick(60)
    assert len(q.lease("w", 9)) == 1


def test_starts_of_a_rate_expire(live, server, namespace):
    live.limit(KEY, rate="2/100ms")
    live.queue("q").put("k", limit=KEY)
    live.queue("q").lease("w")
    assert 0 < server.redis.pttl(f"{{{namespace}}}:starts:{KEY}") <= 100


# Costs.


def looked_at(server):
    """Return the most records that a lease has read (settings count, too), and its µs."""
    stats = server.redis.info("commandstats")
    calls = {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("hmget", "hgetall")}
    return calls["hmget"], calls["hgetall"], stats["cmdstat_evalsha"]["usec"]


CONFIGURED = 8


def cost_of_a_lease(server, queue, count=1):
    """Return the records read, the µs, and the leases."""
    before = looked_at(server)
    leases = queue.lease("w", count)
    part, whole, took = (after - was for after, was in zip(looked_at(server), before, strict=True))
    return max(part - CONFIGURED, whole), took, leases


@pytest.mark.parametrize(("n", "lane"), [(100_000 if LONG else 15_000, None), (10_000, "a")])
def test_blocked_jobs_ahead_cost_a_lease_only_a_few_reads(server, namespace, n, lane):
    """`.ci/run --full`: 100,000 jobs."""
    with Client(server.url, namespace) as client:
        client.limit(KEY, running=0)
        blocked, free = client.queue("blocked"), client.queue("free")
        for _ in range(n // 1000):
            blocked.put_many({"klass": "k", "limit": KEY, "lane": lane} for _ in range(1000))
        blocked.put("k", jid="free", lane=lane)
        count, found, leases = 500, [], 0
        while not found:
            looks, _, found = cost_of_a_lease(server, blocked, count)
            assert looks <= count + 16
            leases += 1
        assert jids(found) == ["free"]
        assert leases <= n // (count + 16) + 2

        # And when they are parked, none at all.
        for _ in range(3):
            costs = {}
            for queue in (blocked, free):
                queue.put_many({"klass": "k", "lane": lane} for _ in range(40))
                found = [cost_of_a_lease(server, queue) for _ in range(40)]
                assert max(looks for looks, _, _ in found) <= 1
                costs[queue] = sorted(took for _, took, _ in found)[10]
            if costs[blocked] < 2 * costs[free]:
                return
        raise AssertionError(f"{costs[blocked]} µs with parked jobs, {costs[free]} µs without")


def test_jobs_parked_under_many_limits_cost_a_lease_nothing(server, namespace):
    with Client(server.url, namespace) as client:
        q = client.queue("q")
        for i in range(500):
            client.limit(f"limit-{i}", running=0)
        q.put_many({"klass": "k", "limit": f"limit-{i}"} for i in range(500))
        while q.counts().waiting:
            q.lease("w", 100)
        q.put_many({"klass": "k"} for _ in range(10))
        q.lease("w")
        looks, _, leases = cost_of_a_lease(server, q)
        assert (looks <= 1, len(leases)) == (True, 1)


# Beside a backlog.


@pytest.mark.parametrize("count", [2, 3, 28, 200])
def test_settled_slots_serve_the_lease_of_the_same_exchange(client, clock, count):
    """Each exchange settles, then leases: two jobs start in each, however long the line is."""
    client.limit(KEY, running=2, rate="200/s")
    q = client.queue("q")
    put(q, 90, limit=KEY)
    put(q, 2_000)
    held, started = [], []
    for _ in range(20):
        clock.tick(0.02)
        client.settle([Completed(lease) for lease in held])
        held = q.lease("w", count)
        started.append(sum(lease.limited for lease in held))
        put_more = count - started[-1]
        q.put_many({"klass": "k", **({"limit": KEY} if i % 7 == 0 else {})} for i in range(max(put_more, 1)))
    assert started == [2] * 20


def test_a_rate_is_used_up_beside_a_backlog(client, clock):
    """50 leases a second, 20 starts a second: each second has its 20."""
    client.limit(KEY, rate="20/s")
    q = client.queue("q")
    put(q, 200, limit=KEY)
    put(q, 2_000)
    seconds = [0] * 5
    for i in range(250):
        leases = q.lease("w", 10)
        seconds[i // 50] += sum(lease.limited for lease in leases)
        client.settle([Completed(lease) for lease in leases])
        clock.tick(0.02)
    assert seconds == [20] * 5


# Many limits, lanes and queues.


def test_lane_whose_jobs_are_parked_lets_others_have_their_turns(client):
    client.limit("none", running=0)
    q = client.queue("q")
    q.put("k", jid="waits", lane="b")
    q.put_many({"klass": "k", "lane": "a", "limit": "none"} for _ in range(100))
    assert jids(q.lease("w")) == ["waits"]


def test_limit_whose_backlog_fills_each_lease_is_examined_behind_others(client, clock):
    client.limit("a", running=0)
    client.limit("b", running=0)
    q = client.queue("q")
    put(q, 100, limit="a")
    q.put("k", jid="urgent", limit="b", priority=-100)
    while q.counts().parked < 101:
        q.lease("w", 99)
    client.limit("b", running=1)
    client.limit("a", running=100)
    clock.tick(0.001)
    q.lease("w")
    assert "urgent" in jids(q.lease("w", 2))


@pytest.mark.sampled(2)
def test_sweep_finds_the_room_of_a_limit_with_jobs_in_too_many_queues(client):
    client.limit(KEY, running=1)
    client.queue("first").put("k", limit=KEY)
    (held,) = client.queue("first").lease("w")
    queues = [client.queue(f"q{n:04}") for n in range(1001)]
    for queue in queues:
        queue.put("k", limit=KEY)
        queue.lease("w")
    held.complete()
    last = queues[-1]
    assert last.lease("w") == [], "more than one call marks"
    while client.sweep():
        pass
    assert len(last.lease("w")) == 1


def test_start_that_is_taken_back_leaves_the_others_counted(client, clock):
    client.limit("r", rate="10/h")
    q = client.queue("q")
    put(q, 12, limit="r")
    q.lease("w", 9, ttl=3600)
    clock.tick(1)
    calls_of(client).run(leasing.lease("lost", ["q"], 1, ttl_s=5, starting=0, now=clock.now))
    clock.tick(60)
    assert jids(q.lease("w", 9)) == ["r-9"]


@pytest.mark.sampled(2)
def test_limit_behind_one_with_jobs_in_too_many_queues_is_marked_too(client):
    for key in ("api", "tenant"):
        client.limit(key, running=1)
    client.queue("held").put("k", limit=("api", "tenant"))
    (held,) = client.queue("held").lease("w")
    for n in range(1000):
        client.queue(f"q{n:04}").put("k", limit="api")
        client.queue(f"q{n:04}").lease("w")
    client.queue("other").put("k", jid="other", limit="tenant")
    assert client.queue("other").lease("w") == []
    held.complete()
    assert jids(client.queue("other").lease("w")) == ["other"]


def test_starts_that_a_call_hands_back_together_count_no_longer(client):
    client.limit("r", rate="100/1d")
    q = client.queue("q")
    put(q, 200, limit="r")
    client.settle([Released(lease, started=False) for lease in q.lease("w", 150)])
    assert len(q.lease("w", 150)) == 100


@pytest.mark.parametrize("order", ["strict", "round-robin"])
def test_freed_slot_is_given_though_the_clock_has_gone_back(client, clock, order):
    client.limit("one", running=1)
    q = client.queue("q")
    put(q, 2, limit="one")
    (held,) = q.lease("w", 9, ttl=3600)
    held.complete()
    clock.tick(-5)
    assert jids(client.lease("w", ["other", "q"], order=order)) == ["one-1"]
