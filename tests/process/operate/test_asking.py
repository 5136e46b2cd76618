"""A running supervisor is asked where its children are, by way of Redis."""


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def busy(answer):
    """The children that run something; beside them may be one that was forked ahead."""
    return [child for child in answer["children"] if child.get("jid")]


def test_it_answers_with_all_its_children_busy(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    for _ in range(3):
        (answer,) = stage.client.ask([pool.worker], "stacks").values()
        assert [child["jid"] for child in busy(answer)] == [jid]
    stage.open_gate(gate)
    finish(stage, pool)


def test_what_it_does_not_know_is_said(stage):
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
