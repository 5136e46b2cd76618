"""A paused supervisor starts nothing, loses nothing, and stays alive."""

import os
import signal
from pathlib import Path


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def title_of(pool):
    return Path(f"/proc/{pool.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def status_of(stage, pool):
    return stage.client.ask([pool.worker], "status")[pool.worker]


def test_pause_stops_starts_and_keeps_the_order(stage):
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    gate = stage.gate("gate")
    running = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(running)
    pool.send(signal.SIGUSR2)
    paused = pool.wait_for("master.paused")
    assert (paused["signal"], paused["sender_pid"], paused["running"]) == ("SIGUSR2", os.getpid(), 1)
    waiting = [stage.queue.put("good.noop") for _ in range(5)]
    stage.open_gate(gate)
    stage.wait_until_ended([running])
    told = status_of(stage, pool)  # which takes more round trips than a lease would
    assert (told["state"], told["paused"], told["busy"]) == ("paused", True, 0)
    stage.wait_until_counted(lambda: "0/1 busy, paused" in title_of(pool))
    assert stage.ledger.order() == [running]
    pool.send(signal.SIGCONT)
    assert pool.wait_for("master.resumed")["signal"] == "SIGCONT"
    stage.wait_until_ended(waiting)
    assert stage.ledger.order() == [running, *waiting]
    assert status_of(stage, pool)["state"] == "serving"
    finish(stage, pool)


def test_pause_hands_back_jobs_sent_ahead(stage):
    pool = stage.start(processes=1, jobs_per_child=0, dispatch_ahead="10s").wait_ready()
    stage.wait_until_ended([stage.queue.put("good.short_or_long") for _ in range(3)])
    gate = stage.gate("gate")
    long, *short = [stage.queue.put("good.short_or_long", data) for data in (gate, None, None, None)]
    stage.wait_for_starts(long)
    pool.send(signal.SIGUSR2)
    pool.wait_for("master.paused")
    other = stage.start(processes=1, jobs_per_child=0).wait_ready()
    stage.wait_until_ended(short)
    assert {event["jid"] for event in other.find("job.completed")} == set(short)
    counts = [(job.failures, job.deaths, job.interruptions) for job in stage.client.jobs(*short)]
    assert counts == [(0, 0, 0)] * 3
    stage.open_gate(gate)
    stage.wait_until_ended([long])
    finish(stage, pool, other)


def test_a_repeated_pause_changes_nothing_and_a_drain_ends_it(stage):
    pool = stage.start().wait_ready()
    ask = lambda what: stage.client.ask(None, what)[pool.worker]["did"]  # noqa: E731
    assert "paused" in ask("pause") and "already" in ask("pause")
    assert "starts jobs again" in ask("resume") and "not paused" in ask("resume")
    assert "paused" in ask("pause")
    left = stage.queue.put("good.noop")
    finish(stage, pool, waiting=["default"])
    assert (len(pool.find("master.paused")), len(pool.find("master.resumed"))) == (2, 1)
    assert stage.states([left]) == ["waiting"]


def test_pause_keeps_persistent_and_at_most_once_jobs_running(stage):
    pool = stage.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    once = stage.queue.put("good.hold", gate, at_most_once=True)
    endless = stage.queue.put("good.hold", gate, persistent=True)
    for jid in (once, endless):
        stage.wait_for_starts(jid)
    pool.send(signal.SIGUSR2)
    pool.wait_for("master.paused")
    assert stage.states([once, endless]) == ["running", "running"]
    stage.open_gate(gate)
    stage.wait_until_ended([once])
    pool.wait_for("job.returned", jid=endless)
    assert len(stage.ledger.starts(endless)) == 1
    stage.client.cancel(endless)
    finish(stage, pool)


def test_a_pause_outlives_an_outage(own_stage, own_server):
    stage = own_stage
    stage.config(heartbeat=2, grace=1)
    pool = stage.start().wait_ready()
    stage.wait_until_idle(1)
    pool.send(signal.SIGUSR2)
    pool.wait_for("master.paused")
    own_server.kill()
    pool.wait_for("redis.lost")
    own_server.start()
    pool.wait_for("redis.connected")
    jid = stage.queue.put("good.noop")
    asked_unix = [worker.seen_unix for worker in stage.client.workers()]
    stage.wait_until_counted(lambda: [worker.seen_unix for worker in stage.client.workers()] > asked_unix)
    assert stage.client.ask(None, "status")[pool.worker]["state"] == "paused"
    assert stage.ledger.starts(jid) == []
    stage.client.ask(None, "resume")
    stage.wait_until_ended([jid])
    finish(stage, pool)
