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
