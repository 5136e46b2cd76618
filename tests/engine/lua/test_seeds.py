"""The examples in the documents of the seeds: each snippet and flow, with our calls.

Where this queue goes further (leases of one owner, atomic steps), the test asserts what this queue does.
"""

import json
import threading
import uuid
from collections import Counter

import pytest

from supervisor.engine.commands import deleting
from supervisor.engine.model.errors import LeaseLost
from supervisor.engine.model.outcomes import Completed, Returned

HEARTBEAT, GRACE = 30, 5


# redis-work-queue.


def test_added_item_is_queued_or_processing_until_completed(client):
    q = client.queue("items")
    item = str(uuid.uuid4())
    assert q.add("item", b"arbitrary bytes \x00\xff", jid=item) is True
    assert (q.length(), q.counts().running) == (1, 0)
    (job,) = q.lease("worker")
    assert (q.length(), q.counts().running) == (0, 1)
    assert (job.jid, job.data) == (item, b"arbitrary bytes \x00\xff")
    job.complete()
    assert (q.length(), q.counts().running) == (0, 0)


def test_item_with_a_known_id_counts_once(client):
    """The reported queue length, which may be used for autoscaling, is accurate; a lease takes one go."""
    q = client.queue("items")
    assert [q.add("item", 1, jid="equal") for _ in range(3)] == [True, False, False]
    assert q.length() == 1
    (job,) = q.lease("worker", 9)
    assert q.add("item", 1, jid="equal") is False
    job.complete()
    assert q.lease("worker", 9) == []


def test_new_items_enter_at_one_end_and_leave_at_the_other(client):
    q = client.queue("items")
    for i in range(5):
        q.add("item", i, jid=str(i))
    assert [q.lease("worker")[0].data for _ in range(5)] == [0, 1, 2, 3, 4]


def test_handling_errors_by_not_calling_complete(client, clock):
    """while True: job = work_queue.lease(100); if should_try_again_later: continue; …; work_queue.complete(job)"""
    q = client.queue("items")
    q.put_many({"klass": "item", "data": i, "jid": str(i)} for i in range(3))
    done, later = [], {1}
    for _ in range(4):
        for job in q.lease("worker", ttl=100):
            if job.data in later:
                later.remove(job.data)
                continue
            done.append(job.data)
            assert job.complete() is True
        if len(done) == 2:
            clock.tick(100 + GRACE)
    assert done == [0, 2, 1]


def test_error_without_retry_is_kept_and_the_job_not_rerun(client, clock):
    q = client.queue("items")
    q.put("item", jid="bad")
    q.lease("worker")[0].fail("invalid", "no such address")
    clock.tick(1000)
    assert q.lease("worker") == []
    assert client.job("bad").failure["message"] == "no such address"


def test_the_result_of_an_item_is_kept_with_the_item(client):
    q = client.queue("items")
    q.put("item", jid="j")
    q.lease("worker")[0].complete({"answer": 42})
    assert client.wait("j", 0) == {"answer": 42}


def test_but_i_never_want_my_job_to_run_more_than_once(client, clock):
    """job = queue.lease(1000); if queue.complete(job): foo(job)"""
    q = client.queue("items")
    q.put("item", jid="j")
    ran = []

    def work(worker):
        for job in q.lease(worker):
            yield  # the others come in between
            if job.complete():
                ran.append(worker)

    workers = []
    for name in ("slow", "late"):
        workers.append(work(name))
        next(workers[-1])
        clock.tick(HEARTBEAT + GRACE)
    for worker in workers:
        list(worker)
    assert ran == ["late"]
    clock.tick(1000)
    assert q.lease("another") == []


def test_complete_returns_true_for_only_one_worker(client, clock):
    q = client.queue("items")
    q.put("item")
    leases = []
    for worker in ("a", "b"):
        leases += q.lease(worker)
        clock.tick(HEARTBEAT + GRACE)
    assert [job.complete() for job in leases + leases] == [False, True, False, False]


def test_light_cleaning_returns_abandoned_items_to_the_queue(client, clock):
    """Expired leases count at once, without a cleaner process."""
    q = client.queue("items")
    q.put_many({"klass": "item"} for _ in range(10))
    q.lease("dead", 7)
    assert (client.sweep(), q.length()) == (0, 3)
    clock.tick(HEARTBEAT + GRACE)
    assert (q.counts().stalled, q.length()) == (7, 10)
    assert (client.sweep(), q.length()) == (7, 10)
    assert (q.counts().stalled, q.counts().running) == (0, 0)


def test_without_any_cleaning_the_next_lease_takes_abandoned_items(client, clock):
    q = client.queue("items")
    q.put("item", jid="j")
    q.lease("dead")
    clock.tick(HEARTBEAT + GRACE)
    assert [job.jid for job in q.lease("alive")] == ["j"]


def test_deep_cleaning_finds_items_in_no_queue(client, server, namespace):
    q = client.queue("items")
    q.put_many({"klass": "item", "jid": f"j{i}"} for i in range(5))
    server.redis.delete(f"{{{namespace}}}:queue:items:waiting")
    assert q.length() == 0
    assert len(client.check(repair=True)) == 5
    assert client.check() == []
    assert sorted(job.jid for job in q.lease("worker", 9)) == [f"j{i}" for i in range(5)]


def test_item_without_data_is_removed_when_met(client, server, namespace):
    q = client.queue("items")
    q.put_many({"klass": "item", "jid": jid} for jid in ("gone", "good"))
    server.redis.delete(f"{{{namespace}}}:job:gone", f"{{{namespace}}}:data:gone")
    assert [job.jid for job in q.lease("worker", 9)] == ["good"]
    assert q.length() == 0
    client.check(repair=True)


def test_leased_items_include_abandoned_ones(client, clock):
    q = client.queue("items")
    q.put_many({"klass": "item"} for _ in range(5))
    q.lease("alive", 2, ttl=1000)
    q.lease("dead", 1)
    clock.tick(HEARTBEAT + 1)
    counts = q.counts()
    assert (counts.waiting, counts.running, counts.stalled) == (2, 2, 1)


def test_a_blocking_lease_waits_for_the_next_item(live):
    q = live.queue("items")
    found = []
    worker = threading.Thread(target=lambda: found.extend(q.lease("worker", block=10)))
    worker.start()
    q.put("item", "data")
    worker.join(10)
    assert [job.data for job in found] == ["data"]


# Worqr.


def test_enqueue_takes_a_string_unchanged(client):
    """worqr.enqueue('<queue name>', '<task>') has no envelope."""
    q = client.queue("Q1")
    q.put("task", b"<task>")
    (process,) = q.lease("W1")
    assert (process.raw, process.data) == (b"<task>", b"<task>")


def test_cancel_tasks_also_cancels_running_instances(client):
    q = client.queue("Q1")
    q.put_many(
        {"klass": "task", "data": data, "jid": f"{data.decode()}-{i}"} for i in range(3) for data in (b"T0", b"T1")
    )
    in_process = q.lease("W1", 2)
    assert sorted(q.cancel(b"T1")) == ["T1-0", "T1-1", "T1-2"]
    assert [process.complete() for process in in_process] == [True, False]
    assert [process.data for process in q.lease("W2", 9)] == [b"T0", b"T0"]
    assert q.cancel(b"T1") == []


def test_worker_asks_for_work_and_is_notified(live):
    """worqr.on('<queue name>', …) without polling: a lease that blocks."""
    q = live.queue("Q1")
    done = []

    def work():
        for _ in range(3):
            for process in q.lease("W1", block=10):
                done.append(process.data)
                process.complete()

    worker = threading.Thread(target=work)
    worker.start()
    for i in range(3):
        q.put("task", i)
    worker.join(20)
    assert done == [0, 1, 2]


def test_do_work_until_there_is_none(client):
    """const process = await worqr.dequeue(…); if (process) { …; await worqr.finishProcess(process.id); doWork(); }"""
    q = client.queue("Q1")
    q.put_many({"klass": "task", "data": "same"} for _ in range(4))
    finished = set()
    while processes := q.lease("W1"):
        (process,) = processes
        assert process.complete() is True
        finished.add(process.jid)
    assert len(finished) == 4  # a payload need not be unique: the id is


def test_stop_process_returns_the_job_to_the_front(client):
    q = client.queue("Q1")
    q.put_many({"klass": "task", "data": i} for i in range(3))
    (process,) = q.lease("W1")
    process.release()
    assert [it.data for it in q.lease("W1", 3)] == [0, 1, 2]


def test_fail_worker_returns_all_its_work_to_the_front(client):
    for name in ("Q1", "Q2"):
        client.queue(name).put_many({"klass": "task", "data": f"{name}-T{i}"} for i in range(3))
    client.lease("W1", ["Q1", "Q2"], 5)
    assert client.deregister("W1") == 5
    assert [worker.name for worker in client.workers()] == []
    data = [process.data for process in client.lease("W2", ["Q1", "Q2"], 9)]
    assert data == ["Q1-T0", "Q1-T1", "Q1-T2", "Q2-T0", "Q2-T1", "Q2-T2"]


def test_worker_without_heartbeat_is_failed_by_its_peers(client, clock):
    """Peer-supervised: a worker that asks for work takes over."""
    q = client.queue("Q1")
    q.put_many({"klass": "task", "data": i} for i in range(3))
    held = q.lease("W1", 2)
    clock.tick(HEARTBEAT + GRACE)
    assert [it.data for it in q.lease("W2", 9)] == [0, 1, 2]
    with pytest.raises(LeaseLost):
        held[0].renew()


def test_persistent_task_never_completes_and_has_one_worker(client, clock):
    q = client.queue("connections")
    q.put_many({"klass": "connect", "data": host, "persistent": True} for host in ("a", "b", "c"))
    held = {it.data: it for it in q.lease("W1", 2) + q.lease("W2", 2)}
    assert Counter(it.worker for it in held.values()) == {"W1": 2, "W2": 1}
    for _ in range(20):
        clock.tick(HEARTBEAT / 3)
        for it in held.values():
            it.renew()
    clock.tick(10)
    client.settle([Returned(it) for it in held.values() if it.worker == "W1"])
    assert sorted(it.data for it in q.lease("W2", 9)) == ["a", "b"]


def test_get_queues_get_workers_and_what_each_works_on(client):
    for name in ("Q0", "Q1"):
        client.queue(name).put("task")
    (process,) = client.queue("Q0").lease("W0")
    client.queue("Q1").lease("W1")
    assert sorted(client.queues()) == ["Q0", "Q1"]
    assert sorted(worker.name for worker in client.workers()) == ["W0", "W1"]
    assert client.worker("W0").running == [process.jid]


def test_queue_is_deleted_with_its_waiting_jobs(client):
    q = client.queue("Q1")
    q.put_many({"klass": "task"} for _ in range(5))
    (process,) = q.lease("W1")
    assert q.delete() == deleting.Deleted(dropped=4, running=1)
    assert process.complete() is True
    assert q.lease("W1") == []


def test_each_item_goes_to_exactly_one_worker(live):
    q = live.queue("Q1")
    q.put_many({"klass": "task", "data": i} for i in range(400))
    taken = [[] for _ in range(4)]

    def work(n):
        while processes := q.lease(f"W{n}", 3):
            taken[n] += [process.data for process in processes]
            live.settle([Completed(process) for process in processes])

    workers = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert sorted(data for some in taken for data in some) == list(range(400))


# hworker.


def test_a_job_that_returned_success_is_not_run_again(client, clock):
    q = client.queue("jobs")
    q.put("send")
    q.lease("w")[0].complete()
    clock.tick(1000)
    client.sweep()
    assert q.lease("w") == []


def test_returned_failure_is_logged_and_not_rerun(client, clock):
    q = client.queue("jobs")
    q.put("send", jid="j")
    q.lease("w")[0].fail("Failure", "mailbox unavailable")
    clock.tick(1000)
    client.sweep()
    assert q.lease("w") == []
    total, (job,) = client.failed("Failure")
    assert (total, job.failure["message"]) == (1, "mailbox unavailable")


def test_retry_goes_to_the_back_and_the_monitor_to_the_front(client, clock):
    q = client.queue("jobs")
    q.put_many({"klass": "send", "jid": jid} for jid in ("retried", "lost", "new"))
    retried, _ = q.lease("w", 2)
    retried.retry()
    clock.tick(HEARTBEAT + GRACE)
    client.sweep()
    assert [job.jid for job in q.lease("w2", 9)] == ["lost", "new", "retried"]


def test_monitor_reruns_only_what_runs_too_long(client, clock):
    q = client.queue("jobs")
    client.config.set("heartbeat-jobs", 120)
    q.put_many({"klass": "send", "jid": jid} for jid in ("old", "young"))
    q.lease("w")
    clock.tick(60)
    q.lease("w")
    clock.tick(60 + GRACE)
    assert client.sweep() == 1
    assert [job.jid for job in q.lease("w2", 9)] == ["old"]


def test_outcome_of_a_raising_job_is_declared_beforehand(client):
    """Either Failure or Retry: here, how many times."""
    q = client.queue("jobs")
    q.put("send", jid="fails", retries=0)
    q.put("send", jid="retries", retries=1)
    assert [job.retry(group="ValueError") for job in q.lease("w", 2)] == [-1, 0]
    assert (client.job("fails").state, client.job("retries").state) == ("failed", "waiting")


def test_any_program_can_push_jobs_as_json(client, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:jobs", json.dumps({"klass": "email", "data": {"to": "you"}}))
    (job,) = client.queue("jobs").lease("w")
    assert (job.klass, job.data) == ("email", {"to": "you"})


def test_broken_entry_is_kept_and_requeued_after_the_repair(client, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:jobs", b'{"klass": "email", "urgent": true}')
    q = client.queue("jobs")
    assert q.lease("w") == []
    total, (job,) = client.failed("broken")
    assert (total, job.raw) == (1, b'{"klass": "email", "urgent": true}')
    assert job.unfail(data={"urgent": True}) is True
    assert [(it.klass, it.data) for it in q.lease("w")] == [("email", {"urgent": True})]


def test_record_of_failed_jobs_is_bounded(client):
    client.config.set("failed-history-count", 10)
    q = client.queue("jobs")
    q.put_many({"klass": "send", "jid": f"j{i:02}"} for i in range(25))
    while jobs := q.lease("w", 5):
        for job in jobs:
            job.fail("g", "m")
    assert client.failed() == {"g": 10}
    assert sorted(job.jid for job in client.failed("g")[1]) == [f"j{i}" for i in range(15, 25)]


# The queue per client.


def test_every_client_sends_to_its_own_list(client):
    """cq.send([1, 2]); cq2.send([3, 4, 0])"""
    q = client.queue("worker1")
    cq, cq2 = q.lane("client"), q.lane("client2")
    cq.put_many({"klass": "divide", "data": msg} for msg in (1, 2))
    cq2.put_many({"klass": "divide", "data": msg} for msg in (3, 4, 0))
    assert (cq.length(), cq2.length(), q.length()) == (2, 3, 5)
    cq.delete()
    assert (cq.length(), cq2.length(), q.length()) == (0, 3, 3)


def test_worker_loop_of_the_article_works(client, clock):
    """receive(2); a = 10/msg["msg"]; wq.proccessed(msg), and after several unsuccessful attempts: dead letters."""
    q = client.queue("worker1")
    q.lane("client").put_many({"klass": "divide", "data": msg, "retries": 4} for msg in (1, 2))
    q.lane("client2").put_many({"klass": "divide", "data": msg, "retries": 4} for msg in (3, 4, 0))
    results, attempts = [], 0
    while msgs := q.lease("worker", 2):
        for msg in msgs:
            try:
                results.append(10 / msg.data)
                msg.complete()
            except ZeroDivisionError as error:
                attempts += 1
                msg.retry(group="dead", message=str(error))
    assert sorted(results) == [2.5, 10 / 3, 5, 10]
    assert attempts == 5
    (dead,) = client.failed("dead")[1]
    assert (dead.data, dead.lane, dead.failure["message"]) == (0, "client2", "division by zero")


def test_clients_have_equal_chances_whatever_their_load(client):
    q = client.queue("worker1")
    for name, n in (("huge", 500), ("small", 5), ("tiny", 1)):
        q.lane(name).put_many({"klass": "k"} for _ in range(n))
    assert Counter(msg.lane for msg in q.lease("worker", 11)) == {"huge": 5, "small": 5, "tiny": 1}


def test_batch_takes_one_round_trip_and_is_full(client, server):
    """The article draws lists at random and gets fewer than it asked for when it hits an empty one."""
    q = client.queue("worker1")
    for i in range(50):
        q.lane(f"client-{i}").put("k")
    client.queue("empty").lease("worker")  # the server has the script from here on
    before = server.calls("evalsha")
    assert len(q.lease("worker", 30)) == 30
    assert server.calls("evalsha") - before == 1
    assert len(q.lease("worker", 30)) == 20


def test_message_of_a_dead_worker_returns_to_its_clients_list(client, clock):
    q = client.queue("worker1")
    q.lane("client").put("k", 1)
    q.lease("dead")
    assert q.lane("client").length() == 0
    clock.tick(HEARTBEAT + GRACE)
    client.sweep()
    assert q.lane("client").length() == 1
    assert q.lease("alive")[0].lane == "client"


def test_new_client_is_served_at_once(client):
    q = client.queue("worker1")
    q.lane("old").put_many({"klass": "k"} for _ in range(100))
    q.lease("worker", 10)
    q.lane("new").put("k")
    assert "new" in [msg.lane for msg in q.lease("worker", 2)]


# qless-core, as far as no other test does it.


def test_cancel_deletes_a_job_and_later_heartbeats_fail(client):
    q = client.queue("q")
    q.put("klass", jid="deadbeef")
    (job,) = q.lease("worker")
    client.cancel("deadbeef")
    assert (client.job("deadbeef"), job.complete()) == (None, False)
    with pytest.raises(LeaseLost):
        job.renew()


def test_equal_priorities_keep_the_order_of_insertion(client):
    """The precision of the clock does not matter: here it stands still."""
    q = client.queue("q")
    for i in range(50):
        q.put("klass", i, priority=[0, -1][i % 2])
    assert [job.data for job in q.lease("worker", 50)] == [*range(1, 50, 2), *range(0, 50, 2)]


@pytest.mark.parametrize(("order", "popped"), [("strict", "CCCBBAAAAA"), ("round-robin", "CBACBACAAA")])
def test_queues_are_polled_in_order_or_in_turns(client, order, popped):
    for name, n in (("A", 5), ("B", 2), ("C", 3)):
        client.queue(name).put_many({"klass": "k"} for _ in range(n))
    assert "".join(job.queue for job in client.lease("w", ["C", "B", "A"], 10, order=order)) == popped


def test_complete_may_advance_with_delay_or_dependencies(client, clock):
    q = client.queue("q")
    q.put_many({"klass": "k", "jid": jid} for jid in ("jid1", "jid2", "now", "late", "waits"))
    leases = {job.jid: job for job in q.lease("w", 5)}
    leases["now"].complete(next="n")
    leases["late"].complete(next="n", delay=60)
    leases["waits"].complete(next="n", depends=["jid1", "jid2"])
    assert [client.job(jid).state for jid in ("now", "late", "waits")] == ["waiting", "scheduled", "depends"]
    for jid in ("jid1", "jid2"):
        leases[jid].complete()
    clock.tick(60)
    assert sorted(job.jid for job in client.queue("n").lease("w", 9)) == ["late", "now", "waits"]


def test_failed_returns_groups_and_the_jobs_of_one(client):
    q = client.queue("q")
    q.put_many({"klass": "k", "data": i} for i in range(6))
    for i, job in enumerate(q.lease("w", 6)):
        job.fail("type1" if i == 0 else "type2", f"message {i}")
    assert client.failed() == {"type1": 1, "type2": 5}
    total, jobs = client.failed("type2", 1, 3)
    assert (total, len(jobs), {job.failure["group"] for job in jobs}) == (5, 3, {"type2"})


def test_unfail_moves_the_first_of_a_group_at_once(client):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(100))
    for job in q.lease("w", 100):
        job.fail("g", "m")
    assert client.unfail("g", "elsewhere", 60) == 60
    assert (client.queue("elsewhere").length(), client.failed()) == (60, {"g": 40})


def test_worker_that_lost_its_lock_must_yield(client, clock):
    q = client.queue("q")
    q.put("k", {"v": 1})
    (first,) = q.lease("w1")
    assert first.renew(data={"v": 2}) == clock.now + HEARTBEAT
    clock.tick(HEARTBEAT + GRACE)
    (second,) = q.lease("w2")
    assert second.data == {"v": 2}
    with pytest.raises(LeaseLost):
        first.renew(data={"v": 3})
    assert second.complete() is True
