"""A cancelled job is stopped with all its processes, and no other job is disturbed."""

import contextlib
import random
import threading
import time

import psutil
import pytest
from servers import stopped
from supervised import quantiles
from watched import FULL

from tests.chaos.accounts import Runs

VICTIMS = 1000 if FULL else 120
GRACE_S = 1.0
#: Activities at the time of the cancel. The last two need a kill.
LISTENING = ("sleep", "subprocess", "spin")
DEAF = ("deaf", "in C")
FOR_EVER_S = 600
#: Processor time of idle supervisors per second.
IDLE_S = 0.05


@pytest.fixture
def runs(stage):
    runs = Runs(stage.directory)
    yield runs
    runs.close()


@pytest.fixture
def start(stage, runs):
    """Start a supervisor whose handlers record their runs."""

    def start(**flags):
        return stage.start(
            environment=runs.environment(len(stage.pools) + 1), term_grace=f"{GRACE_S}s", **flags
        ).wait_ready()

    return start


@pytest.fixture
def put(stage):
    def put(jid, how, seconds=FOR_EVER_S):
        return stage.queue.put("cancelled.at_work", {"how": how, "s": seconds}, jid=jid)

    return put


def wait_until_over(stage, runs, but=None):
    stage.wait_until_counted(lambda: all(run.is_over() for run in runs.all if run.jid != but))
    runs.sync()


def words(runs):
    """Return jid -> the last words of its runs."""
    found = {}
    for run in list(runs.all):
        found.setdefault(run.jid, []).append(run.word)
    return found


def processes_below(pools):
    return [below for pool in pools for below in psutil.Process(pool.pid).children(recursive=True)]


def programs_below(pools):
    """Return the subprocesses of jobs."""
    found = []
    for below in processes_below(pools):
        with contextlib.suppress(psutil.NoSuchProcess):
            if below.name() == "sleep":
                found.append(below.pid)
    return found


def cpu_s(pools):
    total_s = 0.0
    for process in [*(psutil.Process(pool.pid) for pool in pools), *processes_below(pools)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            total_s += spent.user + spent.system
    return total_s


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_random_cancels_disturb_no_other_job(stage, runs, start, put, measured):
    """Half of the jobs are cancelled, the others go on. TEST_FULL=1 cancels a thousand."""
    draw = random.Random(8)
    pools = [start(processes=4, jobs_per_child=number) for number in (1, 0)]
    hows = {f"v{n}": draw.choice(LISTENING * 4 + DEAF) for n in range(VICTIMS)}
    spared = [f"s{n}" for n in range(VICTIMS)]
    for victim, other in zip(hows, spared, strict=True):
        put(victim, hows[victim])
        put(other, draw.choice((*LISTENING, "in C")), draw.uniform(0.0, 0.08))
    cancelled_at = {}
    while len(cancelled_at) < VICTIMS:
        count = len(runs.all)
        due = [run.jid for run in runs.running() if run.jid in hows.keys() - cancelled_at.keys()]
        if not due:
            runs.wait_for(count + 1, 1.0)
            continue
        stage.let_time_pass(draw.choice((0.0, draw.uniform(0.0, 0.02))))
        jid = draw.choice(due)
        cancelled_at[jid] = time.monotonic()
        assert stage.client.cancel(jid) == [jid]
        if draw.random() < 0.3:
            assert stage.client.cancel(jid, draw.choice(list(cancelled_at))) == []
    stage.wait_until_ended(spared, 60)
    wait_until_over(stage, runs)

    by_jid = {run.jid: run for run in runs.all}
    assert len(runs.all) == len(by_jid) == 2 * VICTIMS
    assert {by_jid[jid].word for jid in spared} == {"done"}
    assert set(stage.states(spared)) == {"complete"}
    assert [job for job in stage.client.jobs(*spared[:1000]) if job.deaths + job.failures + job.interruptions] == []
    assert set(stage.states(hows)) == {"lost"}
    assert {by_jid[jid].word for jid in hows} == {"interrupted:cancelled", None}
    deaf = {jid for jid in hows if by_jid[jid].word is None}
    assert all(hows[jid] in DEAF for jid in deaf)
    assert {said["jid"] for said in stage.find("child.killed")} == deaf
    assert sorted(said["jid"] for said in stage.find("lease.lost", reason="cancelled")) == sorted(hows)
    assert stage.find("job.died") == stage.find("job.released") == []
    stopped_s = [run.ended_at - cancelled_at[jid] for jid, run in by_jid.items() if run.word and jid in hows]
    measured(f"cancel -> its handler is interrupted, beside 7 others at work: {quantiles(stopped_s)}")
    assert_idle(stage, pools, measured)
    assert stage.client.check() == []
    assert [pool.drain() for pool in pools] == [0, 0]
    stage.assert_nothing_left()


def assert_idle(stage, pools, measured):
    """Check that none of their programs runs, and that supervisors soon use almost no processor time."""
    stage.wait_until_counted(lambda: programs_below(pools) == [])
    stage.wait_until_idle(len(pools))
    spent_s = []
    while len(spent_s) < 10 and (not spent_s or spent_s[-1] > IDLE_S):
        before_s = cpu_s(pools)
        stage.let_time_pass(1.0)
        spent_s.append(cpu_s(pools) - before_s)
    measured(f"processor time of the supervisors, second by second: {[round(1000 * s) for s in spent_s]} ms")
    assert spent_s[-1] <= IDLE_S


@pytest.mark.sampled(2)
def test_a_cancel_racing_completion_hurts_no_next_job(stage, runs, start, put, measured):
    """Two children live on with jobs sent ahead: a late cancel must not hit the next job."""
    draw = random.Random(3)
    pool = start(processes=2, jobs_per_child=0)
    jids = [put(f"j{n}", draw.choice(("sleep", "spin")), draw.choice((0.0, 0.004, 0.012))) for n in range(2 * VICTIMS)]
    answered = {}
    while len(answered) < VICTIMS and len(runs.all) < len(jids):
        count = len(runs.all)
        if runs.wait_for(count + 1, 5.0):
            jid = runs.all[-1].jid
            stage.let_time_pass(draw.uniform(0.0, 0.006))
            answered[jid] = stage.client.cancel(jid) == [jid]
    rest = [jid for jid in jids if not answered.get(jid)]
    stage.wait_until_settled(rest, 60)
    wait_until_over(stage, runs)

    assert set(stage.states(rest)) == {"complete"}
    cancelled = [jid for jid, gone in answered.items() if gone]
    assert set(stage.states(cancelled)) <= {"lost"}
    by_jid = {run.jid: run for run in runs.all}
    assert len(runs.all) == len(by_jid), "none has run twice"
    assert {by_jid[jid].word for jid in rest} == {"done"}
    assert {by_jid[jid].word for jid in cancelled} <= {"done", "interrupted:cancelled", "done, interrupted:cancelled"}
    assert pool.find("child.killed") == pool.find("job.died") == []
    assert len(pool.find("child.ready")) == 2
    interrupted = sum(by_jid[jid].word != "done" for jid in cancelled)
    measured(f"{len(answered)} cancelled at the end: {len(cancelled)} were gone, {interrupted} of them interrupted")
    assert 0 < len(cancelled) < len(answered)
    assert pool.drain() == 0
    stage.assert_nothing_left()


TAKEN = {
    "cancelled": lambda stage, jid: stage.client.cancel(jid),
    "lease-lost": lambda stage, jid: stage.client.job(jid).move("elsewhere"),
}


@pytest.mark.parametrize("reason", list(TAKEN))
def test_a_deaf_handler_is_killed_with_its_processes(stage, runs, start, reason, measured):
    """The job was cancelled, or its lease was lost."""
    pool = start(processes=3)
    gate = stage.gate("gate")
    neighbours = [stage.queue.put("good.hold", gate) for _ in range(2)]
    for jid in neighbours:
        stage.wait_for_starts(jid)
    jid = stage.queue.put("cancelled.deaf_with_tree")
    pool.wait_for("job.printed", jid=jid, line="deaf to all")
    assert runs.wait_for(1, 20)
    child = psutil.Process(runs.all[0].who.pid)
    tree = [child, *child.children(recursive=True)]
    assert len(tree) >= 4
    stage.wait_until_heard(1)

    began_at, began_unix = time.monotonic(), time.time()
    TAKEN[reason](stage, jid)
    while reason == "cancelled" and time.monotonic() < began_at + GRACE_S / 2:
        assert stage.client.cancel(jid) == []
    _gone, alive = psutil.wait_procs(tree, timeout=20)
    took_s = time.monotonic() - began_at
    assert alive == [], alive
    measured(f"{reason} -> the deaf handler and its tree are gone (grace {GRACE_S} s): {took_s:.2f} s")
    assert GRACE_S <= took_s <= GRACE_S + 8
    assert pool.wait_for("job.printed", jid=jid, line="not me: Interrupted")["time"] - began_unix <= 5
    assert pool.wait_for("child.killed")["reason"] == reason
    assert [said["reason"] for said in pool.find("lease.lost")] == [reason]
    assert pool.find("job.died") == []

    stage.open_gate(gate)
    stage.wait_until_ended(neighbours)
    assert [len(stage.ledger.starts(one)) for one in neighbours] == [1, 1]
    assert pool.drain() == 0
    stage.client.cancel(jid)  # it lies elsewhere, if it was moved
    stage.assert_nothing_left()


def test_a_reused_jid_outlives_the_cancelled_run(stage, runs, start, put):
    pool = start(processes=2)
    put("x", "deaf")
    assert runs.wait_for(1, 20)
    assert stage.client.cancel("x") == ["x"]
    pool.wait_for("lease.lost", jid="x", reason="cancelled")
    put("x", "sleep", 2 * GRACE_S)
    pool.wait_for("child.killed", jid="x")
    pool.wait_for("job.completed", jid="x")
    runs.sync()
    assert [run.word for run in runs.all] == [None, "done"]
    job = stage.client.job("x")
    assert (job.deaths, job.failures, job.interruptions) == (0, 0, 0)
    assert len(pool.find("child.killed")) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_cancel_during_an_outage_takes_effect_after_it(stage, runs, start, put, proxies, measured):
    """Stall the connection, so that no hint comes through, for longer than an exchange may take."""
    proxy = proxies(0)
    pool = start(processes=3, redis_url=proxy.url, lease_ttl="3s")
    put("x", "sleep")
    put("deaf", "deaf")
    put("other", "sleep", 4.0)
    assert runs.wait_for(3, 20)
    stage.wait_until_heard(1)
    with stopped(proxy.process):
        assert sorted(stage.client.acting_as("kim").cancel("x", "deaf")) == ["deaf", "x"]
        stage.let_time_pass(1.5)  # the outage
        assert pool.find("lease.lost") == []
    back_at = time.monotonic()
    pool.wait_for("lease.lost", jid="x", reason="cancelled")
    assert {(said["jid"], said["by"]) for said in pool.find("job.cancelled")} == {("x", "kim"), ("deaf", "kim")}
    pool.wait_for("child.killed", jid="deaf", reason="cancelled")
    wait_until_over(stage, runs, but="other")
    (stopped_at,) = (run.ended_at for run in runs.all if run.jid == "x")
    measured(f"the line is back -> the cancelled handler is interrupted: {1000 * (stopped_at - back_at):.0f} ms")
    stage.wait_until_ended(["other"])
    runs.sync()
    assert words(runs) == {"x": ["interrupted:cancelled"], "deaf": [None], "other": ["done"]}
    assert pool.find("job.died") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_cancel_during_a_redis_stall_takes_effect_after_it(own_stage, own_server, runs, start, put):
    stage = own_stage
    pool = start(processes=2, lease_ttl="3s")
    put("x", "sleep")
    put("other", "sleep", 4.0)
    assert runs.wait_for(2, 20)
    stage.wait_until_heard(1)
    asked = threading.Thread(target=stage.client.cancel, args=("x",), name="cancel")
    with stopped(own_server.process):
        asked.start()
        pool.wait_for("redis.lost")
        assert pool.find("lease.lost") == []
    asked.join(10)
    pool.wait_for("lease.lost", jid="x", reason="cancelled")
    stage.wait_until_ended(["other"])
    wait_until_over(stage, runs)
    assert words(runs) == {"x": ["interrupted:cancelled"], "other": ["done"]}
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_cancels_take_effect_though_every_seventh_reply_is_lost(stage, runs, start, put, proxies):
    proxy = proxies(7)
    pool = start(processes=4, jobs_per_child=0, redis_url=proxy.url, lease_ttl="3s")
    count = VICTIMS // 20
    for n in range(count):
        put(f"v{n}", "sleep")
        put(f"s{n}", "sleep", 0.05)
    for n in range(count):
        stage.wait_until_counted(lambda n=n: any(run.jid == f"v{n}" for run in runs.all), 40)
        assert stage.client.cancel(f"v{n}") == [f"v{n}"]
    spared = [f"s{n}" for n in range(count)]
    stage.wait_until_settled(spared, 60)
    wait_until_over(stage, runs)
    assert set(stage.states(spared)) == {"complete"}
    found = words(runs)
    assert {found[f"v{n}"][-1] for n in range(count)} == {"interrupted:cancelled"}
    assert {tuple(found[jid]) for jid in spared} == {("done",)}
    assert pool.find("child.killed") == pool.find("job.died") == []
    assert proxy.counts()["dropped"] > 0
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.slow  # a sweep comes within 18 s
def test_cancel_of_a_job_that_nobody_has_is_logged_by_one(stage):
    queue, client = stage.queue, stage.client
    queue.put("good.noop", jid="early", delay=3600)
    client.cancel("early", by="kim@web-1")
    pools = [stage.start(processes=1).wait_ready() for _ in range(2)]
    stage.wait_until(lambda: bool(stage.find("job.cancelled")), "the log of the first that starts")
    queue.put("good.noop", jid="late", delay=3600)
    client.cancel("late", by="robin@web-2")
    stage.wait_until(lambda: len(stage.find("job.cancelled")) == 2, "the log of the first that sweeps", 30)
    assert [pool.drain() for pool in pools] == [0, 0]
    told = [(said["jid"], said["klass"], said["queue"], said["by"]) for said in stage.find("job.cancelled")]
    assert told == [
        ("early", "good.noop", "default", "kim@web-1"), ("late", "good.noop", "default", "robin@web-2"),
    ]  # fmt: skip
    stage.assert_nothing_left()
