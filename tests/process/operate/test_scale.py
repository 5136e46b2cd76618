"""The number of processes: by signals and commands, by load, and by the machine's memory."""

import os
import signal

import pytest


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def hold(stage, count, gate, **options):
    return [stage.queue.put("good.hold", gate, **options) for _ in range(count)]


def scaled(pool):
    return [(event["before"], event["processes"]) for event in pool.find("master.scaled")]


def running(stage, jids):
    return {start.jid for start in stage.ledger.starts(*jids)}


def test_signals_scale_by_one_and_never_below_one(stage):
    pool = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jids = hold(stage, 2, gate)
    stage.wait_for_starts(jids[0])
    pool.send(signal.SIGTTIN)
    stage.wait_for_starts(jids[1])
    assert pool.wait_for("master.scaled")["signal"] == "SIGTTIN"
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    for nth in (2, 3):
        pool.send(signal.SIGTTOU)
        pool.wait_for("master.scaled", nth=nth)
    assert scaled(pool) == [(1, 2), (2, 1), (1, 1)]
    assert "at least 1" in pool.find("master.scaled")[-1]["reason"]
    finish(stage, pool)


def test_surplus_children_end_at_once_or_after_their_job(stage):
    pool = stage.start(processes=4, jobs_per_child=0).wait_ready()
    pool.wait_for("child.ready", nth=4)
    first, second = stage.gate("first"), stage.gate("second")
    jids = [*hold(stage, 1, first), *hold(stage, 2, second)]
    for jid in jids:
        stage.wait_for_starts(jid)
    (answer,) = stage.client.ask(None, "scale", argument={"fewest": 1, "most": 1, "by": "a test"}).values()
    assert (answer["before"], answer["now"], answer["most"]) == (4, 1, 1)
    pool.wait_for("child.recycled", reason="there are to be fewer processes")
    pool.wait_for("child.reaped")
    after = stage.queue.put("good.noop")
    stage.open_gate(first)
    stage.wait_until_ended(jids[:1])
    assert stage.ledger.starts(after) == []
    stage.open_gate(second)
    stage.wait_until_ended([*jids, after])
    assert pool.find("job.released") == []
    pool.wait_for("child.reaped", nth=3)
    assert len(pool.child_pids()) == 1
    finish(stage, pool)


def test_surplus_jobs_are_interrupted_youngest_first_and_rerun(stage):
    pool = stage.start(processes=3, drain_timeout="300ms").wait_ready()
    gate = stage.gate("gate")
    jids = []
    for _ in range(3):
        jids += hold(stage, 1, gate)
        stage.wait_for_starts(jids[-1])
    stage.client.ask(None, "scale", argument={"fewest": 2, "most": 2})
    released = pool.wait_for("job.released")
    assert (released["jid"], released["reason"]) == (jids[2], "scaled")
    assert stage.client.job(jids[2]).interruptions == 1
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert len(pool.find("job.released")) == 1
    assert len(stage.ledger.starts(jids[2])) == 2
    finish(stage, pool)


def test_a_range_grows_to_its_maximum_under_a_backlog(stage, measured):
    pool = stage.start(processes="1:32").wait_ready()
    gate = stage.gate("gate")
    jids = hold(stage, 40, gate)
    stage.wait_until(lambda: len(running(stage, jids)) == 32, "32 of them run")
    first, last = stage.ledger.starts(*jids)[0], stage.ledger.starts(*jids)[31]
    measured(f"from 1 to 32 jobs at once: {last.unix - first.unix:.2f} s")
    assert last.unix - first.unix < 25
    pool.wait_for("master.scaled", processes=32)
    steps = scaled(pool)
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert len(running(stage, jids)) == 40 and scaled(pool) == steps
    finish(stage, pool)


def test_a_fluctuating_load_keeps_the_process_count(stage):
    pool = stage.start(processes="1:8", jobs_per_child=0).wait_ready()
    for number in range(5):
        gate = stage.gate(f"gate{number}")
        jids = hold(stage, 3, gate)
        stage.wait_until(lambda jids=jids: len(running(stage, jids)) == 3, "all three run")
        if number == 0:
            pool.wait_for("master.scaled", processes=4)
            steps = scaled(pool)
        stage.open_gate(gate)
        stage.wait_until_ended(jids)
    assert scaled(pool) == steps
    finish(stage, pool)


def test_a_fixed_number_ends_scaling_by_load(stage):
    pool = stage.start(processes="1:4").wait_ready()
    gate = stage.gate("gate")
    ask = lambda **wish: stage.client.ask([pool.worker], "scale", argument=wish)[pool.worker]  # noqa: E731
    assert ask(fewest=2, most=2)["now"] == 2
    jids = hold(stage, 6, gate)
    stage.wait_until(lambda: len(running(stage, jids)) == 2, "two run")
    assert "cannot be" in ask(fewest=0, most=0)["error"]
    assert "at most 4096" in ask(fewest=5000, most=5000)["error"]
    assert "whole numbers" in ask(fewest="3", most=True)["error"]
    assert ask(fewest=1, most=4)["now"] == 2
    stage.wait_until(lambda: len(running(stage, jids)) == 4, "four run")
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert ask(auto=True)["reason"].startswith("auto: ")
    finish(stage, pool)


def test_auto_is_bounded_by_memory(stage):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("auto is one here anyhow")
    pool = stage.start(processes="auto", memory_budget="256M", memory_limit="140M").wait_ready()
    event = pool.wait_for("master.scaled")
    assert event["processes"] == 1 < event["before"]
    assert "of the memory budget are left for children" in event["reason"]
    jids = [stage.queue.put("good.noop") for _ in range(3)]
    stage.wait_until_ended(jids)
    finish(stage, pool)
