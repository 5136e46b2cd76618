"""Old children, and children that keep memory, are replaced after their job, one at a time and without a pause."""

import itertools

import pytest


def finish(stage, pool):
    assert pool.drain() == 0
    stage.assert_nothing_left()


def assert_one_at_a_time(pool, processes):
    """Check by the log that each recycled child has a ready successor before the next one ends. Return how many."""
    ready, recycled, gone = 0, [], set()
    for event in list(pool.events):
        if event["event"] == "child.ready":
            ready += 1
        elif event["event"] == "child.reaped":
            gone.add(event["pid"])
        elif event["event"] == "child.recycled":
            assert gone.issuperset(recycled)
            assert ready >= processes + len(recycled)
            recycled.append(event["pid"])
    return len(recycled)


def assert_all_well(stage, pool, jids):
    """Check that each job has run once and is complete, with no count raised."""
    jobs = stage.client.jobs(*jids)
    assert {(job.state, job.failures, job.deaths, job.interruptions) for job in jobs} == {("complete", 0, 0, 0)}
    assert sorted(stage.ledger.order()) == sorted(jids)
    assert pool.find("child.killed") == []
    assert {event["status"] for event in pool.find("child.reaped")} <= {"exit-0"}


def test_old_children_are_replaced_one_at_a_time(stage, measured):
    pool = stage.start(processes=3, jobs_per_child=0, child_age="500ms").wait_ready()
    pool.wait_for("child.ready", nth=3)
    jids = []
    while len(pool.find("child.recycled")) < 4:
        batch = stage.queue.put_many([{"klass": "good.nap", "data": 0.02} for _ in range(10)])
        stage.wait_until_ended(batch)
        jids += batch
    assert_all_well(stage, pool, jids)
    recycled = assert_one_at_a_time(pool, 3)
    for event in pool.find("child.recycled"):
        assert "s old, its limit is 0.5 s" in event["reason"]
    pool.wait_for("child.ready", nth=3 + recycled)
    measured(f"{len(jids)} jobs, {recycled} children replaced")
    gate = stage.gate("gate")
    together = [stage.queue.put("good.hold", gate) for _ in range(3)]
    for jid in together:  # there are as many as before
        stage.wait_for_starts(jid)
    stage.open_gate(gate)
    stage.wait_until_ended(together)
    finish(stage, pool)


def test_child_that_keeps_memory_is_replaced_after_its_job(stage):
    pool = stage.start(processes=2, jobs_per_child=0, child_memory="50M").wait_ready()
    pool.wait_for("child.ready", nth=2)
    gate = stage.gate("gate")
    neighbour = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(neighbour)
    small = [stage.queue.put("memory.grow_and_keep", {"mb": 5}) for _ in range(3)]
    stage.wait_until_ended(small)
    stage.let_time_pass(1.1)  # between two looks at one child
    large = stage.queue.put("memory.grow_and_keep", {"mb": 60})
    recycled = pool.wait_for("child.recycled")
    assert "MB of private memory, more than 50 MB" in recycled["reason"]
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([large, after])
    stage.open_gate(gate)
    stage.wait_until_ended([neighbour])
    by_jid = {start.jid: start.pid for start in stage.ledger.starts()}
    assert {by_jid[jid] for jid in [*small, large]} == {recycled["pid"]}
    assert recycled["pid"] not in (by_jid[neighbour], by_jid[after])
    assert len(pool.find("child.recycled")) == 1
    assert_all_well(stage, pool, [neighbour, *small, large, after])
    finish(stage, pool)


@pytest.mark.parametrize("klass", ["size_of_preloaded", "write_preloaded"])
def test_preloaded_memory_recycles_no_child(stage, klass):
    pool = stage.start(jobs_per_child=0, child_memory="20M", environment={"MENU_PRELOAD_MB": "100"}).wait_ready()
    jids = []
    for wait_s in itertools.repeat(0.6, 4):
        jids.append(stage.queue.put(f"memory.{klass}", {}))
        stage.wait_until_ended(jids)
        stage.let_time_pass(wait_s)  # so that it is looked at again
    assert_all_well(stage, pool, jids)
    assert pool.find("child.recycled") == []
    assert len({start.pid for start in stage.ledger.starts()}) == 1
    finish(stage, pool)
