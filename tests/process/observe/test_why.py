"""`why` tells reasons that only the supervisor of a waiting job knows."""

import signal
import time

import pytest

from tests.lengths import PATIENCE

MB = 2**20
LONG_S = 20


def why(stage, jid):
    return stage.client.why(jid, timeout=LONG_S)


@pytest.fixture
def held(stage):
    """A supervisor with one child, and the job in it. The job ends with the test, and nothing is left then."""
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    yield pool, jid
    stage.queue.delete()
    stage.open_gate(gate)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_running_job_tells_its_child(stage, held):
    pool, jid = held
    found = why(stage, jid)
    assert found.reason == "running"
    assert f"in the child with pid {pool.child_pids()[0]}" in found.sentence


def test_waiting_job_and_its_queue_tell_that_all_children_are_busy(stage, held):
    _, jid = held
    waiting = stage.queue.put("good.noop")
    for found in (why(stage, waiting), stage.queue.why(timeout=LONG_S)):
        assert (found.reason, f"oldest job is {jid}" in found.sentence) == ("children-busy", True), found.sentence


def test_waiting_job_tells_that_an_operator_has_paused_the_supervisor(stage, held):
    pool, _ = held
    stage.client.ask(pool.worker, "pause", LONG_S)
    found = why(stage, stage.queue.put("good.noop"))
    assert (found.reason, "an operator has paused" in found.sentence) == ("worker-stopped", True), found.sentence
    stage.client.ask(pool.worker, "resume", LONG_S)


def test_waiting_job_tells_that_its_supervisor_drains(stage, held):
    pool, _ = held
    waiting = stage.queue.put("good.noop")
    pool.send(signal.SIGTERM)
    pool.wait_for("master.draining")
    found = why(stage, waiting)
    assert (found.reason, "drains" in found.sentence) == ("worker-stopped", True), found.sentence


def test_jobs_tell_that_their_supervisor_does_not_answer(stage, held):
    pool, jid = held
    waiting = stage.queue.put("good.noop")
    pool.send(signal.SIGSTOP)
    began_at = time.monotonic()
    found = [stage.client.why(each) for each in (jid, waiting)]
    took_s = time.monotonic() - began_at
    pool.send(signal.SIGCONT)
    assert took_s <= 0.8 * PATIENCE
    assert [each.reason for each in found] == ["worker-silent", "worker-silent"]
    assert "its lease ends at" in found[0].sentence
    late = f"{{{stage.namespace}}}:answer:*"  # they would lie there for a minute
    stage.wait_until_counted(lambda: len(stage.server.redis.keys(late)) == len(found))
    stage.server.redis.delete(*stage.server.redis.keys(late))


def test_waiting_job_tells_that_memory_is_used_up(stage):
    """The supervisor leases the second job, and hands it back from time to time."""
    pool = stage.start(processes=2, jobs_per_child=0, memory_budget="200M").wait_ready()

    def used_bytes():
        return stage.client.ask(None, "status", LONG_S)[pool.worker]["admission"]["memory"]["used_bytes"]

    base_bytes = used_bytes()
    gates = [stage.gate(name) for name in ("learn", "one", "two")]
    learnt, first, second = (
        stage.queue.put("memory.grow", {"mb": 100, "gate": gate}, max_deaths=1, delay=delay)
        for gate, delay in zip(gates, (0, "1h", "1h"), strict=True)
    )
    stage.wait_for_starts(learnt)
    stage.wait_until_counted(lambda: used_bytes() > base_bytes + 95 * MB)  # a sample in mid-growth teaches too little
    stage.open_gate(gates[0])
    stage.wait_until_ended([learnt])
    stage.client.job(first).move("default")
    stage.wait_for_starts(first)
    stage.client.job(second).move("default")
    stage.wait_until_counted(lambda: "waits for memory" in why(stage, second).sentence)
    for gate in gates[1:]:
        stage.open_gate(gate)
    stage.wait_until_ended([first, second])
    assert pool.drain() == 0
    stage.assert_nothing_left()
