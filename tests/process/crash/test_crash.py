"""A job runs again at once after a kill in mid-job, and no other job is touched."""

import ctypes
import os
import signal
import time

import pytest
from supervised import await_ends, quantiles

from tests.parts import state_of

KILLS = int(os.environ.get("LEASEHOLD_TEST_KILLS", "30"))


@pytest.mark.timeout(900 + 2 * KILLS)
def test_killed_child_reruns_its_job_first(stage, measured):
    pool = stage.start(processes=1).wait_ready()
    again_s = []
    for number in range(KILLS):
        gate = stage.gate(f"g{number}")
        jid = stage.queue.put("good.hold", gate)
        behind = stage.queue.put_many([{"klass": "good.noop"} for _ in range(2)])
        (first,) = stage.wait_for_starts(jid)
        killed_unix = time.time()
        os.kill(first.pid, signal.SIGKILL)
        second = stage.wait_for_starts(jid, 2)[1]
        again_s.append(second.unix - killed_unix)
        stage.open_gate(gate)
        stage.wait_until_ended([jid, *behind])
        assert [start.jid for start in stage.ledger.starts(jid, *behind)] == [jid, jid, *behind]
        job = stage.client.job(jid)
        assert (job.state, job.deaths, job.failures, job.interruptions) == ("complete", 1, 0, 0)
        assert second.attempt == 2
    measured(f"SIGKILL to a child -> its job runs again: {quantiles(again_s)}")
    assert sorted(again_s)[int(len(again_s) * 0.99)] <= 3
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_third_death_fails_the_job_with_its_last_output(stage):
    stage.start(processes=1).wait_ready()
    jid = stage.queue.put("bad.print_then_die", {"lines": 3})
    neighbour = stage.queue.put("good.noop")
    stage.wait_until_ended([jid, neighbour])
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.failures) == ("failed", 3, 0)
    assert stage.client.failed() == {"died:SIGKILL": 1}
    assert job.failure["klass"] == "bad.print_then_die"
    assert "SIGKILL" in job.failure["message"]
    assert "bad.print_then_die" in job.failure["message"]
    assert f"line 2 of {jid}\nwritten in C\nan open line" in job.failure["output"]
    assert [start.attempt for start in stage.ledger.starts(jid)] == [1, 2, 3]
    assert [event["deaths"] for event in stage.find("job.died", jid=jid)] == [1, 2, 3]
    assert stage.pools[0].drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize(
    ("klass", "data", "group"),
    [
        ("bad.segv", {}, "died:SIGSEGV"),
        ("bad.leave", {"status": 3}, "died:exit-3"),
        ("bad.leave", {"status": 0}, "died:exit-0"),
        ("bad.sys_exit", 4, "died:exit-4"),
    ],
)
@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_every_death_in_a_job_has_its_reason(stage, klass, data, group, jobs_per_child):
    pool = stage.start(processes=1, jobs_per_child=jobs_per_child).wait_ready()
    jid = stage.queue.put(klass, data, max_deaths=1)
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([jid, after])
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.failures) == ("failed", 1, 0)
    assert stage.client.failed() == {group: 1}
    if klass == "bad.segv":
        assert "string_at" in job.failure["stack"]
    assert stage.client.job(after).state == "complete"
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_peer_finishes_every_job_of_a_dead_master_once(stage, measured):
    stage.config(grace=0.3)
    gate = stage.gate("gate")
    first = stage.start(processes=3, lease_ttl="1s").wait_ready()
    held = [stage.queue.put("good.hold", gate) for _ in range(3)]
    behind = stage.queue.put_many([{"klass": "good.noop"} for _ in range(50)])
    for jid in held:
        stage.wait_until_start_is_known(jid)
    children = [first.zygote_pid, *first.child_pids()]
    first.send(signal.SIGKILL)
    killed_at = time.monotonic()
    assert await_ends(children, 20.0) == []
    measured(f"SIGKILL to the master -> all below it ended: {1000 * (time.monotonic() - killed_at):.0f} ms")
    assert first.wait() == -signal.SIGKILL
    stage.open_gate(gate)
    second = stage.start(processes=2, lease_ttl="1s")
    stage.wait_until_ended([*held, *behind])
    took_over_s = (
        max(start.unix for jid in held for start in stage.ledger.starts(jid)) - stage.find("master.started")[1]["time"]
    )
    measured(f"a peer starts -> the lost jobs have started again (TTL 1 s, grace 0.3 s): {took_over_s:.2f} s")
    assert set(stage.states([*held, *behind])) == {"complete"}
    for jid in held:
        assert len(stage.ledger.starts(jid)) == 2
        job = stage.client.job(jid)
        assert (job.deaths, job.failures, job.interruptions) == (1, 0, 0)
    assert [len(stage.ledger.starts(jid)) for jid in behind] == [1] * 50
    assert len(stage.find("job.completed")) == 53
    assert second.drain() == 0
    own = {f"{kind}:{first.worker}" for kind in ("worker", "mail", "skills", "shapes")}
    dead_worker = own | {"workers-seen"}
    assert stage.keys().keys() <= dead_worker, "a dead worker's record lives until max-worker-age"
    stage.server.redis.delete(*(stage.prefix + key for key in dead_worker))
    stage.assert_nothing_left()


def test_subprocess_of_a_job_dies_with_the_killed_master(stage):
    gate = stage.gate("gate")
    pool = stage.start(processes=1).wait_ready()
    jid = stage.queue.put("bad.daemons", {"gate": gate})
    stage.wait_until(lambda: len(stage.ledger.left_behind(jid)) == 3, "three left behind")
    pool.send(signal.SIGKILL)
    assert await_ends([*stage.ledger.left_behind(jid), pool.zygote_pid, *pool.child_pids()], 20.0) == []
    pool.wait()
    assert stage.files() == []


class Tracer:
    """Traces processes, as a debugger does. A dead one stays a zombie until it is let go."""

    _SEIZE, _ALL = 0x4206, 0x40000000  # PTRACE_SEIZE; __WALL

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._held = set()

    def kill_and_hold(self, pid):
        if self._libc.ptrace(self._SEIZE, pid, None, None) != 0:
            pytest.skip(f"a process cannot be traced here: {os.strerror(ctypes.get_errno())}")
        self._held.add(pid)
        os.kill(pid, signal.SIGKILL)

    def let_go(self):
        for pid in self._held:
            os.waitpid(pid, self._ALL)
        self._held.clear()


@pytest.fixture
def tracer():
    tracer = Tracer()
    yield tracer
    tracer.let_go()


def hold_two(stage, pool):
    """Return the jids and pids of two jobs that run until the gate is opened, and the gate."""
    gate = stage.gate("gate")
    jids = [stage.queue.put("good.hold", gate) for _ in range(2)]
    return jids, [stage.wait_for_starts(jid)[0].pid for jid in jids], gate


def test_dead_child_that_a_debugger_holds_delays_no_other(stage, tracer):
    pool = stage.start(processes=3, sandbox="none").wait_ready()
    jids, pids, gate = hold_two(stage, pool)
    tracer.kill_and_hold(pids[0])
    stage.wait_until_counted(lambda: state_of(pids[0]) == "Z")
    quick = stage.queue.put("good.noop")
    stage.wait_until_ended([quick])
    pool.wait_for("child.reaped", pid=stage.ledger.starts(quick)[0].pid)
    assert not pool.find("child.reaped", pid=pids[0])
    tracer.let_go()
    pool.wait_for("child.reaped", pid=pids[0], status="SIGKILL")
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    assert [(job.state, job.deaths) for job in stage.client.jobs(*jids)] == [("complete", 1), ("complete", 0)]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_children_end_with_their_master_though_a_debugger_holds_a_dead_one(stage, tracer):
    pool = stage.start(processes=2, sandbox="none").wait_ready()
    _jids, pids, _gate = hold_two(stage, pool)
    tracer.kill_and_hold(pids[0])
    stage.wait_until_counted(lambda: state_of(pids[0]) == "Z")
    pool.send(signal.SIGKILL)
    assert await_ends([pids[1], pool.zygote_pid], 20.0) == []
    pool.wait()
    assert stage.files() == []


def test_killed_zygote_costs_one_interruption(stage, measured):
    gate = stage.gate("gate")
    pool = stage.start(processes=2).wait_ready()
    held = [stage.queue.put("good.hold", gate) for _ in range(2)]
    for jid in held:
        stage.wait_for_starts(jid)
    killed_unix = time.time()
    os.kill(pool.zygote_pid, signal.SIGKILL)
    for jid in held:
        again = stage.wait_for_starts(jid, 2)[1]
    measured(f"SIGKILL to the zygote -> its jobs run again: {1000 * (again.unix - killed_unix):.0f} ms")
    for jid in held:
        job = stage.client.job(jid)
        assert (job.state, job.deaths, job.failures, job.interruptions) == ("running", 0, 0, 1)
    pool.wait_for("zygote.lost")
    stage.open_gate(gate)
    more = stage.queue.put_many([{"klass": "good.noop"} for _ in range(5)])
    stage.wait_until_ended([*held, *more])
    assert len(pool.find("zygote.ready")) == 2
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_alone_at_three_zygote_losses_fails_for_good(stage):
    pool = stage.start(processes=2, sandbox="none").wait_ready()
    jid = stage.queue.put("bad.kill_zygote", stage.gate("never"))
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths, job.failures) == ("failed", 2, 3, 0)
    assert stage.client.failed() == {"died:lost": 1}
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([after])
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_zygote_killer_among_others_is_found_and_others_complete(stage):
    pool = stage.start(processes=2, sandbox="none").wait_ready()
    poison = stage.queue.put("bad.nap_then_kill_zygote", 0.3)
    others = stage.queue.put_many([{"klass": "good.nap", "data": 0.1} for _ in range(150)])
    stage.wait_until_ended([poison, *others], 100)
    assert stage.client.job(poison).state == "failed"
    assert set(stage.states(others)) == {"complete"}
    assert stage.client.failed() == {"died:lost": 1}
    assert all(stage.client.job(jid).deaths == 0 for jid in others)
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_mixed_work_under_random_kills_completes_every_job_once(stage, measured):
    """300 mixed jobs, a kill every few starts: only a job whose child has died starts more often than once."""
    stage.config(max_deaths=0)
    pools = [stage.start(processes=2, jobs_per_child=number) for number in (0, 3)]
    for pool in pools:
        pool.wait_ready()
    kinds = [
        {"klass": "good.noop"},
        {"klass": "good.echo", "data": {"n": 1}},
        {"klass": "good.nap", "data": 0.005},
        {"klass": "bad.leave", "data": {"status": 3, "times": 1}},
        {"klass": "bad.retry", "data": {"times": 1}},
        {"klass": "good.nap", "data": 0.05},
    ]
    jids = stage.queue.put_many([kinds[n % 6] for n in range(300)])
    killed = 0
    while killed < 40 and len(stage.ended()) < 290:
        seen = len(stage.ledger.starts())
        stage.wait_until(
            lambda seen=seen: len(stage.ledger.starts()) > seen + 2 or len(stage.ended()) >= 290, "more starts"
        )
        victim = pools[killed % 2].child_pids()
        if victim:
            killed += 1
            try:
                os.kill(victim[killed % len(victim)], signal.SIGKILL)
            except ProcessLookupError:
                continue
    stage.wait_until_ended(jids, 60)
    assert set(stage.states(jids)) == {"complete"}
    completed = [event["jid"] for event in stage.find("job.completed")]
    assert sorted(completed) == sorted(jids)
    for jid in jids:
        job = stage.client.job(jid)
        starts = stage.ledger.starts(jid)
        # A child may die after the lease and before the handler's first line.
        assert 1 <= len(starts) <= 1 + job.deaths + job.failures, (jid, starts)
        assert job.interruptions == 0
        assert job.failures <= (1 if job.klass == "bad.retry" else 0)
    measured(f"{killed} kills in {len(jids)} jobs, {len(stage.find('job.died'))} deaths counted")
    for pool in pools:
        assert pool.drain() == 0
    stage.assert_nothing_left()
