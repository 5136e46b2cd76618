"""An idle pool starts jobs at once, and sends nothing meanwhile."""

import json
import os
import signal
import time

import pytest
from supervised import quantiles
from watched import FULL

IDLE_S = 31.0 if FULL else 10.0  # one wait for wake-ups takes 30 s


def make_known(stage, *queues):
    """Put to each queue once. The first put to a queue sends a hint to each supervisor, because it may have globs."""
    for queue in queues:
        stage.client.cancel(stage.client.queue(queue).put("good.noop"))


def test_delayed_job_starts_on_time_on_an_idle_pool(stage, measured):
    pool = stage.start(processes=2).wait_ready()
    stage.wait_until_idle(1)
    before_unix = time.time()
    jid = stage.queue.put("good.noop", delay=2)
    after_unix = time.time()
    (start,) = stage.wait_for_starts(jid)
    measured(f"delay=2: started {1000 * (start.unix - after_unix - 2):.1f} ms after its time")
    assert before_unix + 2 - 0.002 <= start.unix <= after_unix + 2 + 5
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_earlier_due_time_wakes_a_waiting_pool(stage):
    pool = stage.start(processes=1).wait_ready()
    stage.queue.put("good.noop", delay=60)
    stage.wait_until_idle(1)
    after_unix = time.time()
    jid = stage.queue.put("good.noop", delay=0.5)
    (start,) = stage.wait_for_starts(jid)
    assert start.unix <= after_unix + 0.5 + 5
    assert pool.drain() == 0
    stage.assert_nothing_left(waiting=["default"])


def test_put_starts_at_once_on_an_idle_pool(stage, measured):
    pool = stage.start(processes=2, jobs_per_child=0).wait_ready()
    waits_s = []
    for _ in range(50):
        stage.wait_until_idle(1)
        waits_s.append(stage.put_to_start_s(pool))
    measured(f"put -> the handler's first line, idle pool: {quantiles(waits_s)}")
    assert sorted(waits_s)[len(waits_s) // 2] <= 0.25
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_leases_shorter_than_waits_are_granted_once(stage):
    stage.config(heartbeat=0.3, grace=0.1)
    pool = stage.start(processes=1).wait_ready()
    jids = []
    for _ in range(10):
        stage.wait_until_idle(1)
        jids.append(stage.queue.put("good.noop"))
        pool.wait_for("job.completed", jid=jids[-1])
    assert sum(event["count"] for event in pool.find("lease.granted")) == len(jids)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_of_a_draining_peer_starts_at_once_on_an_idle_one(stage, measured):
    waits_s = []
    busy = stage.start(processes=1).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    stage.wait_until_heard(1)  # it waits for mail alone
    idle = stage.start(processes=1, queue=["none", "default"]).wait_ready()
    stage.wait_until_heard(2)
    busy.send(signal.SIGQUIT)
    again = stage.wait_for_starts(jid, 2)[1]
    handed_back_unix = busy.wait_for("job.released", jid=jid)["time"]
    waits_s.append(again.unix - handed_back_unix)
    measured(f"handed back by a draining peer -> started on the idle one: {1000 * waits_s[0]:.1f} ms")
    assert waits_s[0] <= 5
    assert busy.wait() == 0
    stage.open_gate(gate)
    idle.wait_for("job.completed", jid=jid)
    assert stage.client.job(jid).interruptions == 1
    assert idle.drain() == 0
    stage.assert_nothing_left()


def test_put_wakes_only_a_supervisor_of_its_queue(stage, proxies):
    make_known(stage, "q0", "q1")
    front = [proxies(0), proxies(0)]
    for number, proxy in enumerate(front):
        stage.start(redis_url=proxy.url, queue=f"q{number}").wait_ready()
    stage.wait_until_idle(2)
    asked = front[0].wait_until_quiet()
    jid = stage.client.queue("q1").put("good.noop")
    stage.pools[1].wait_for("job.completed", jid=jid)
    stage.wait_until_idle(2)
    assert front[0].counts()["batches"] == asked
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


def test_one_put_wakes_one_of_two_idle_supervisors(stage, proxies):
    make_known(stage, "default")
    front = [proxies(0), proxies(0)]
    for proxy in front:
        stage.start(redis_url=proxy.url).wait_ready()
    stage.wait_until_idle(2)
    asked = [proxy.wait_until_quiet() for proxy in front]
    jid = stage.queue.put("good.noop")
    stage.wait_until_ended([jid])
    stage.wait_until_idle(2)
    woken = [proxy.counts()["batches"] > before for proxy, before in zip(front, asked, strict=True)]
    assert sorted(woken) == [False, True]
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


def test_draining_supervisor_passes_its_wakeup_on(stage):
    first = stage.start().wait_ready()
    stage.wait_until_idle(1)
    stage.start().wait_ready()
    stage.wait_until_idle(2)
    first.send(signal.SIGSTOP)
    jid = stage.queue.put("good.noop")  # the longest waiting connection is the stopped one's
    first.send(signal.SIGTERM)
    first.send(signal.SIGCONT)
    stage.wait_until_ended([jid], 20)  # without it: half a minute
    assert [pool.drain() for pool in stage.pools] == [0, 0]
    stage.assert_nothing_left()


@pytest.mark.slow
def test_idle_pool_makes_one_round_trip_in_five_seconds(stage, proxies, measured):
    """TEST_FULL=1: also past the end of a wait for wake-ups."""
    proxy = proxies(0)
    pool = stage.start(redis_url=proxy.url, processes=2).wait_ready()
    stage.wait_until_idle(1)
    began = proxy.wait_until_quiet()
    cpu_s = _cpu_s(pool.pid)
    stage.let_time_pass(IDLE_S)
    trips = proxy.counts()["batches"] - began
    measured(
        f"idle for {IDLE_S:g} s: {trips} round trips, {1000 * (_cpu_s(pool.pid) - cpu_s):.0f} ms of the master's time"
    )
    assert trips <= IDLE_S / 5
    assert _cpu_s(pool.pid) - cpu_s < 0.5
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow
def test_idle_pool_looks_behind_a_door_of_sidekiq_once_in_five_seconds(stage, proxies, measured):
    """What is due there comes without a push."""
    proxy, redis, prefix = proxies(0), stage.server.redis, f"foreign-{stage.namespace}:"
    stage.client.doors.add("d", format="sidekiq", source=f"{prefix}queue:default", queue="default")
    pool = stage.start(redis_url=proxy.url, processes=1).wait_ready()
    stage.wait_until_idle(1)
    began = proxy.wait_until_quiet()
    stage.let_time_pass(IDLE_S)
    trips = proxy.counts()["batches"] - began
    measured(f"idle for {IDLE_S:g} s with a door of Sidekiq: {trips} round trips")
    assert trips <= IDLE_S / 5 + 2  # a sweep, and the end of a wait
    job = {"class": "good.noop", "args": [], "jid": "due", "queue": "default"}
    redis.zadd(f"{prefix}schedule", {json.dumps(job): 1})
    pool.wait_for("job.completed", jid="due")
    stage.client.doors.remove("d")
    assert pool.drain() == 0
    redis.unlink(*redis.keys(f"{prefix}*"))
    stage.assert_nothing_left()


def _cpu_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
