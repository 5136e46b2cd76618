"""Persistent jobs: every end of a run hands them to a worker again."""

import random

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.outcomes import ENDLESS, Completed, Died, Released, Retried, Returned, Unknown

LONG = 10  # seconds: a hold that is not short


def persistent(client, clock, held=LONG, **options):
    """Lease a persistent job and hold it for so long."""
    client.queue("q").put("k", jid="j", persistent=True, **options)
    (lease,) = client.queue("q").lease("w")
    clock.tick(held)
    return lease


def test_query_shows_the_mark(client, clock):
    lease = persistent(client, clock)
    assert (lease.persistent, client.job("j").persistent) == (True, True)


def test_persistent_job_cannot_complete(client, clock):
    lease = persistent(client, clock)
    with pytest.raises(LeaseholdError, match="job j is persistent and has no end"):
        lease.complete("r")
    with pytest.raises(LeaseholdError, match="has no end"):
        lease.complete(next="r", then=[{"queue": "q", "klass": "k", "jid": "follower"}])
    assert client.settle([Completed(lease)]) == [ENDLESS]
    assert client.job("follower") is None
    assert lease.renew() > clock.now
    assert (client.job("j").state, client.job("j").result) == ("running", None)


ENDS = {
    "returned": Returned,
    "retried": Retried,
    "released": Released,
    "handed back": lambda it: Released(it, started=False),
    "died": lambda it: Died(it, "SIGSEGV"),
    "died of what buries others": lambda it: Died(it, "oom", default_max_deaths=1),
}


@pytest.mark.parametrize("end", ENDS)
def test_another_worker_gets_a_persistent_job_at_once(client, clock, end):
    lease = persistent(client, clock, retries=0, max_deaths=1)
    client.queue("q").put("k", jid="waits", priority=-1)
    client.settle([ENDS[end](lease)])
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]


@pytest.mark.parametrize("by", ["a lease", "a sweep"])
def test_another_worker_gets_a_lost_workers_persistent_job(client, clock, by):
    persistent(client, clock, max_deaths=1)
    clock.tick(26)
    if by == "a sweep":
        client.sweep()
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]


def test_another_worker_gets_a_persistent_job_when_its_own_leaves(client, clock):
    persistent(client, clock)
    client.deregister("w")
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]


def test_operator_may_take_a_persistent_job_from_its_worker(client, clock):
    lease = persistent(client, clock)
    client.job("j").release()
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]
    assert client.settle([Returned(lease)]) == [False]


def test_exactly_one_worker_has_a_persistent_job(client, clock):
    lease = persistent(client, clock)
    assert client.queue("q").lease("w2", 9) == []
    client.settle([Returned(lease), Returned(lease)])
    assert len(client.queue("q").lease("w2", 9)) == 1
    assert client.queue("q").lease("w3", 9) == []


def test_persistent_job_is_never_buried_and_counts_everything(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", persistent=True, retries=1, max_deaths=1)
    for way in (Retried, Retried, Retried, ENDS["died"], ENDS["died"], Released):
        (lease,) = q.lease("w") or q.lease("w2")
        clock.tick(LONG)
        client.settle([way(lease)])
        clock.tick(1)
    job = client.job("j")
    assert (job.state, job.failures, job.deaths, job.interruptions) == ("waiting", 3, 2, 1)


def test_a_retry_may_have_a_delay(client, clock):
    lease = persistent(client, clock)
    assert lease.retry(delay=7) >= 0
    assert client.queue("q").lease("w2") == []
    clock.tick(7)
    assert len(client.queue("q").lease("w2")) == 1


# Back off.


def test_briefly_held_job_returns_later_and_later(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", persistent=True)
    waits = []
    for turn in range(8):
        (lease,) = q.lease(f"w{turn % 2}")
        client.settle([[Returned, ENDS["died"]][turn % 2](lease)])
        due = client.job("j").due_unix
        waits.append(due - clock.now)
        clock.tick(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_long_hold_forgives_the_short_ones(client, clock):
    q = client.queue("q")
    q.put("k", jid="j", persistent=True)
    for held, state in ((0, "scheduled"), (9.9, "scheduled"), (10, "waiting"), (1, "scheduled")):
        (lease,) = q.lease("w") or q.lease("w2")
        clock.tick(held)
        client.settle([Returned(lease)])
        assert client.job("j").state == state
        clock.tick(2)
    assert client.job("j").due_unix == clock.now - 2 + 1


# Turns of several workers.


def test_worker_lets_others_have_a_returned_job_first(client, clock):
    lease = persistent(client, clock)
    client.queue("elsewhere").lease("w2")
    client.settle([Returned(lease)])
    grant = calls_of(client).run(leasing.lease("w", ["q"], now=clock.now))
    assert (grant.leases, grant.next_at_unix) == ([], pytest.approx(clock.now + 0.025, abs=0.001))
    clock.tick(0.025)
    assert len(client.queue("q").lease("w")) == 1


def test_only_worker_gets_a_persistent_job_again_at_once(client, clock):
    lease = persistent(client, clock)
    client.settle([Returned(lease)])
    assert len(client.queue("q").lease("w")) == 1


def test_jobs_left_to_others_block_no_job(client, clock):
    lease = persistent(client, clock)
    client.queue("elsewhere").lease("w2")
    client.queue("q").put("k", jid="plain")
    client.settle([Returned(lease)])
    assert [it.jid for it in client.queue("q").lease("w", 5)] == ["plain"]
    assert [it.jid for it in client.queue("q").lease("w2", 5)] == ["j"]


def test_paused_lane_does_not_lose_a_job_left_to_others(client, clock):
    lease = persistent(client, clock, lane="a")
    q = client.queue("q")
    client.queue("elsewhere").lease("w2")
    q.lane("a").pause()
    client.settle([Returned(lease)])
    assert q.lease("w2", 5) == []
    q.lane("a").unpause()
    assert q.lease("w", 5) == []
    assert [it.jid for it in q.lease("w2", 5)] == ["j"]


# Its end.


def test_cancelling_ends_a_persistent_job(client, clock):
    lease = persistent(client, clock)
    assert client.cancel("j") == ["j"]
    assert client.settle([Returned(lease)]) == [False]
    assert (client.job("j"), client.queue("q").lease("w2")) == (None, [])


@pytest.mark.parametrize("by", ["its worker", "hand"])
def test_failing_ends_a_persistent_job(client, clock, by):
    lease = persistent(client, clock)
    lease.fail("g", "m") if by == "its worker" else client.job("j").fail("g", "m")
    assert (client.job("j").state, client.queue("q").lease("w2")) == ("failed", [])


def test_put_may_give_a_persistent_job_an_end(client, clock):
    persistent(client, clock)
    client.queue("q").put("k", jid="j", persistent=False)
    (lease,) = client.queue("q").lease("w2")
    assert (lease.persistent, lease.complete()) == (False, True)


def test_unknown_klass_is_no_end_either(client, clock):
    client.config.set("unknown-for", 60)
    lease = persistent(client, clock)
    for _ in range(5):
        client.settle([Unknown(lease, 30)])
        assert client.job("j").state == "scheduled"
        clock.tick(30)
        (lease,) = client.queue("q").lease("w2")


def test_returning_is_completion_for_any_other_job(client):
    client.queue("q").put("k", jid="j")
    assert client.settle([Returned(lease) for lease in client.queue("q").lease("w")]) == [True]
    assert client.job("j").state == "complete"


# Whatever happens.


@pytest.mark.parametrize("seed", range(3))
def test_each_job_has_at_most_one_holder_and_soon_one_again(client, clock, seed):
    """Twenty jobs, and three workers that lease every second; one is lost for a minute now and then."""
    chance = random.Random(seed)
    q = client.queue("q")
    names = [f"j{i}" for i in range(20)]
    q.put_many({"klass": "k", "jid": jid, "persistent": True} for jid in names)
    held, unheld_since, lost_until, longest = {}, dict.fromkeys(names, clock.now), {}, 0.0
    for _ in range(200):
        clock.tick(1)
        for worker in ("w0", "w1", "w2"):
            if lost_until.get(worker, 0) > clock.now:
                continue
            mine = [lease for lease in held.values() if lease.worker == worker]
            for lease in mine:
                if calls_of(client).run(
                    leasing.renew(worker, [leasing.Renewal(lease.jid, lease.token, True)], now=clock.now)
                )[0]:
                    continue
                del held[lease.jid]
            for lease in q.lease(worker, 9):
                before = held.pop(lease.jid, None)
                assert before is None or lost_until.get(before.worker, 0) > clock.now or before.worker == worker
                held[lease.jid] = lease
                longest = max(longest, clock.now - unheld_since.pop(lease.jid, clock.now))
        if chance.random() < 0.1 and held:
            lease = chance.choice(list(held.values()))
            if clock.now > lease.expires_unix - 30 + LONG and lost_until.get(lease.worker, 0) <= clock.now:
                chance.choice([lambda it: client.settle([Returned(it)]), lambda it: it.died("oom")])(lease)
                del held[lease.jid]
                unheld_since[lease.jid] = clock.now
        if chance.random() < 0.04:
            worker = chance.choice(["w0", "w1", "w2"])
            lost_until[worker] = clock.now + 60
            unheld_since |= {lease.jid: clock.now for lease in held.values() if lease.worker == worker}
    assert {job.state for job in client.jobs(*names)} <= {"running", "stalled", "waiting", "scheduled"}
    assert len(held) == 20
    assert longest <= 60 + 30 + 5 + 1
