"""Batches: how members are counted, when a batch has ended, and which callbacks are put, once each."""

import asyncio
from contextlib import nullcontext

import pytest

from supervisor import AsyncClient, DependencyError, LeaseholdError
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import batches, leasing, settling
from supervisor.engine.model.outcomes import LATER, Completed

CALLBACKS = {
    name: {"queue": "called", "klass": name, "data": {"n": [1, "ä"]}}
    for name in ("on_success", "on_failure", "on_complete")
}


def opened(client, id="b", **options):
    return client.batch(id, **{**CALLBACKS, **options})


def put_batch(client, n, id="b", **options):
    """Put a batch of `n` jobs and return its handle."""
    with opened(client, id, **options) as batch:
        batch.put_many("q", [{"klass": "k", "jid": f"{id}-{i}"} for i in range(n)])
    return batch


def leased(client, n=10):
    return client.queue("q").lease("w", n)


def called(client):
    """Complete the callbacks that were put, and return their names."""
    leases = client.queue("called").lease("w", 10)
    return sorted(lease.klass for lease in leases if lease.complete())


def numbers(batch):
    found = batch.look()
    return found.state, found.total, found.pending, found.complete, found.failed, found.cancelled


def end_all(client):
    for lease in leased(client):
        lease.complete()


def test_last_job_puts_the_callbacks(client):
    batch = put_batch(client, 3)
    first, second, third = leased(client)
    first.complete()
    second.complete()
    assert (numbers(batch), called(client)) == (("running", 3, 1, 2, 0, 0), [])
    third.complete()
    assert (numbers(batch), called(client)) == (("complete", 3, 0, 3, 0, 0), ["on_complete", "on_success"])


def test_callback_is_the_job_that_was_given(client):
    given = {"queue": "called", "klass": "c", "data": b"\xff\x00\n", "jid": "c-1", "priority": -3, "tags": ["a", "b"]}
    with client.batch(on_complete={**given, "retries": 2, "lane": "l", "on_parent_failure": "run"}):
        pass
    job = client.job("c-1")
    assert (job.queue, job.klass, job.data, job.priority, job.tags) == ("called", "c", b"\xff\x00\n", -3, ["a", "b"])
    assert (job.retries, job.lane, job.batch) == (2, "l", None)


def test_callbacks_wait_until_the_block_is_left(client):
    with opened(client) as batch:
        batch.put("q", "k")
        end_all(client)
        assert (numbers(batch), called(client)) == (("open", 1, 0, 1, 0, 0), [])
    assert called(client) == ["on_complete", "on_success"]


def test_empty_batch_calls_back_at_once(client):
    batch = put_batch(client, 0)
    assert (numbers(batch)[0], called(client)) == ("complete", ["on_complete", "on_success"])


def test_failed_job_calls_on_failure_and_its_retry_on_success(client):
    batch = put_batch(client, 2)
    first, second = leased(client)
    first.fail("g", "broken")
    assert called(client) == []
    second.complete()
    assert (numbers(batch), called(client)) == (("failed", 2, 0, 1, 1, 0), ["on_complete", "on_failure"])
    assert [(job.jid, job.failure["message"]) for job in batch.failures()] == [(first.jid, "broken")]
    assert batch.retry() == 1
    assert (numbers(batch), batch.failures()) == (("running", 2, 1, 1, 0, 0), [])
    end_all(client)
    assert (numbers(batch), called(client)) == (("complete", 2, 0, 2, 0, 0), ["on_success"])


def test_second_failure_calls_nobody_again(client):
    batch = put_batch(client, 1)
    for _ in range(3):
        leased(client)[0].fail("g", "m")
        batch.retry()
    assert called(client) == ["on_complete", "on_failure"]


def test_retried_job_is_pending(client):
    batch = put_batch(client, 1)
    leased(client)[0].retry(delay=0)
    assert (numbers(batch)[2], called(client)) == (1, [])
    end_all(client)
    assert called(client) == ["on_complete", "on_success"]


def test_job_that_goes_on_elsewhere_is_pending(client):
    batch = put_batch(client, 1)
    leased(client)[0].complete(next="elsewhere")
    assert numbers(batch)[2] == 1
    client.queue("elsewhere").lease("w")[0].complete()
    assert called(client) == ["on_complete", "on_success"]


def test_cancelled_job_has_ended_and_did_not_fail(client):
    batch = put_batch(client, 2)
    client.cancel("b-0")
    end_all(client)
    assert (numbers(batch), called(client)) == (("cancelled", 2, 0, 1, 0, 1), ["on_complete"])


@pytest.mark.parametrize("end", ["cancel", "unfail", "put", "move", "fail"])
def test_failed_job_is_counted_by_its_next_state(client, end):
    batch = put_batch(client, 2)
    leased(client, 1)[0].fail("g", "m")
    assert numbers(batch) == ("running", 2, 1, 0, 1, 0)
    if end == "cancel":
        client.cancel("b-0")
    elif end == "unfail":
        client.unfail("g")
    elif end == "put":
        client.queue("q").put("k", jid="b-0")
    elif end == "fail":
        client.job("b-0").fail("other", "m")
    else:
        client.job("b-0").move("q")
    pending, failed, cancelled = {"cancel": (1, 0, 1), "fail": (1, 1, 0)}.get(end, (2, 0, 0))
    assert numbers(batch) == ("running", 2, pending, 0, failed, cancelled)


def test_completed_job_that_is_put_anew_is_pending_again(client):
    batch = put_batch(client, 1)
    end_all(client)
    client.queue("q").put("k", jid="b-0")
    assert numbers(batch) == ("running", 1, 1, 0, 0, 0)
    end_all(client)
    assert (numbers(batch)[0], called(client)) == ("complete", ["on_complete", "on_success"])


def test_job_that_is_put_into_another_batch_leaves_its_own(client):
    first = put_batch(client, 2, "first")
    with client.batch("second") as second:
        second.put("q", "k", jid="first-0")
    assert (numbers(first), numbers(second)) == (("running", 2, 1, 0, 0, 1), ("running", 1, 1, 0, 0, 0))


def test_job_adds_to_its_batch_with_its_completion(client):
    batch = put_batch(client, 1)
    [lease] = leased(client)
    assert lease.batch == batch.id
    lease.complete(then=[{"queue": "q", "klass": "more", "batch": batch.id}])
    assert (numbers(batch), called(client)) == (("running", 2, 1, 1, 0, 0), [])
    end_all(client)
    assert (numbers(batch), called(client)) == (("complete", 2, 0, 2, 0, 0), ["on_complete", "on_success"])


def test_job_adds_to_no_other_batch(client):
    put_batch(client, 1)
    with opened(client, "other") as other:
        [lease] = leased(client)
        with pytest.raises(DependencyError):
            lease.complete(then=[{"queue": "q", "klass": "more", "batch": "other"}])
        assert numbers(other)[1] == 0


def test_batch_that_is_closed_or_unknown_takes_no_more(client):
    batch = put_batch(client, 1)
    with pytest.raises(LeaseholdError, match="batch b is closed"):
        batch.put("q", "k")
    with pytest.raises(LeaseholdError, match="there is no batch nowhere"):
        client.batch("nowhere").put("q", "k")
    with pytest.raises(LeaseholdError, match="there is no batch nowhere"):
        client.batch("nowhere").look()
    with pytest.raises(LeaseholdError, match="there is a batch b already"), client.batch("b"):
        pass
    assert numbers(batch) == ("running", 1, 1, 0, 0, 0)


def test_job_whose_claim_is_held_is_no_member(client):
    client.queue("q").put("k", jid="holder", unique="key")
    with opened(client) as batch:
        assert batch.put("q", "k", unique="key") == "holder"
        assert numbers(batch)[1] == 0


def test_exception_in_the_block_cancels_what_was_put(client):
    with pytest.raises(ZeroDivisionError), opened(client) as batch:
        batch.put_many("q", [{"klass": "k"}] * 2500)
        with batch.batch("inner", **CALLBACKS) as inner:
            inner.put("q", "k")
        1 / 0  # noqa: B018  # what the test is about
    assert numbers(batch) == ("cancelled", 2501, 0, 0, 0, 2501)
    assert client.queue("q").counts().waiting == 0
    assert called(client) == ["on_complete"]  # that of the inner one, whose block was left as it should be


def test_cancel_ends_what_has_not_ended(client):
    batch = put_batch(client, 4)
    first, second = leased(client, 2)
    first.complete()
    assert batch.cancel(by="ann") == 3
    assert (numbers(batch), called(client)) == (("cancelled", 4, 0, 1, 0, 3), ["on_complete"])
    assert not second.complete()
    assert client.cancelled("b-3").by == "ann"
    assert batch.cancel() == 0


def test_cancelled_jobs_may_wait_for_each_other(client):
    with client.batch("b") as batch:
        for _ in range(2):
            parent = batch.put("q", "k")
            batch.put_many("q", [{"klass": "k", "depends": [parent], "on_parent_failure": "wait"}] * 900)
    assert batch.cancel() == 1802
    assert numbers(batch) == ("cancelled", 1802, 0, 0, 0, 1802)


def test_old_members_that_wait_for_each_other_are_cancelled(client, clock):
    with client.batch("b") as batch:
        parents = batch.put_many("q", [{"klass": "k"}] * 1200)
        clock.tick(1)
        batch.put_many("q", [{"klass": "k", "depends": [parent]} for parent in parents])
    for _ in range(7):  # sweeps look at the parents
        clock.tick(60)
        client.sweep()
    assert batch.cancel() == 2400
    assert numbers(batch) == ("cancelled", 2400, 0, 0, 0, 2400)


def test_nested_batch_ends_with_its_own_members(client):
    with opened(client, "outer") as outer, outer.batch("middle") as middle, middle.batch("inner") as inner:
        inner.put("q", "k")
    assert [numbers(one)[:3] for one in (outer, middle, inner)] == [("running", 1, 1)] * 3
    leased(client)[0].fail("g", "m")
    assert [numbers(one) for one in (outer, middle, inner)] == [("failed", 1, 0, 0, 1, 0)] * 3
    assert called(client) == ["on_complete", "on_failure"]
    assert outer.retry() == 1
    assert [numbers(one)[:3] for one in (outer, middle, inner)] == [("running", 1, 1)] * 3
    end_all(client)
    assert [numbers(one)[0] for one in (outer, middle, inner)] == ["complete"] * 3
    assert called(client) == ["on_success"]


def test_batches_are_nested_ten_deep(client):
    outer = client.batch()
    outer.__enter__()
    for _ in range(10):
        outer = outer.batch()
        outer.__enter__()
    with pytest.raises(LeaseholdError, match="nested more than 10 deep"), outer.batch():
        pass


def test_retry_leaves_out_what_cannot_be_put_back(client):
    with client.batch("b") as batch:
        batch.put_many("q", [{"klass": "k", "jid": f"b-{i}", "unique": f"{i}"} for i in range(3)])
    for lease in leased(client):
        lease.fail("g", "m")
    client.queue("q").put("k", unique="1")
    assert batch.retry() == 2
    assert numbers(batch) == ("running", 3, 2, 0, 1, 0)


def test_dropped_failure_stays_counted(client):
    client.config.set("failed-history-count", 1)
    batch = put_batch(client, 3)
    for lease in leased(client):
        lease.fail("g", "m")
    client.sweep()
    assert (numbers(batch), len(batch.failures())) == (("failed", 3, 0, 0, 3, 0), 1)


def test_completed_jobs_need_not_be_kept(client):
    client.config.set("jobs-history", 0)
    batch = put_batch(client, 2)
    end_all(client)
    assert numbers(batch) == ("complete", 2, 0, 2, 0, 0)


def test_dead_and_expired_jobs_have_failed(client, clock):
    with client.batch("b") as batch:
        batch.put("q", "k", max_deaths=1, at_most_once=True)
        batch.put("later", "k", expires=5)
    client.queue("q").lease("w", ttl=10)
    clock.now += 1000
    client.sweep()
    assert numbers(batch) == ("failed", 2, 0, 0, 2, 0)


@pytest.fixture
def idle_queue(client):
    """Use the queue of the callbacks, and leave it without jobs."""
    client.queue("called").put("k")
    [lease] = client.queue("called").lease("w")
    lease.complete()


@pytest.mark.parametrize("end", ["expires", "lost", "repair"])
def test_callback_of_a_sweep_puts_an_idle_queue_to_use(client, clock, idle_queue, end):
    batch = opened(client)
    with nullcontext(batch.__enter__()) if end == "repair" else batch:
        batch.put("q", "k", **{"expires": {"expires": 10}, "lost": {"max_deaths": 1}}.get(end, {}))
    if end == "lost":
        leased(client)
    elif end == "repair":
        end_all(client)
        clock.tick(3601)
        client.check(repair=True)
    clock.tick(40)
    client.sweep()
    assert numbers(batch)[0] == ("complete" if end == "repair" else "failed")
    assert client.check() == []
    assert len(client.queue("called").lease("lost", 10)) == 2
    clock.tick(100)
    assert client.sweep() == 2


def test_callback_of_a_sweep_keeps_a_queue_that_was_to_be_forgotten(client, clock, idle_queue):
    client.queue("called").lane("l").weight(2)
    client.queue("called").lane("l").weight(1)
    with client.batch(on_failure={"queue": "called", "klass": "on_failure", "lane": "l"}) as batch:
        batch.put("q", "k", expires=86400 + 10)
    client.sweep()
    clock.tick(86400 + 20)
    client.sweep()
    assert client.check() == []
    assert (list(client.queues()), called(client)) == (["called", "q"], ["on_failure"])


def test_ended_batches_are_kept_for_a_week(client, clock):
    put_batch(client, 1)
    end_all(client)
    clock.now += 7 * 86400 - 1
    client.sweep()
    assert [one.id for one in client.batches()] == ["b"]
    clock.now += 2
    client.sweep()
    assert client.batches() == []
    with pytest.raises(LeaseholdError, match="more than seven days ago"):
        client.batch("b").look()


def test_failed_job_of_a_forgotten_batch_can_be_retried(client, clock):
    client.config.set("failed-history", 0)
    put_batch(client, 1)
    leased(client)[0].fail("g", "m")
    clock.now += 8 * 86400
    client.sweep()
    assert client.unfail("g") == 1
    end_all(client)
    assert client.check() == []


def test_member_that_an_older_release_has_ended_is_found(client, clock, server, namespace):
    batch = put_batch(client, 3)
    prefix = f"{{{namespace}}}:"
    for jid in ("b-0", "b-1"):  # a script that knows no batches passes over the field
        server.redis.hdel(f"{prefix}job:{jid}", "batch")
    leases = leased(client)
    leases[0].complete()
    leases[1].fail("g", "m")
    leases[2].complete()
    for jid in ("b-0", "b-1"):
        server.redis.hset(f"{prefix}job:{jid}", "batch", "b")
    assert (numbers(batch)[2], called(client)) == (2, [])
    clock.now += 60
    client.sweep()
    assert (numbers(batch), called(client)) == (("failed", 3, 0, 2, 1, 0), ["on_complete", "on_failure"])


def test_sweeps_come_to_each_member_that_an_older_release_has_ended(client, clock, server, namespace):
    batch = put_batch(client, 500)
    keys = [f"{{{namespace}}}:job:b-{number}" for number in range(500)]
    for key in keys:
        server.redis.hdel(key, "batch")
    client.settle([Completed(lease) for lease in leased(client, 500)])
    for key in keys:
        server.redis.hset(key, "batch", "b")
    for _ in range(5):
        clock.tick(60)
        client.sweep()
    assert numbers(batch) == ("complete", 500, 0, 500, 0, 0)


def test_check_counts_a_member_back_that_an_older_client_has_put_back(client, server, namespace):
    batch = put_batch(client, 2)
    for lease in leased(client):
        fail(lease)
    key = f"{{{namespace}}}:job:b-0"
    server.redis.hdel(key, "batch")
    client.job("b-0").unfail()
    server.redis.hset(key, "batch", "b")
    assert {one.kind for one in client.check()} == {"uncounted-member"}
    client.check(repair=True)
    client.sweep()
    assert numbers(batch) == ("running", 2, 1, 0, 1, 0)
    end_all(client)
    assert numbers(batch) == ("failed", 2, 0, 1, 1, 0)


def test_list_has_those_that_have_not_ended_first(client, clock):
    for id in "abcd":
        clock.now += 1
        put_batch(client, 0 if id in "ac" else 1, id, description=f"the {id}")
    client.batch("open").__enter__()
    assert [(one.id, one.state, one.description) for one in client.batches()] == [
        ("b", "running", "the b"), ("d", "running", "the d"), ("open", "open", ""),
        ("c", "complete", "the c"), ("a", "complete", "the a"),
    ]  # fmt: skip
    assert [one.id for one in client.batches(2, 2)] == ["open", "c"]
    assert client.batch_counts() == (3, 1, 0, 2)
    client.batch("open").cancel()


def test_sweep_after_the_repair_of_an_open_batch_calls_back(client, clock):
    opened(client).__enter__().put("q", "k")
    end_all(client)
    clock.tick(3601)
    client.sweep()  # it looks at the batch, and would do so again a minute later
    client.check(repair=True)
    client.sweep()
    assert called(client) == ["on_complete", "on_success"]


def test_repaired_batch_that_has_ended_runs_no_more(client, server, namespace):
    with opened(client) as batch:
        batch.put("q", "k")
    end_all(client)
    server.redis.hset(f"{{{namespace}}}:batch:b", "total", 99)
    assert [(one.kind, one.subject) for one in client.check(repair=True)] == [("wrong-count", "batch:b")]
    client.sweep()
    assert client.batch_counts().running == 0
    assert [each.id for each in client.batches()] == ["b"]
    assert client.check() == []


def test_check_closes_a_batch_that_nobody_leaves(client, clock):
    batch = opened(client)
    batch.__enter__().put("q", "k")
    end_all(client)
    clock.now += 3599
    assert client.check() == []
    clock.now += 2
    assert client.batch_counts().open_for_long == 1
    assert [(one.kind, one.subject) for one in client.check()] == [("open-batch", "b")]
    client.check(repair=True)
    client.sweep()
    assert (numbers(batch)[0], called(client)) == ("complete", ["on_complete", "on_success"])
    assert client.check() == []


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda redis, p: redis.zrem(f"{p}batchjobs:b", "b-0"), "uncounted-member"),
        (lambda redis, p: redis.hset(f"{p}batch:b", "complete", 7), "wrong-count"),
        (lambda redis, p: redis.hset(f"{p}batch:b", "failed", "nan"), "foreign-value"),
        (lambda redis, p: redis.zrem(f"{p}batches", "b"), "unlisted-batch"),
        (lambda redis, p: redis.zadd(f"{p}batches", {"ghost": 1}), "orphan"),
        (lambda redis, p: redis.zadd(f"{p}batches-open", {"ghost": 1}), "orphan"),
        (lambda redis, p: redis.zadd(f"{p}batchfailed:ghost", {"j": 1}), "orphan"),
    ],
)
def test_damage_is_found_and_repaired(client, server, namespace, damage, kind):
    put_batch(client, 2)
    damage(server.redis, f"{{{namespace}}}:")
    assert kind in {one.kind for one in client.check()}
    client.check(repair=True)
    assert client.check() == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"on_success": "welcome"}, TypeError),
        ({"on_success": {"klass": "k"}}, TypeError),
        ({"on_failure": {"queue": "q", "klass": ""}}, ValueError),
        ({"on_failure": {"queue": "q", "klass": "k", "colour": 1}}, TypeError),
        ({"on_complete": {"queue": "q", "klass": "k", "data": object()}}, TypeError),
        ({"on_complete": {"queue": "q", "klass": "k", "data": "x" * 65536}}, ValueError),
        ({"on_complete": {"queue": "q", "klass": "k", "delay": 5}}, ValueError),
        ({"on_complete": {"queue": "q", "klass": "k", "depends": ["j"]}}, ValueError),
        ({"on_complete": {"queue": "q", "klass": "k", "unique": True}}, ValueError),
        ({"description": "x" * 1025}, ValueError),
        ({"description": 7}, TypeError),
        ({"id": ""}, ValueError),
        ({"id": 7}, TypeError),
    ],
)
def test_bad_batch_is_refused_before_anything_is_written(client, server, namespace, wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        client.batch(**wrong)
    assert server.dump(namespace) == {}


def test_settle_sent_again_calls_nobody_again(client):
    put_batch(client, 1)
    calls = calls_of(client)
    calls.call(leasing.resume, "w", 1, [])
    [lease] = leased(client)
    for _ in range(2):
        assert calls.call(settling.settle, "w", [Completed(lease)], number=2) == [True]
    assert called(client) == ["on_complete", "on_success"]


@pytest.mark.parametrize("call", ["look", "failures", "cancel", "retry", "pause", "resume"])
def test_calls_on_an_unknown_batch_name_it_and_change_nothing(client, server, namespace, call):
    with pytest.raises(LeaseholdError, match="there is no batch nowhere"):
        getattr(client.batch("nowhere"), call)()
    assert server.dump(namespace) == {}


@pytest.mark.parametrize("call", ["look", "failures", "cancel", "retry", "pause", "resume"])
def test_async_calls_on_an_unknown_batch_name_it(server, namespace, call):
    async def ask():
        async with AsyncClient(server.url, namespace) as client:
            await getattr(client.batch("nowhere"), call)()

    with pytest.raises(LeaseholdError, match="there is no batch nowhere"):
        asyncio.run(ask())


def test_put_without_the_block_names_the_block(client):
    batch = opened(client)
    for put in (lambda: batch.put("q", "k"), lambda: batch.put_many("q", [{"klass": "k"}]), batch.batch().__enter__):
        with pytest.raises(LeaseholdError, match=r"there is no batch b: .* block, with client\.batch\(…\) as batch"):
            put()


@pytest.mark.parametrize(("given", "missing"), [({"klass": "k"}, "queue"), ({"queue": "q"}, "klass")])
def test_callback_without_queue_or_klass_is_told_which(client, given, missing):
    with pytest.raises(TypeError, match=f"on_success must be a job to put with its {missing}: "):
        client.batch(on_success=given)


def test_retry_passes_over_a_nested_batch_that_is_forgotten(client, clock):
    with opened(client, "outer") as outer:
        with outer.batch("inner") as inner:
            inner.put("q", "k")
        outer.put("q", "k", jid="failed")
        fail(*leased(client, 1))
        fail(*leased(client, 1))
        clock.tick(8 * 86400)
        client.sweep()
        with pytest.raises(LeaseholdError, match="there is no batch inner"):
            inner.look()
        assert outer.retry() == 1
        end_all(client)


def test_cancel_passes_over_a_nested_batch_that_is_lost(client, clock, server, namespace):
    with opened(client, "outer") as outer:
        outer.batch("inner").__enter__()
        outer.put("q", "k")
    for key in ("batches", "batches-open"):
        server.redis.zrem(f"{{{namespace}}}:{key}", "inner")
    server.redis.delete(f"{{{namespace}}}:batch:inner")
    assert outer.cancel() == 1
    clock.tick(61)
    client.sweep()
    assert outer.look().state == "cancelled"


def test_exception_in_the_block_of_a_batch_that_is_gone_is_raised(client, server, namespace):
    with pytest.raises(ZeroDivisionError), opened(client):
        server.redis.delete(f"{{{namespace}}}:batch:b")
        _ = 1 / 0
    client.check(repair=True)


def fail(lease):
    lease.fail("ValueError", "no")


def test_failed_job_of_a_forgotten_batch_is_no_member_of_the_next_one(client, clock):
    put_batch(client, 1)
    fail(*leased(client))
    clock.tick(8 * 86400)
    client.sweep()
    with opened(client) as batch:
        batch.put("q", "k", jid="fresh")
    fail(*leased(client))
    assert client.job("b-0").unfail()
    (lease,) = leased(client)
    lease.complete()
    assert numbers(batch) == ("failed", 1, 0, 0, 1, 0)


def test_failed_job_of_a_forgotten_batch_can_be_put_into_the_next_one(client, clock):
    put_batch(client, 1)
    fail(*leased(client))
    clock.tick(8 * 86400)
    client.sweep()
    with opened(client) as batch:
        batch.put("q", "k", jid="b-0")
    assert numbers(batch) == ("running", 1, 1, 0, 0, 0)
    end_all(client)
    assert numbers(batch) == ("complete", 1, 0, 1, 0, 0)


def test_retry_puts_each_failed_job_back_once(client, clock, monkeypatch):
    batch = put_batch(client, 10)
    for lease in leased(client):
        fail(lease)
    clock.tick(1)
    monkeypatch.setattr(batches, "MOST", 3)
    put_back = batches.retry("b", lambda: clock.now)
    answer, n = None, 0
    while True:  # a worker fails each of them at once
        try:
            answer = calls_of(client).run(put_back.send(answer))
        except StopIteration as ended:
            n = ended.value
            break
        clock.tick(1)
        for lease in leased(client):
            fail(lease)
    assert n == 10
    assert numbers(batch)[4] == 10


def test_batches_are_forgotten_as_fast_as_new_ones_end(client, clock):
    for number in range(40):
        put_batch(client, 0, f"old-{number}")
    clock.tick(8 * 86400)
    for number in range(20):
        put_batch(client, 0, f"new-{number}")
    assert client.batch_counts().ended == 20


def test_persistent_job_is_in_no_batch(client):
    with opened(client) as batch, pytest.raises(ValueError, match="persistent excludes batch"):
        batch.put("q", "k", persistent=True)
    assert batch.look().total == 0


def jids(leases):
    return sorted(lease.jid for lease in leases)


def test_paused_batch_has_no_member_leased_before_resume(client):
    batch = put_batch(client, 3)
    client.queue("q").put("k", jid="other")
    (running,) = leased(client, 1)
    assert batch.pause(by="kim")
    record = batch.look()
    assert (record.state, record.paused, record.paused_by) == ("running", True, "kim")
    assert jids(leased(client)) == ["other"]
    assert client.queue("q").counts().parked == 2
    assert running.complete(then=[{"queue": "q", "klass": "k", "jid": "b-new", "batch": "b"}])
    assert leased(client) == []
    assert numbers(batch) == ("running", 4, 3, 1, 0, 0)
    assert client.check() == []
    assert batch.resume()
    assert jids(leased(client)) == ["b-1", "b-2", "b-new"]
    assert not batch.look().paused


def test_pause_and_resume_return_whether_anything_changed(client):
    batch = put_batch(client, 1)
    assert [batch.resume(), batch.pause(), batch.pause(), batch.resume(), batch.resume()] == [
        False, True, False, True, False,
    ]  # fmt: skip
    for act in (client.batch("nowhere").pause, client.batch("nowhere").resume):
        with pytest.raises(LeaseholdError, match="there is no batch nowhere"):
            act()


def test_paused_members_come_back_in_their_order(client, clock):
    with client.batch("b") as batch:
        for n, options in enumerate([{}, {"priority": -1}, {"lane": "x"}, {}]):
            batch.put("q", "k", jid=f"b-{n}", **options)
    (first,) = leased(client, 1)
    batch.pause()
    first.release()
    assert leased(client) == []
    batch.resume()
    order = [lease.jid for lease in leased(client)]
    assert order[0] == first.jid
    assert [jid for jid in order if jid in {"b-1", "b-0", "b-3"}] == ["b-1", "b-0", "b-3"]
    assert jids(leased(client)) == []


def test_pause_of_a_batch_holds_back_its_member_batches(client):
    with opened(client, "outer") as outer, outer.batch("middle") as middle, middle.batch("inner") as inner:
        inner.put("q", "k", jid="j")
    outer.pause()
    inner.pause()
    assert leased(client) == []
    outer.resume()
    assert leased(client) == []
    assert client.check() == []
    outer.pause()
    inner.resume()
    assert leased(client) == []
    outer.resume()
    assert jids(leased(client)) == ["j"]


def test_paused_member_with_limits_takes_no_slot(client):
    client.limit("l", running=1)
    with client.batch("b") as batch:
        batch.put("q", "k", jid="b-0", limit="l")
        batch.put("q", "k", jid="b-1", limit=("l", "m"))
    batch.pause()
    client.queue("q").put("k", jid="other", limit="l")
    assert jids(leased(client)) == ["other"]
    batch.resume()
    assert leased(client) == []
    client.limit("l", running=3)
    assert jids(leased(client)) == ["b-0", "b-1"]


@pytest.mark.parametrize("act", ["cancel", "fail", "move", "put", "priority", "expire", "delete"])
def test_parked_member_of_a_paused_batch_can_be_acted_on(client, clock, act):
    with client.batch("b") as batch:
        batch.put("q", "k", jid="b-0", expires=10)
    batch.pause()
    leased(client)
    job = client.job("b-0")
    assert (job.state, job.parked) == ("waiting", True)
    if act == "cancel":
        job.cancel()
    elif act == "fail":
        job.fail("g", "m")
    elif act == "move":
        job.move("p")
    elif act == "put":
        client.queue("q").put("k", jid="b-0", lane="x")
    elif act == "priority":
        job.set_priority(7)
    elif act == "delete":
        client.queue("q").delete()
    else:
        clock.tick(11)
        client.sweep()
    pending = {"move": 1, "put": 1, "priority": 1}.get(act, 0)
    assert numbers(batch)[2] == pending
    batch.resume()
    assert len(client.lease("w", ["q", "p"], 10)) == pending


def test_paused_batch_is_cancelled(client):
    batch = put_batch(client, 3)
    batch.pause()
    leased(client)
    assert batch.cancel() == 3
    assert (numbers(batch), called(client)) == (("cancelled", 3, 0, 0, 0, 3), ["on_complete"])


def test_retried_members_of_a_paused_batch_wait(client):
    batch = put_batch(client, 2)
    for lease in leased(client):
        fail(lease)
    batch.pause()
    assert batch.retry() == 2
    assert leased(client) == []
    batch.resume()
    end_all(client)
    assert numbers(batch)[0] == "complete"


@pytest.mark.sampled(2)
def test_resume_reaches_each_of_many_queues(client, clock):
    queues = [f"q{n}" for n in range(2500)]
    with client.batch("b") as batch:
        for queue in queues:
            batch.put(queue, "k")
    batch.pause()
    for at in range(0, 2500, 500):
        assert client.lease("w", queues[at : at + 500], 1000) == []
    batch.resume()
    assert sum(len(client.lease("w", queues[at : at + 500], 1000)) for at in range(0, 2500, 500)) == 2500


def test_check_frees_what_a_pause_holds_back_that_is_over(client, server, namespace):
    batch = put_batch(client, 2)
    batch.pause()
    leased(client)
    assert client.check() == []
    server.redis.hdel(f"{{{namespace}}}:batch:b", "paused")
    assert leased(client) == []
    client.check(repair=True)
    assert len(leased(client)) == 2


#: Callbacks of a batch with as much data and as many tags as they may have.
LARGE = {
    name: {"queue": "called", "klass": name, "data": "x" * 65000, "tags": [f"t{n}" for n in range(100)]}
    for name in ("on_success", "on_complete")
}


def test_settle_that_ends_many_batches_leaves_some_outcomes_to_the_next_call(client):
    calls, n, number_of_calls = calls_of(client), 60, 0
    for number in range(n):
        put_batch(client, 1, f"b{number}", **LARGE)
    left = leased(client, n)
    while left:
        answers = calls.call(settling.settle, "w", [Completed(lease) for lease in left])
        assert set(answers) <= {True, LATER}
        assert 0 < answers.count(True) <= 30
        left = left[answers.count(True) :]
        number_of_calls += 1
    assert number_of_calls > 2
    assert client.batch_counts().running == 0
    assert client.queue("called").counts().waiting == 2 * n


def test_other_ends_of_many_batches_are_left_to_sweeps(client):
    for number in range(400):
        put_batch(client, 1, f"b{number}", on_success=None, on_failure=None)
    client.cancel(*(f"b{number}-0" for number in range(400)))
    assert 0 < client.batch_counts().running < 400
    assert client.check() == []
    client.sweep()
    assert client.batch_counts().running == 0
    assert client.queue("called").counts().waiting == 400


def test_many_nested_ends_are_left_to_sweeps(client):
    outer = client.batch("outer", on_complete=LARGE["on_complete"])
    with outer:
        for number in range(40):
            with outer.batch(f"b{number}", **LARGE) as inner:
                inner.put("q", "k")
    client.settle([Completed(lease) for lease in leased(client, 40)])
    client.sweep()
    assert numbers(outer) == ("complete", 40, 0, 40, 0, 0)
    assert client.queue("called").counts().waiting == 81
