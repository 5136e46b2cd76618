"""settle: outcomes, their counts, and what is kept."""

import pytest

from supervisor.engine.commands import mailbox, settling
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.outcomes import Completed, Died, Failed, Released, Retried, Unknown


@pytest.fixture
def lease(client):
    """Lease a new job with these options."""

    def lease_one(jid="x", **options):
        client.queue("q").put("k", jid=jid, **options)
        return client.queue("q").lease("w")[0]

    return lease_one


def again(client):
    return client.queue("q").lease("w")[0]


# Complete.


def test_complete_is_true_exactly_once(client, lease):
    held = lease()
    assert [held.complete(), held.complete()] == [True, False]
    assert client.job("x").state == "complete"


def test_a_completed_job_keeps_its_result_and_no_lease(client, lease):
    lease().complete({"answer": [42]})
    job = client.job("x")
    assert (job.state, job.result, job.worker, job.started) == ("complete", {"answer": [42]}, None, False)


def test_result_above_64_kib_is_refused(client, lease):
    held = lease()
    with pytest.raises(ValueError, match="result"):
        held.complete("x" * 65_536)
    assert client.job("x").state == "running"
    assert held.complete("x" * 65_000)


def test_zero_history_leaves_nothing_of_a_completed_job(client, lease, config, keys):
    config(**{"jobs-history": 0})
    held = lease()
    held.retry(message="once")
    assert again(client).complete({"r": 1}) is True
    assert client.job("x") is None
    assert not {key for key in keys() if "x" in key.split(":")}


def test_completed_jobs_are_kept_up_to_a_number(client, config):
    config(**{"jobs-history-count": 10})
    q = client.queue("q")
    jids = q.put_many({"klass": "k"} for _ in range(30))
    client.settle([Completed(held, 1) for held in q.lease("w", 30)])
    assert [client.job(jid) is not None for jid in jids].count(True) == 30  # what is over goes with the next ones
    q.put("k", jid="last")
    q.lease("w")[0].complete()
    kept = [job for job in client.jobs(*jids, "last") if job]
    assert len(kept) == 31 - 18  # one settle looks at twice its batch and sixteen
    q.put("k", jid="very-last")
    q.lease("w")[0].complete()
    assert len([job for job in client.jobs(*jids, "last", "very-last") if job]) == 10


def test_completed_jobs_are_kept_for_a_time(client, clock, config, keys):
    config(**{"jobs-history": 60})
    q = client.queue("q")
    q.put("k", jid="old")
    q.lease("w")[0].complete(1)
    clock.tick(59)
    q.put("k", jid="new")
    q.lease("w")[0].complete()
    assert client.job("old") is not None
    clock.tick(2)
    q.put("k", jid="newer")
    q.lease("w")[0].complete()
    assert [client.job(jid) is not None for jid in ("old", "new", "newer")] == [False, True, True]
    assert not {"data:old", "result:old", "job:old"} & keys()


# Retry.


def test_retry_spends_one_and_goes_to_the_back(client, lease):
    client.queue("q").put("k", jid="less", priority=1)
    held = lease(retries=2)
    client.queue("q").put("k", jid="other")
    assert held.retry() == 1
    assert [held.jid for held in client.queue("q").lease("w", 3)] == ["other", "x", "less"]
    assert client.job("x").failures == 1


def test_a_retry_with_a_delay_is_scheduled(client, lease, clock):
    lease().retry(delay=7.5)
    assert (client.job("x").state, client.job("x").due_unix) == ("scheduled", clock.now + 7.5)


def test_retry_returns_large_numbers_exactly(client, lease):
    assert lease(retries=2**53).retry() == 2**53 - 1


def test_a_job_has_five_retries_by_default(client, lease):
    held = lease()
    answers = []
    for _ in range(6):
        answers.append(held.retry())
        if answers[-1] >= 0:
            held = again(client)
    assert answers == [4, 3, 2, 1, 0, -1]
    assert client.failed() == {"failed-retries-q": 1}


def test_workers_default_counts_without_own_retries(client, lease):
    assert client.settle([Retried(lease("a"), delay=9, default_retries=1)]) == [0]
    assert client.settle([Retried(lease("b", retries=9), default_retries=1)]) == [8]


def test_an_exhausted_retry_fails_in_the_group_given(client, lease, clock):
    held = lease(retries=0)
    assert client.settle([Retried(held, group="ValueError", message="no", details={"traceback": "…"})]) == [-1]
    total, (job,) = client.failed("ValueError")
    assert (total, job.jid, job.state) == (1, "x", "failed")
    assert job.failure == {
        "group": "ValueError", "message": "no", "when": clock.now, "worker": "w", "traceback": "…",
    }  # fmt: skip


def test_last_failure_stays_during_retries(client, lease):
    lease().retry(message="first")
    assert client.job("x").failure["message"] == "first"


# Fail.


def test_failed_job_stays_in_its_group_until_put_again(client, lease, clock):
    assert lease("a").fail("g", "m") is True
    clock.tick(1)
    lease("b").fail("g", "m")
    lease("c").fail("h", "m")
    assert client.failed() == {"g": 2, "h": 1}
    assert [job.jid for job in client.failed("g")[1]] == ["b", "a"]
    total, page = client.failed("g", start=1, limit=5)
    assert (total, [job.jid for job in page]) == (2, ["a"])
    assert client.failed("g", limit=0) == (2, [])
    assert client.failed("nobody") == (0, [])
    client.queue("q").put("k", jid="c")
    assert client.failed() == {"g": 2}


def test_failed_jobs_beyond_the_number_are_dropped_and_counted(client, lease, config, server, namespace):
    config(**{"failed-history-count": 2})
    for i in range(4):
        lease(str(i)).fail("a" if i < 2 else "b", "m")
    assert client.failed() == {"b": 2}
    assert server.redis.get(f"{{{namespace}}}:failed-dropped") == b"2"


def test_failed_jobs_are_kept_for_ever_by_default(client, lease, config, clock):
    lease("a").fail("g", "m")
    clock.tick(10**8)
    lease("b").fail("g", "m")
    assert client.failed() == {"g": 2}
    config(**{"failed-history": 60})
    clock.tick(61)
    lease("c").fail("g", "m")
    assert client.failed() == {"g": 1}


# Release.


def test_release_of_a_started_job_is_an_interruption(client, lease):
    assert lease().release() is True
    assert client.job("x").interruptions == 1
    assert again(client).release(started=False) is True
    job = client.job("x")
    assert (job.state, job.interruptions, job.started, job.worker) == ("waiting", 1, False, None)


def test_delayed_release_returns_to_the_front_uncounted(client, lease, clock):
    held = lease()
    client.queue("q").put("k", jid="other")
    assert client.settle([Released(held, started=False, delay=10)]) == [True]
    job = client.job("x")
    assert (job.state, job.due_unix, job.worker, job.started) == ("scheduled", clock.now + 10, None, False)
    assert client.queue("q").length() == 1
    clock.tick(10)
    assert [held.jid for held in client.queue("q").lease("w", 2)] == ["x", "other"]
    job = client.job("x")
    assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
    assert held.complete() is False, "the first lease is void"


@pytest.mark.parametrize("delay", [10, 0.5])
def test_started_job_cannot_be_released_with_a_delay(client, lease, delay):
    held = lease()
    with pytest.raises(ValueError, match="delay"):
        client.settle([Released(held, started=True, delay=delay)])
    assert client.job("x").state == "running"
    assert held.complete() is True


# Death.


def test_deaths_go_ahead_once_then_back_off_then_fail(client, lease, clock):
    held = lease(max_deaths=7)
    delays = []
    for _ in range(6):
        state = held.died("SIGSEGV")
        job = client.job("x")
        delays.append(0 if state == "waiting" else job.due_unix - clock.now)
        clock.tick(delays[-1])
        held = again(client)
    assert delays == [0, 1, 4, 16, 60, 60]
    assert held.died("SIGKILL") == "failed"
    job = client.job("x")
    assert (client.failed(), job.deaths) == ({"died:SIGKILL": 1}, 7)
    assert (job.failure["group"], job.failure["reason"]) == ("died:SIGKILL", "SIGKILL")


@pytest.mark.parametrize("own", [None, 0, 5])
@pytest.mark.parametrize("default", [None, 0, 2])
@pytest.mark.parametrize("configured", [None, 1, 4])
def test_the_jobs_limit_beats_the_workers_beats_the_configurations(
    client, lease, config, clock, own, default, configured
):
    if configured is not None:
        config(**{"max-deaths-q": configured, "max-deaths": 99})
    limit = next(n for n in (own, default, configured, 3) if n is not None)
    held = lease(**({} if own is None else {"max_deaths": own}))
    states = []
    for _ in range(limit or 6):
        states += client.settle([Died(held, "oom", default_max_deaths=default)])
        clock.tick(60)
        if states[-1] != "failed":
            held = again(client)
    assert states == ["waiting", *["scheduled"] * 5][: len(states) - (limit > 0)] + ["failed"] * (limit > 0)


def test_the_three_counts_are_separate(client, lease):
    lease().retry()
    again(client).release()
    again(client).died("exit-3")
    job = client.job("x")
    assert (job.failures, job.interruptions, job.deaths) == (1, 1, 1)


# Unknown klass.


def test_job_of_unknown_klass_returns_and_fails_after_an_hour(client, lease, clock):
    began_unix = clock.now
    lease = lease()
    for due in (1, 2, 4, 8, 16, 26, 36):
        assert client.settle([Unknown(lease, 10)]) == ["scheduled"]
        assert client.job("x").due_unix == began_unix + due
        clock.tick(client.job("x").due_unix - clock.now)
        lease = again(client)
    client.settle([Unknown(lease, 10)])
    clock.tick(began_unix + 3_599 - clock.now)
    assert client.settle([Unknown(again(client), 1)]) == ["scheduled"]
    clock.tick(1)
    assert client.settle([Unknown(again(client), 1)]) == ["failed"]
    assert client.failed() == {"unknown-handler": 1}
    assert "'k'" in client.job("x").failure["message"] or " k" in client.job("x").failure["message"]


def test_a_worker_that_knew_the_klass_resets_the_hour(client, lease, clock):
    client.settle([Unknown(lease(), 0)])
    clock.tick(3_599)
    again(client).retry()
    clock.tick(10)
    assert client.settle([Unknown(again(client), 0)]) == ["scheduled"]


# Batches.


def test_batch_answers_each_outcome_in_its_way(client, clock):
    q = client.queue("q")
    jids = q.put_many({"klass": "k", "jid": str(i)} for i in range(6))
    held = q.lease("w", 6)
    outcomes = [
        Completed(held[0], "r"), Retried(held[1]), Failed(held[2], "g", "m"), Released(held[3], started=False),
        Died(held[4], "timeout"), Unknown(held[5], 5),
    ]  # fmt: skip
    assert client.settle(outcomes) == [True, 4, True, True, "waiting", "scheduled"]
    assert [job.state for job in client.jobs(*jids)] == [
        "complete",
        "waiting",
        "failed",
        "waiting",
        "waiting",
        "scheduled",
    ]
    assert client.settle(outcomes) == [False, None, False, False, None, None]


def test_second_outcome_of_a_lease_in_a_batch_is_stale(client, lease):
    held = lease()
    assert client.settle([Released(held), Completed(held), Retried(held)]) == [True, False, None]
    assert client.job("x").state == "waiting"


def test_a_batch_of_more_than_a_thousand_is_refused(client, lease):
    with pytest.raises(ValueError, match="outcomes"):
        client.settle([Completed(lease())] * 1_001)


def test_a_thousand_are_settled_at_once(client):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(1_000))
    assert client.settle([Retried(held, message="m") for held in q.lease("w", 1_000)]) == [4] * 1_000
    assert client.settle([Completed(held) for held in q.lease("w", 1_000)]) == [True] * 1_000


def test_outcomes_of_two_workers_are_not_settled_as_one(client):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(2))
    with pytest.raises(ValueError, match="one worker"):
        client.settle([Completed(q.lease("w")[0]), Completed(q.lease("v")[0])])


def test_an_empty_batch_is_nothing(client):
    assert client.settle([]) == []


def test_new_data_is_kept_with_a_renew(client, lease):
    held = lease()
    held.renew({"page": 2})
    assert client.job("x").data == {"page": 2}
    held.release()
    assert again(client).data == {"page": 2}


def test_a_renew_of_a_lost_lease_changes_no_data(client, lease):
    held = lease()
    client.queue("q").put("k", "new", jid="x")
    with pytest.raises(LeaseLost):
        held.renew("old")
    assert client.job("x").data == "new"


def test_data_enlarged_by_a_renewal_counts_for_the_reply_size(client):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(3))
    held = q.lease("w", 3)
    for one in held:
        one.renew(b"x" * 600_000)
    client.settle([Released(one) for one in held])
    assert len(q.lease("w", 3)) == 1


# Workers.


def test_deregistering_hands_everything_back_uncounted_and_voids_the_tokens(client, lease, keys):
    held = lease("a")
    lease("b")
    client._store.run(settling.settle("w", [], number=4))
    client._store.run(mailbox.tell("w", "cancel"))
    assert client.deregister("w") == 2
    assert held.complete() is False
    assert [(job.state, job.interruptions, job.deaths, job.started) for job in client.jobs("a", "b")] == [
        ("waiting", 0, 0, False)
    ] * 2
    assert not {key for key in keys() if key.endswith(":w")}
    assert client.deregister("w") == 0


def test_group_of_a_long_queue_name_can_be_read_and_unfailed(client):
    queue = client.queue("q" * 64)
    queue.put("k", jid="x", retries=0)
    queue.lease("w")[0].retry()
    assert client.failed("failed-retries-" + "q" * 64)[0] == 1
    assert client.unfail("failed-retries-" + "q" * 64) == 1
    assert client.job("x").state == "waiting"


def test_last_retry_without_a_message_leaves_one(client):
    client.queue("q").put("k", jid="j", retries=0)
    (lease,) = client.queue("q").lease("w")
    assert lease.retry() < 0
    failure = client.job("j").failure
    assert (failure["group"], failure["message"]) == (
        "failed-retries-q", "it was to be tried again, and its retries are spent",
    )  # fmt: skip


def test_a_message_of_the_last_try_is_kept(client):
    client.queue("q").put("k", jid="j", retries=0)
    (lease,) = client.queue("q").lease("w")
    lease.retry(message='"message":""')
    assert client.job("j").failure["message"] == '"message":""'
