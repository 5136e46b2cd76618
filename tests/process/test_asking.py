"""A running supervisor is asked where its children are, by way of Redis."""

import json
import os
import subprocess
import sys
import time


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def busy(answer):
    """The children that run something; beside them may be one that was forked ahead."""
    return [child for child in answer["children"] if child.get("jid")]


def test_an_idle_and_a_busy_child_are_told_with_what_they_run(stage, measured):
    pool = stage.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    stage.wait_until_idle(1)
    asked_at = time.monotonic()
    answers = stage.client.ask(None, "stacks")
    measured(f"stacks: {1000 * (time.monotonic() - asked_at):.0f} ms")
    assert answers.keys() == {pool.worker}
    (child,) = busy(answers[pool.worker])
    assert (child["jid"], child["klass"]) == (jid, "good.hold") and child["running_s"] > 0
    assert " in hold\n" in child["stack"]
    idle = [each for each in answers[pool.worker]["children"] if not each.get("jid")]
    assert idle and all(each["pid"] and not each.get("running_s") for each in idle)
    stage.open_gate(gate)
    finish(stage, pool)


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


def test_the_command_shows_it(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace}
    words = [sys.executable, "-m", "supervisor", "stacks", "--json"]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=True).stdout
    (child,) = busy({"children": json.loads(said)[pool.worker]})
    assert child["jid"] == jid
    stage.open_gate(gate)
    finish(stage, pool)
