"""The shutdown: jobs may finish, late ones are stopped in time, and all others go back in their order."""

import os
import signal
import time

import pytest


def _leased_order(stage, count):
    """Lease all jobs, hand them back, and return their jids in order."""
    order = [lease.jid for lease in stage.queue.lease("looker", count)]
    stage.client.deregister("looker")
    return order


def _term(pool):
    pool.send(signal.SIGTERM)


def _interrupt(pool):
    pool.send(signal.SIGINT)


def _term_group(pool):
    pool.send_group(signal.SIGTERM)


def _int_group(pool):
    pool.send_group(signal.SIGINT)


def _term_twice(pool):
    pool.send(signal.SIGTERM)
    pool.wait_for("master.draining")
    pool.send(signal.SIGTERM)


WAYS = [_term, _interrupt, _term_group, _int_group, _term_twice]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__[1:])
def test_drain_lets_running_jobs_finish_and_leaves_the_rest_in_order(stage, way):
    gate = stage.gate("gate")
    pool = stage.start(processes=4).wait_ready()
    held = [stage.queue.put("good.hold", gate) for _ in range(4)]
    rest = stage.queue.put_many([{"klass": "good.noop"} for _ in range(100)])
    for jid in held:
        stage.wait_for_starts(jid)
    way(pool)
    draining = pool.wait_for("master.draining")
    assert (draining["running"], sorted(draining["jobs"])) == (4, sorted(f"good.hold {jid}" for jid in held))
    stage.open_gate(gate)
    assert pool.wait() == 0
    assert stage.states(held) == ["complete"] * 4
    assert stage.states(rest) == ["waiting"] * 100
    assert stage.ledger.starts(*rest) == []
    assert not pool.find("job.released")
    assert _leased_order(stage, 200) == rest
    stopped = pool.find("master.stopped")[0]
    assert (stopped["exit_code"], stopped["completed"], stopped["released"]) == (0, 4, 0)
    stage.assert_nothing_left(waiting=["default"])


@pytest.mark.parametrize("way", [_term, _term_group], ids=lambda way: way.__name__[1:])
def test_drain_takes_back_jobs_sent_ahead_in_order(stage, way):
    """Quick jobs of one klass, so that many are sent ahead. Some of them take unexpectedly long."""
    gate = stage.gate("gate")
    pool = stage.start(processes=4, jobs_per_child=0).wait_ready()
    warm = stage.queue.put_many([{"klass": "good.short_or_long"} for _ in range(200)])
    stage.wait_until_ended(warm)
    plan = [gate if n in (30, 45, 60, 75) else None for n in range(3000)]
    jids = stage.queue.put_many([{"klass": "good.short_or_long", "data": data} for data in plan])
    long = [jid for jid, data in zip(jids, plan, strict=True) if data]
    stage.wait_for_starts(long[0])
    way(pool)
    pool.wait_for("master.draining")
    stage.open_gate(gate)
    assert pool.wait() == 0
    started = set(stage.ledger.order())
    states = dict(zip(jids, stage.states(jids), strict=True))
    assert set(states.values()) <= {"complete", "waiting"}
    back = [jid for jid in jids if states[jid] == "waiting"]
    assert started.isdisjoint(back), "what was handed back had never started"
    assert [jid for jid in jids if jid in started] == [jid for jid in jids if states[jid] == "complete"]
    leased = []
    while batch := stage.queue.lease("looker", 1000):
        leased += [lease.jid for lease in batch]
    assert leased == back
    for jid in back[:20]:
        job = stage.client.job(jid)
        assert (job.deaths, job.failures, job.interruptions) == (0, 0, 0)
    assert stage.client.deregister("looker") == len(back)
    stage.assert_nothing_left(waiting=["default"])


@pytest.mark.parametrize("jobs_per_child", [1, 0])
@pytest.mark.parametrize("way", [_term, _term_group], ids=lambda way: way.__name__[1:])
def test_deaf_handler_is_killed_and_its_job_goes_to_the_front(stage, way, jobs_per_child, measured):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child, drain_timeout="1s", term_grace="0.5s").wait_ready()
    deaf = stage.queue.put("bad.c_sleep", 600)
    rest = stage.queue.put_many([{"klass": "good.noop"} for _ in range(5)])
    pool.wait_for("job.printed", line="asleep in C")
    began_at = time.monotonic()
    way(pool)
    assert pool.wait() == 0
    took_s = time.monotonic() - began_at
    measured(f"drain of a deaf handler, budget 1.5 s: {took_s:.2f} s")
    drained_s = pool.find("master.stopped")[0]["time"] - pool.find("master.draining")[0]["time"]
    assert 1.4 <= drained_s <= 5.0
    assert took_s <= 10.0  # with the interpreter's own way down, which a loaded machine makes long
    job = stage.client.job(deaf)
    assert (job.state, job.interruptions, job.deaths, job.failures) == ("waiting", 1, 0, 0)
    assert _leased_order(stage, 10) == [deaf, *rest]
    stage.assert_nothing_left(waiting=["default"])


def test_jobs_interrupted_by_a_drain_run_at_a_peer_at_once(stage, measured):
    """The handler is deaf in C code to the end. Its job is handed back before the master exits, not when the lease
    expires.
    """
    first = stage.start(processes=1, drain_timeout="0.5s", term_grace="0.3s").wait_ready()
    deaf = stage.queue.put("bad.c_sleep", 600)
    first.wait_for("job.printed", line="asleep in C")
    peer = stage.start(processes=1).wait_ready()
    stage.wait_until_idle(1)  # the other one waits for mail alone
    sent_at = first.send(signal.SIGTERM)
    _, again = stage.wait_for_starts(deaf, 2)
    assert first.wait() == 0
    took_s = time.monotonic() - sent_at
    assert took_s <= 0.8 + 10.0  # the budget, and the interpreter's own way down
    killed_unix = first.find("child.killed", reason="drain")[0]["time"]
    measured(f"killed by a drain -> runs at a peer: {1000 * (again.unix - killed_unix):.0f} ms")
    assert again.unix - killed_unix < 5.0
    assert stage.client.job(deaf).interruptions == 1
    peer.send(signal.SIGQUIT)
    assert peer.wait() == 0
    assert stage.client.job(deaf).interruptions == 2
    stage.assert_nothing_left(waiting=["default"])


def test_log_names_the_signals_sender_and_the_drain_step(stage):
    pool = stage.start(processes=1, drain_timeout="0.3s", term_grace="0.3s").wait_ready()
    jid = stage.queue.put("bad.c_sleep", 600)
    pool.wait_for("job.printed", line="asleep in C")
    pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    with open(f"/proc/{os.getpid()}/comm") as file:
        sender = {
            "signal": "SIGTERM",
            "sender_pid": os.getpid(),
            "sender_uid": os.getuid(),
            "sender": file.read().strip(),
        }
    draining = pool.find("master.draining")[0]
    assert pool.find("signal.received", **sender) and sender.items() <= draining.items()
    steps = [pool.find(f"master.{step}")[0] for step in ("draining", "interrupting", "killing", "leaving")]
    assert [step["running"] for step in steps] == [1, 1, 1, 0]
    left_s = [step["left_s"] for step in steps]
    assert left_s == sorted(left_s, reverse=True) and left_s[0] == pytest.approx(0.6 + 2.0, abs=0.2)
    assert stage.client.job(jid).interruptions == 1
    stage.assert_nothing_left(waiting=["default"])


def test_handler_that_cleans_up_is_interrupted_after_the_grace(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1, drain_timeout="0.3s", term_grace="10s").wait_ready()
    jid = stage.queue.put("good.count_interrupted", gate)
    stage.wait_for_starts(jid)
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    assert time.monotonic() - began_at < 8, "it left by itself, long before the kill"
    assert pool.find("job.printed", line="cleaning up after Interrupted drain")
    assert not pool.find("child.killed")
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths, job.failures) == ("waiting", 1, 0, 0)
    assert _leased_order(stage, 10) == [jid]
    stage.assert_nothing_left(waiting=["default"])


def test_handler_that_swallows_the_interruption_is_killed(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1, drain_timeout="0.2s", term_grace="2s").wait_ready()
    jid = stage.queue.put("bad.swallow", gate)
    stage.wait_for_starts(jid)
    pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    assert pool.find("job.printed", line="not me")
    assert pool.find("child.killed", reason="drain")
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths) == ("waiting", 1, 0)
    stage.assert_nothing_left(waiting=["default"])


def test_quit_hands_all_jobs_back_at_once(stage, measured):
    gate = stage.gate("gate")
    pool = stage.start(processes=2).wait_ready()
    held = [stage.queue.put("good.hold", gate) for _ in range(2)]
    rest = stage.queue.put_many([{"klass": "good.noop"} for _ in range(10)])
    for jid in held:
        stage.wait_for_starts(jid)
    began_at = pool.send(signal.SIGQUIT)
    assert pool.wait() == 0
    measured(f"QUIT with two jobs running -> exit: {1000 * (time.monotonic() - began_at):.0f} ms")
    assert time.monotonic() - began_at < 8
    assert _leased_order(stage, 20) == [*held, *rest]
    for jid in held:
        assert stage.client.job(jid).interruptions == 1
    stage.assert_nothing_left(waiting=["default"])


def test_second_term_interrupts_at_once(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    pool.send(signal.SIGTERM)
    pool.wait_for("master.draining")
    stage.let_time_pass(1.1)  # a repeat within a second would be the same request
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    assert time.monotonic() - began_at < 8
    assert pool.find("master.hurried")
    assert stage.client.job(jid).interruptions == 1
    stage.assert_nothing_left(waiting=["default"])


def test_idle_pool_drains_at_once(stage, measured):
    pool = stage.start(processes=4).wait_ready()
    for number in range(4):
        pool.wait_for("child.ready", nth=number + 1)
    began_at = pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    measured(f"TERM to an idle pool of 4 -> exit: {1000 * (time.monotonic() - began_at):.0f} ms")
    assert time.monotonic() - began_at < 8
    stage.assert_nothing_left()


def test_term_during_boot_is_remembered(stage):
    """The signal comes while the interpreter still imports, as from an orchestrator that changes its mind."""
    for _ in range(3):
        pool = stage.start()
        while not _blocks(pool.pid, signal.SIGTERM):
            assert pool.process.poll() is None
        pool.send(signal.SIGTERM)
        assert pool.wait() == 0
    stage.assert_nothing_left()


def _blocks(pid, signo):
    with open(f"/proc/{pid}/status") as status:
        mask = next(line for line in status if line.startswith("SigBlk")).split()[1]
    return bool(int(mask, 16) & 1 << (signo - 1)) and os.path.exists(f"/proc/{pid}")


def test_jobs_of_a_stopped_zygote_are_handed_back(stage):
    pool = stage.start(processes=2, drain_timeout="0.5s", term_grace="0.5s").wait_ready()
    deaf = stage.queue.put_many([{"klass": "bad.c_sleep", "data": 600} for _ in range(2)])
    pool.wait_for("job.printed", line="asleep in C", nth=2)
    os.kill(pool.zygote_pid, signal.SIGSTOP)
    pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    assert pool.find("master.leaving")
    assert [stage.client.job(jid).interruptions for jid in deaf] == [1, 1]
    assert _leased_order(stage, 10) == deaf
    stage.assert_nothing_left(waiting=["default"])
