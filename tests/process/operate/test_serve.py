"""A running supervisor changes its queues on request."""

import time


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def test_an_idle_supervisor_switches_queues_at_once(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    jid = stage.client.queue("other").put("good.noop")
    requested_unix = time.time()
    stage.client.serve(pool.worker, ["other"])
    (start,) = stage.wait_for_starts(jid)
    measured(f"serve -> started, idle: {1000 * (start.unix - requested_unix):.0f} ms")
    assert start.unix - requested_unix <= 5
    changed = pool.wait_for("queues.changed")
    assert (changed["queues"], changed["order"], changed["count"]) == (["other"], "strict", 1)
    stage.queue.put("good.noop")
    after = stage.client.queue("other").put("good.noop", delay=0.3)
    pool.wait_for("job.completed", jid=after)
    assert stage.queue.length() == 1
    finish(stage, pool, waiting=["default"])


def test_wakeups_and_push_listeners_follow_the_new_queues(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    stage.client.serve(pool.worker, ["a", "b"])
    pool.wait_for("queues.changed")
    pool.push_listeners = 2
    stage.wait_until_idle(1)
    put_unix = time.time()
    (start,) = stage.wait_for_starts(stage.client.queue("b").put("good.noop"))
    assert start.unix - put_unix <= 5
    stage.wait_until_idle(1)
    put_unix = time.time()
    stage.server.redis.lpush(f"{stage.prefix}in:b", '{"klass": "good.noop", "jid": "pushed"}')
    (start,) = stage.wait_for_starts("pushed")
    assert start.unix - put_unix <= 5
    pool.wait_for("job.completed", jid="pushed")
    finish(stage, pool)


def test_a_busy_supervisor_switches_queues_after_its_job(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    stage.wait_for_starts(stage.queue.put("good.hold", gate))
    behind = stage.queue.put("good.noop")
    jid = stage.client.queue("other").put("good.noop")
    stage.client.serve(pool.worker, ["other"])
    pool.wait_for("queues.changed")
    stage.open_gate(gate)
    pool.wait_for("job.completed", jid=jid)
    assert stage.ledger.starts(behind) == []
    finish(stage, pool, waiting=["default"])


def test_a_serve_request_takes_globs_weights_and_an_order(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    jids = [stage.client.queue(queue).put("good.noop") for queue in ("mail-a", "mail-b")]
    left = stage.client.queue("mail-bulk").put("good.noop")
    stage.client.serve(pool.worker, ["mail-*:3", "!mail-bulk", "default"], order="weighted")
    for jid in jids:
        pool.wait_for("job.completed", jid=jid)
    assert pool.find("queues.changed")[0]["order"] == "weighted"
    assert stage.ledger.starts(left) == []
    late = stage.client.queue("mail-new").put("good.noop")
    pool.wait_for("job.completed", jid=late)
    finish(stage, pool, waiting=["mail-bulk"])


def test_the_last_serve_request_counts(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    for queues in (["a"], ["b"], ["c"]):
        stage.client.serve(pool.worker, queues)
    pool.wait_for("queues.changed", queues=["c"])
    stage.client.serve(pool.worker, ["c"])
    jid = stage.client.queue("c").put("good.noop")
    pool.wait_for("job.completed", jid=jid)
    assert len(pool.find("queues.changed", queues=["c"])) == 1
    finish(stage, pool)


def test_a_deregistered_supervisor_keeps_its_new_queues(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    stage.client.serve(pool.worker, ["other"])
    pool.wait_for("queues.changed")
    stage.client.deregister(pool.worker)
    pool.wait_for("worker.deregistered")
    jid = stage.client.queue("other").put("good.noop")
    pool.wait_for("job.completed", jid=jid)
    assert len(pool.find("queues.changed")) == 1
    finish(stage, pool)


def test_an_impossible_serve_request_is_logged_and_ignored(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)
    # No client of Leasehold leaves such a request.
    stage.server.redis.hset(f"{stage.prefix}worker:{pool.worker}", mapping={"wish": 1, "queues": "!all", "order": ""})
    jid = stage.queue.put("good.noop")
    pool.wait_for("job.completed", jid=jid)
    assert "!all" in pool.wait_for("master.warned")["message"]
    jid = stage.queue.put("good.noop")
    pool.wait_for("job.completed", jid=jid)
    assert len(pool.find("master.warned")) == 1
    finish(stage, pool)
