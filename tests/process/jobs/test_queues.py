"""Several queues: their order, the queues that a glob matches, and what holds a queue back."""

import time

import pytest

#: Longest time until a new queue that a glob matches is served. Without a hint that would be half a minute. The bar of
#: 2 s is for a machine that does nothing else.
NEW_QUEUE_S = 8.0


def put_ten(stage):
    """Put 5 jobs to a, 2 to b and 3 to c. Return jid -> queue."""
    queues = {}
    for name, count in (("A", 5), ("B", 2), ("C", 3)):
        for jid in stage.client.queue(name).put_many([{"klass": "good.noop"} for _ in range(count)]):
            queues[jid] = name
    return queues


@pytest.mark.parametrize("jobs_per_child", [1, 0])
@pytest.mark.parametrize(("order", "sequence"), [("strict", "CCCBBAAAAA"), ("round-robin", "CBACBACAAA")])
def test_order_flag_sets_the_order_of_starts(stage, order, sequence, jobs_per_child):
    queues = put_ten(stage)
    pool = stage.start(queue=["C", "B", "A"], order=order, processes=1, jobs_per_child=jobs_per_child)
    stage.wait_until_ended(queues)
    started = "".join(queues[jid] for jid in stage.ledger.order())
    # A job that a slow machine has handed back comes from the front of its queue, when its turn has gone by.
    handed_back = pool.find("lease.returned")
    assert started == sequence or (handed_back and sorted(started) == sorted(sequence)), started
    assert pool.wait_for("master.started")["order"] == order
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize(("order", "names"), [("random", ["C", "B", "A"]), ("weighted", ["C:5", "[AB]"])])
def test_random_order_serves_every_queue(stage, order, names):
    queues = put_ten(stage)
    pool = stage.start(queue=names, order=order)
    stage.wait_until_ended(queues)
    assert sorted(stage.ledger.order()) == sorted(queues)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_idle_supervisor_serves_a_new_matching_queue_without_polling(stage, proxies, measured):
    stage.client.queue("other").put("good.noop", delay=3600)
    proxy = proxies(0)
    pool = stage.start(redis_url=proxy.url, queue=["email-*", "!email-bulk"]).wait_ready()
    stage.wait_until_idle(1)
    asked = proxy.wait_until_quiet()
    stage.let_time_pass(6.0)
    assert proxy.counts()["batches"] - asked <= 1, "a sweep, at the most"
    waits_s = []
    for name in ("email-b", "email-a", "email-a"):
        stage.wait_until_idle(1)
        put_unix = time.time()
        (start,) = stage.wait_for_starts(stage.client.queue(name).put("good.noop"))
        waits_s.append(start.unix - put_unix)
        pool.wait_for("job.completed", jid=start.jid)
    measured(f"put into a new queue -> started, idle: {', '.join(f'{1000 * wait_s:.1f}' for wait_s in waits_s)} ms")
    assert max(waits_s) <= NEW_QUEUE_S
    assert [found["added"] for found in pool.find("queues.resolved")] == [["email-b"], ["email-a"]]
    excluded = stage.client.queue("email-bulk").put("good.noop")
    after = stage.client.queue("email-c").put("good.noop")
    stage.wait_until_ended([after])
    assert stage.states([excluded]) == ["waiting"]
    assert pool.drain() == 0
    stage.assert_nothing_left(waiting=["email-bulk", "other"])


def test_too_many_matching_queues_are_cut_with_a_warning(stage):
    names = [f"m-{number:04}" for number in range(1005)]
    for name in names:
        stage.client.queue(name).put("good.noop", delay=3600)
    first, last, beyond = [stage.client.queue(names[number]).put("good.noop") for number in (0, 999, 1000)]
    pool = stage.start(processes=1, queue="m-*").wait_ready()
    stage.wait_until_ended([first, last])
    assert pool.find("queues.resolved")[0]["count"] == 1000
    (warning,) = pool.find("master.warned")
    assert warning["message"].startswith("5 queues")
    assert stage.states([beyond]) == ["waiting"]
    assert pool.drain() == 0
    stage.assert_nothing_left(waiting=names)


def test_busy_supervisor_serves_a_new_matching_queue_in_order(stage, measured):
    pool = stage.start(processes=1, queue="q-*", jobs_per_child=0).wait_ready()
    backlog = stage.client.queue("q-b").put_many([{"klass": "good.nap", "data": 0.02} for _ in range(400)])
    stage.wait_for_starts(backlog[20])
    put_unix = time.time()
    (start,) = stage.wait_for_starts(stage.client.queue("q-a").put("good.noop"))
    measured(f"put into a new queue -> started, busy: {1000 * (start.unix - put_unix):.0f} ms")
    assert start.unix - put_unix <= NEW_QUEUE_S
    assert len(stage.ended()) < 400
    stage.client.cancel(*backlog)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_heartbeat_of_a_new_queue_holds_from_its_first_lease(stage):
    """The heartbeat of one queue is much shorter than the others. Its job is renewed in time."""
    stage.client.config.set("heartbeat-q-short", 2)
    stage.client.config.set("grace", 2)
    pool = stage.start(processes=1, queue="q-*").wait_ready()
    peer = stage.start(processes=1, queue="q-*").wait_ready()
    stage.wait_until_idle(2)
    gate = stage.gate("gate")
    jid = stage.client.queue("q-short").put("good.hold", gate)
    stage.wait_for_starts(jid)
    stage.let_time_pass(6.0)  # longer than TTL and grace
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert len(stage.ledger.starts(jid)) == 1
    assert [pool.drain(), peer.drain()] == [0, 0]
    stage.assert_nothing_left()


def test_shortened_heartbeat_loses_no_later_job(stage):
    stage.client.config.set("grace", 2)
    pool = stage.start(processes=1).wait_ready()
    peer = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(2)
    stage.client.config.set("heartbeat", 2)
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    stage.let_time_pass(6.0)  # longer than TTL and grace
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert len(stage.ledger.starts(jid)) == 1
    assert [pool.drain(), peer.drain()] == [0, 0]
    stage.assert_nothing_left()


def test_paused_queue_finishes_jobs_and_starts_none(stage, measured):
    pool = stage.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    running = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(running)
    stage.queue.pause()
    waiting = stage.queue.put("good.noop")
    stage.let_time_pass(0.5)
    assert stage.states([running, waiting]) == ["running", "waiting"]
    stage.open_gate(gate)
    stage.wait_until_ended([running])
    stage.wait_until_idle(1)
    stage.let_time_pass(0.5)
    assert stage.ledger.order() == [running]
    began_unix = time.time()
    stage.queue.unpause()
    (start,) = stage.wait_for_starts(waiting)
    measured(f"unpause -> started on an idle pool: {1000 * (start.unix - began_unix):.1f} ms")
    assert start.unix - began_unix <= 5
    stage.wait_until_ended([waiting])
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_maximum_concurrency_holds_over_all_supervisors(stage):
    stage.client.config.set("max-concurrency-default", 2)
    pools = [stage.start(processes=2, jobs_per_child=number) for number in (0, 1)]
    for pool in pools:
        pool.wait_ready()
    stage.wait_until_idle(2)
    gate = stage.gate("gate")
    held = [stage.queue.put("good.hold", gate) for _ in range(5)]
    stage.wait_until(lambda: len(stage.ledger.starts()) >= 2, "two starts")
    stage.let_time_pass(0.5)
    assert len(stage.ledger.starts()) == 2
    assert stage.queue.counts().running == 2
    stage.open_gate(gate)
    naps = stage.queue.put_many([{"klass": "good.nap", "data": 0.03} for _ in range(40)])
    stage.wait_until_ended([*held, *naps])
    starts = sorted(start.unix for start in stage.ledger.starts(*naps))
    assert all(third - first >= 0.03 for first, third in zip(starts, starts[2:], strict=False))
    assert [len(stage.ledger.starts(jid)) for jid in [*held, *naps]] == [1] * 45
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


def test_handler_sees_up_to_100_tags_of_its_job(stage):
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    many = [f'"{number:03}"' + "ä" * 29 for number in range(100)]
    few, most = [stage.queue.put("good.tags", tags=tags) for tags in (["red", "a b"], many)]
    none = [stage.queue.put("good.tags") for _ in range(200)]
    stage.wait_until_ended([few, most, *none])
    assert stage.client.job(few).result == ["red", "a b"]
    assert sorted(stage.client.job(most).result) == many
    assert stage.client.job(none[-1]).result == []
    assert pool.drain() == 0
    stage.assert_nothing_left()
