"""The started run of an at-most-once job ends only by its own outcome or fails."""

import random

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, settling, workers
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Returned, Unknown


def once(client, jid="j", **options):
    """Lease and start an at-most-once job."""
    client.queue("q").put("k", jid=jid, at_most_once=True, **options)
    (lease,) = client.queue("q").lease("w")
    return lease


def state_of(client, jid="j"):
    job = client.job(jid)
    return job.state, job.failure and job.failure["group"]


def test_query_and_lease_show_the_mark(client):
    lease = once(client)
    assert (lease.at_most_once, client.job("j").at_most_once) == (True, True)
    client.queue("q").put("k", jid="other")
    (other,) = client.queue("q").lease("w")
    assert (other.at_most_once, client.job("other").at_most_once) == (False, False)


ENDS = {
    "completed": (lambda c, it: it.complete(), ("complete", None)),
    "failed": (lambda c, it: it.fail("g", "m"), ("failed", "g")),
    "retried": (lambda c, it: it.retry(), ("failed", "failed-retries-q")),
    "retried later": (lambda c, it: it.retry(delay=5), ("failed", "failed-retries-q")),
    "retried in a group": (lambda c, it: it.retry(group="ValueError"), ("failed", "ValueError")),
    "interrupted": (lambda c, it: it.release(), ("failed", "interrupted")),
    "dead": (lambda c, it: it.died("SIGKILL"), ("failed", "died:SIGKILL")),
    "dead, without a limit of deaths": (
        lambda c, it: c.settle([Died(it, "oom", default_max_deaths=0)]),
        ("failed", "died:oom"),
    ),
    "released by hand": (lambda c, it: c.job("j").release(), ("failed", "interrupted")),
    "of a worker that somebody deregistered": (lambda c, it: c.deregister("w"), ("failed", "interrupted")),
    "failed by hand": (lambda c, it: c.job("j").fail("g", "m"), ("failed", "g")),
}


@pytest.mark.parametrize("end", ENDS)
def test_no_end_brings_an_at_most_once_job_back(client, clock, end):
    lease = once(client)
    act, expected = ENDS[end]
    act(client, lease)
    assert state_of(client) == expected
    clock.tick(10_000)
    client.sweep()
    assert client.queue("q").lease("w2", 9) == []


def test_a_retry_says_that_none_remains(client):
    assert once(client, retries=5).retry() < 0


@pytest.mark.parametrize("starting", [0, 1])
@pytest.mark.parametrize("by", ["a lease", "a sweep"])
def test_expired_lease_fails_the_job_even_without_a_reported_start(client, clock, starting, by):
    client.queue("q").put("k", jid="j", at_most_once=True)
    calls_of(client).run(leasing.lease("w", ["q"], starting=starting, now=clock.now))
    clock.tick(36)
    if by == "a sweep":
        client.sweep()
    assert client.queue("q").lease("w2", 9) == []
    assert state_of(client) == ("failed", "died:lost")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("drain", "it was stopped (drain), and must not be started twice"),
        (None, "it was stopped, and must not be started twice"),
    ],
)
def test_failure_of_a_stopped_job_says_why(client, reason, said):
    client.settle([Released(once(client), reason=reason)])
    assert client.job("j").failure["message"] == said


def test_late_end_counts_until_the_takeover(client, clock):
    lease = once(client)
    clock.tick(10_000)
    assert lease.complete() is True
    assert state_of(client) == ("complete", None)


def test_job_not_started_is_handed_back(client):
    lease = once(client)
    assert lease.release(started=False) is True
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]


@pytest.mark.parametrize("leave", [leasing.resume, workers.deregister])
def test_job_never_received_is_handed_back(client, clock, leave):
    client.queue("q").put("k", jid="j", at_most_once=True)
    calls_of(client).run(settling.settle("w", [], number=1, now=clock.now))
    calls_of(client).run(leasing.lease("w", ["q"], number=1, now=clock.now))
    arguments = {"own": True} if leave is workers.deregister else {"number": 2, "known": []}
    calls_of(client).run(leave("w", **arguments, now=clock.now))
    assert [it.jid for it in client.queue("q").lease("w2")] == ["j"]


def test_job_may_advance_to_another_queue_and_run_once_there(client):
    once(client).complete(next="r")
    (lease,) = client.queue("r").lease("w")
    assert lease.at_most_once is True
    lease.died("oom")
    assert state_of(client) == ("failed", "died:oom")


def test_second_run_takes_an_explicit_put(client):
    """A put, a move and an unfail begin a new stage, because an operator has decided so."""
    once(client).died("oom")
    assert client.unfail("died:oom") == 1
    (lease,) = client.queue("q").lease("w")
    assert lease.at_most_once is True
    client.queue("q").put("k", jid="j")
    assert client.queue("q").lease("w")[0].at_most_once is True


def test_put_may_revoke_at_most_once(client):
    once(client)
    client.queue("q").put("k", jid="j", at_most_once=False)
    (lease,) = client.queue("q").lease("w")
    lease.died("oom")
    assert (lease.at_most_once, state_of(client)[0]) == (False, "waiting")


def test_persistent_and_at_most_once_exclude_each_other(client):
    with pytest.raises(ValueError, match="persistent and at_most_once exclude each other"):
        client.queue("q").put("k", at_most_once=True, persistent=True)
    client.queue("q").put("k", jid="j", persistent=True)
    client.queue("q").put("k", jid="j", at_most_once=True)
    assert (client.job("j").persistent, client.job("j").at_most_once) == (False, True)
    client.queue("q").put("k", jid="j", persistent=True)
    assert (client.job("j").persistent, client.job("j").at_most_once) == (True, False)


# Klasses whose handlers say it.


def lease_once(client, clock, klasses=("k",)):
    return calls_of(client).run(leasing.lease("w", ["q"], 9, once=klasses, now=clock.now)).leases


def test_a_worker_may_say_which_klasses_never_start_twice(client, clock):
    q = client.queue("q")
    q.put("k", jid="j")
    q.put("other", jid="other")
    assert [(it.jid, it.at_most_once) for it in lease_once(client, clock)] == [("j", True), ("other", False)]
    clock.tick(36)
    assert [it.jid for it in q.lease("w2", 9)] == ["other"]
    assert state_of(client) == ("failed", "died:lost")


def test_explicit_false_wins_over_the_handler(client, clock):
    client.queue("q").put("k", jid="j", at_most_once=False)
    (lease,) = lease_once(client, clock)
    lease_again = (lease.at_most_once, client.queue("q").counts().running)
    assert lease_again == (False, 1)
    clock.tick(36)
    assert [it.jid for it in client.queue("q").lease("w2", 9)] == ["j"]


def test_a_persistent_job_does_not_become_one(client, clock):
    client.queue("q").put("k", jid="j", persistent=True)
    (lease,) = lease_once(client, clock)
    assert (lease.persistent, lease.at_most_once) == (True, False)


def test_mark_survives_a_hand_back_to_another_worker(client, clock):
    client.queue("q").put("k", jid="j")
    (lease,) = lease_once(client, clock)
    calls_of(client).run(settling.settle("w", [Released(lease, started=False)], now=clock.now))
    (again,) = client.queue("q").lease("w2")
    assert again.at_most_once is True


# Whatever happens.


@pytest.mark.parametrize("seed", range(3))
def test_no_job_starts_twice_whatever_happens(client, clock, seed):
    """Lost workers, deaths, late outcomes and repeated ones never start a job twice."""
    chance = random.Random(seed)
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": f"j{i}", "at_most_once": True} for i in range(60))
    started, leases = [], []
    ways = [
        Completed, Retried, Released, lambda it: Died(it, "oom", default_max_deaths=0), Returned,
        lambda it: Failed(it, "g", "m"),
    ]  # fmt: skip
    for _ in range(400):
        chosen = chance.random()
        if chosen < 0.4:
            found = q.lease(chance.choice(["w1", "w2"]), chance.randint(1, 3))
            for lease in found:  # some are handed back at once
                if chance.random() < 0.3:
                    client.settle([Released(lease, started=False)])
                else:
                    started.append(lease.jid)
            leases += found
        elif chosen < 0.75 and leases:
            lease = chance.choice(leases)
            if lease.jid in started:
                client.settle([chance.choice(ways)(lease)] * chance.randint(1, 2))
        elif chosen < 0.85:
            clock.tick(chance.choice([1, 31, 36]))
        elif chosen < 0.9:
            client.sweep()
        elif chosen < 0.95:
            client.deregister("w1")
        else:
            client.job(chance.choice([f"j{i}" for i in range(60)])).release()
    assert len(started) == len(set(started)) > 20


def test_job_of_unknown_klass_waits_for_a_worker_with_the_handler(client, clock):
    """The job has not started."""
    lease = once(client)
    client.settle([Unknown(lease, 5)])
    assert client.job("j").state == "scheduled"
    clock.tick(5)
    assert len(client.queue("q").lease("w2")) == 1
