"""Concerns, which wait for a person or have gone wrong unseen, are found in bounded work."""

import itertools

import pytest

from supervisor import Concerns, QueueConcerns
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import concerns, leasing, workers

NUMBERS = itertools.count(1)


@pytest.fixture
def q(client):
    return client.queue("q")


def serve(client, *queues):
    """Be one more living worker, of these queues."""
    worker = f"worker-{next(NUMBERS)}"
    calls_of(client).call(leasing.resume, worker, 1, [])
    assert calls_of(client).call(workers.report_skills, worker, ["k"], queues)


def of_queue(client, queue="q"):
    return client.concerns().queues.get(queue)


def test_nothing_is_wrong_with_what_is_served(client, q):
    serve(client, "q")
    q.put("k")
    q.recur("k", every="1h")
    found = client.concerns()
    assert (found.queues, found.failed, found.groups, found.closed_limits) == ({}, 0, {}, ())
    assert found.memory is not None
    assert found.memory.used_bytes > 0
    assert (found.memory.most_bytes, found.memory.evicted) == (0, 0)


@pytest.mark.parametrize("options", [{}, {"lane": "a"}, {"delay": 10}])
def test_queue_with_jobs_is_unserved_until_a_live_worker_serves_the_queue(client, q, clock, options):
    q.put("k", **options)
    clock.tick(options.get("delay", 0))
    serve(client, "other")
    assert of_queue(client) == QueueConcerns(unserved=True, parked_s=None, late=0, failed_recurrences=0)
    serve(client, "other", "q")
    assert of_queue(client) is None
    clock.tick(61)
    assert of_queue(client).unserved, "no worker was seen for a minute"


def test_worker_of_more_queues_than_its_report_holds_counts_for_all(client, q):
    q.put("k")
    serve(client, *(f"many-{n}" for n in range(1000)))
    assert of_queue(client) is None


def test_job_with_a_delay_does_not_wait_for_a_worker(client, q):
    q.put("k", delay="1h")
    assert client.concerns().queues == {}


def test_parked_job_and_closed_limit_are_found(client, q, clock):
    serve(client, "q")
    client.limit("smtp", running=0)
    client.limit("idle", running=0)
    q.put("k", limit="smtp")
    assert q.lease("w") == []
    clock.tick(30)
    found = client.concerns()
    assert found.queues["q"].parked_s == 30
    assert found.closed_limits == ("smtp",)


def test_recurrence_that_does_not_come_is_late_after_a_minute(client, q, clock):
    serve(client, "q")
    q.recur("k", every="10s", jid="tick")
    clock.tick(59)
    assert of_queue(client) is None, "its first time has come with the call"
    serve(client, "other")
    clock.tick(2)
    assert of_queue(client).late == 1


def test_recurrence_whose_last_job_failed_is_found_until_the_next_completes(client, q, clock):
    q.recur("k", every="10s", jid="tick")
    serve(client, "q")
    (lease,) = q.lease("w")
    lease.fail("ValueError", "no")
    assert of_queue(client).failed_recurrences == 1
    assert client.concerns().groups == {"ValueError": 1}
    clock.tick(10)
    (lease,) = q.lease("w")
    lease.complete()
    assert of_queue(client) is None
    assert client.concerns().failed == 1


def test_many_queues_are_read_in_pages(client, q):
    client.queue("first").put_many({"klass": "k", "jid": f"j{n}"} for n in range(3))
    for n in range(1100):
        client.queue(f"q-{n}").put("k")
    page, following = calls_of(client).call(concerns.read, 0)
    assert following is not None
    assert len(client.concerns().queues) == 1101
    assert 100 < len(page.queues) <= 1000
    assert isinstance(page | Concerns(), Concerns)


def test_only_the_groups_that_changed_last_are_named(client, q, clock):
    for n in range(55):
        clock.tick(1)
        q.put("k")
        (lease,) = q.lease("w")
        lease.fail(f"group-{n}", "no")
    found = client.concerns()
    assert (found.failed, len(found.groups)) == (55, 50)
    assert "group-54" in found.groups
    assert "group-0" not in found.groups


def test_batch_whose_block_was_not_left_is_counted_after_an_hour(client, clock):
    batch = client.batch()
    batch.__enter__()
    clock.tick(3599)
    assert client.concerns().open_batches == 0
    clock.tick(1)
    assert client.concerns().open_batches == 1
    batch.__exit__(None, None, None)
    assert client.concerns().open_batches == 0


def test_batch_is_counted_until_its_end(client):
    with client.batch() as batch:
        batch.put("q", "k")
        assert client.concerns().running_batches == 1
    assert client.concerns().running_batches == 1
    batch.cancel()
    assert client.concerns().running_batches == 0
