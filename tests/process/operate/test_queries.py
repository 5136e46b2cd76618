"""Queries to a running supervisor through Redis."""


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def busy(answer):
    """Return the busy children. One forked ahead may be idle."""
    return [child for child in answer["children"] if child.get("jid")]


def test_a_query_is_answered_while_all_children_are_busy(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    for _ in range(3):
        (answer,) = stage.client.ask([pool.worker], "stacks").values()
        assert [child["jid"] for child in busy(answer)] == [jid]
    stage.open_gate(gate)
    finish(stage, pool)


def test_an_unknown_query_is_refused(stage):
    pool = stage.start(processes=1).wait_ready()
    (answer,) = stage.client.ask(None, "the time").values()
    assert "'the time'" in answer["error"]
    finish(stage, pool)


def test_a_cancelled_job_that_goes_on_is_seen_stopping(stage):
    pool = stage.start(processes=1, term_grace="60s").wait_ready()
    jid = stage.queue.put("bad.swallow", stage.gate("gate"))
    stage.wait_for_starts(jid)
    stage.client.cancel(jid)
    pool.wait_for("lease.lost", jid=jid)
    (answer,) = stage.client.ask([pool.worker], "status").values()
    (child,) = busy(answer)
    assert (child["jid"], child["state"], child["stopping"]) == (jid, "stopping", "cancelled")
    assert 0 < child["kill_in_s"] <= 60
    stage.open_gate("gate")
    pool.wait_for("job.stale", jid=jid)
    finish(stage, pool)
