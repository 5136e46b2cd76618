"""Jobs that share a child are stopped each by itself, and all of them end when the child dies."""

import os
import signal

import pytest

from tests.process.apps import flag, start_app

HANDLERS = """
import asyncio

import menu


@handler(concurrency=100)
async def sleep(job):
    menu.enter(job)
    try:
        while not is_set(job.data):
            await asyncio.sleep(0.002)
    except asyncio.CancelledError:
        print("stopped", job.should_stop)
        raise
    return job.attempt


@handler(concurrency=100, timeout="1s")
async def slow(job, deaf: bool = False, blocks: bool = False):
    menu.enter(job)
    while blocks:
        time.sleep(0.01)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if not deaf:
                raise


@handler(concurrency=100, max_deaths=1)
async def crash(job, bad: bool = False, how: str = "signal"):
    menu.enter(job)
    while not is_set("go"):
        await asyncio.sleep(0.002)
    if bad and how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if bad and how == "exit":
        sys.exit(3)
    await asyncio.sleep(0.05)
    return job.attempt


@handler(concurrency=100, max_deaths=1)
async def spoil(job, how: str):
    loop = asyncio.get_running_loop()
    while not is_set("go"):
        await asyncio.sleep(0.002)
    if how == "exit in a callback":
        loop.call_soon(sys.exit, 3)
    elif how == "exit in a task":
        loop.create_task(leave())
    elif how == "exit beside a thread":
        loop.run_in_executor(None, time.sleep, 60)
        await asyncio.sleep(0.1)
        sys.exit(3)
    elif how == "stop the loop":
        loop.stop()
    elif how == "fork":
        if not os.fork():
            await asyncio.sleep(60)
        await asyncio.sleep(0.3)
        return "parent"
    elif how == "close the output":
        os.close(1)
        os.close(2)
        return "closed"
    elif how == "replace the task factory":
        loop.set_task_factory(lambda loop, work: asyncio.Task(work, loop=loop))
        return "replaced"
    await asyncio.sleep(60)


async def leave():
    sys.exit(3)


@handler(concurrency=100)
async def say(job):
    print("said")
    return "said"


@handler(concurrency=100, at_most_once=True)
async def once(job, bad: bool = False):
    menu.enter(job)
    while not is_set("go"):
        await asyncio.sleep(0.002)
    if bad:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(10)
"""


def finish(stage, pool, **left):
    assert pool.drain() == 0
    stage.assert_nothing_left(**left)


def put(stage, klass, *data, **options):
    return stage.queue.put_many({"klass": klass, "data": each, **options} for each in data)


def await_starts(stage, *jids):
    for jid in jids:
        stage.wait_for_starts(jid)


def counts(stage, jids):
    return {(job.failures, job.deaths, job.interruptions) for job in map(stage.client.job, jids)}


@pytest.mark.parametrize("repeat", range(3))
def test_cancel_reaches_one_job_and_harms_no_other(stage, repeat):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "sleep", *["go"] * 40)
    await_starts(stage, *jids)
    cancelled = jids[7::10]
    stage.client.cancel(*cancelled)
    for jid in cancelled:
        pool.wait_for("job.printed", jid=jid, line="stopped True")
    rest = [jid for jid in jids if jid not in cancelled]
    flag(stage, "go")
    assert {stage.client.wait(jid, "20s") for jid in rest} == {1}
    assert pool.find("job.printed") == [event for event in pool.find("job.printed") if event["jid"] in cancelled]
    finish(stage, pool)


def test_time_limit_ends_one_job_alone(stage):
    pool = start_app(stage, HANDLERS, processes=1, on_error="fail", term_grace="0.5s").wait_ready()
    others = put(stage, "sleep", *["go"] * 10)
    (slow,) = put(stage, "slow", {})
    pool.wait_for("job.failed", jid=slow)
    assert stage.client.job(slow).failure["group"] == "timeout"
    flag(stage, "go")
    assert {stage.client.wait(jid, "20s") for jid in others} == {1}
    finish(stage, pool)


def test_deaf_job_dies_of_its_limit_and_the_others_run_again_uncounted(stage):
    pool = start_app(stage, HANDLERS, processes=1, max_deaths=1, term_grace="0.5s").wait_ready()
    others = put(stage, "sleep", *["go"] * 10)
    await_starts(stage, *others)
    (deaf,) = put(stage, "slow", {"deaf": True})
    pool.wait_for("job.died", jid=deaf)
    assert stage.client.job(deaf).failure["group"] == "died:timeout"
    flag(stage, "go")
    stage.wait_until_settled(others)
    assert counts(stage, others) == {(0, 0, 0)}
    assert not pool.find("child.divided")
    finish(stage, pool)


def test_job_that_blocks_the_loop_is_found_and_dies_of_its_limit(stage):
    pool = start_app(stage, HANDLERS, processes=1, max_deaths=1, term_grace="0.5s").wait_ready()
    others = put(stage, "sleep", *["go"] * 3)
    await_starts(stage, *others)
    (blocks,) = put(stage, "slow", {"blocks": True})
    stage.wait_for_starts(blocks)
    flag(stage, "go")
    pool.wait_for("job.died", jid=blocks, timeout_s=60)
    assert stage.client.job(blocks).failure["group"] == "died:timeout"
    stage.wait_until_settled(others)
    assert counts(stage, others) == {(0, 0, 0)}
    finish(stage, pool)


@pytest.mark.parametrize(("how", "group"), [("signal", "died:SIGSEGV"), ("exit", "died:exit-3")])
@pytest.mark.parametrize("processes", [1, 2])
def test_culprit_is_found_in_halves_and_no_other_job_counts_anything(stage, processes, how, group):
    pool = start_app(stage, HANDLERS, processes=processes).wait_ready()
    jids = put(stage, "crash", *({"bad": n == 37, "how": how} for n in range(60)))
    await_starts(stage, *jids)
    flag(stage, "go")
    stage.wait_until_settled(jids, timeout_s=60)
    culprit = jids.pop(37)
    assert stage.client.job(culprit).failure["group"] == group
    assert {stage.client.job(jid).result for jid in jids} == {1}
    assert counts(stage, jids) == {(0, 0, 0)}
    assert len(pool.find("job.died")) == 1
    assert len(pool.find("child.divided")) <= 6  # 60, 30, 15, 8, 4, 2
    finish(stage, pool)


@pytest.mark.parametrize(
    ("how", "group"),
    [
        ("exit in a callback", "died:exit-3"),
        ("exit in a task", "died:exit-3"),
        ("exit beside a thread", "died:exit-3"),
        ("stop the loop", "died:exit-70"),
    ],
)
def test_job_that_ends_the_loop_dies_and_fails_no_other(stage, how, group):
    pool = start_app(stage, HANDLERS, processes=1, on_error="fail").wait_ready()
    others = put(stage, "sleep", *["go"] * 10)
    (spoils,) = put(stage, "spoil", {"how": how})
    await_starts(stage, *others)
    flag(stage, "go")
    stage.wait_until_settled([*others, spoils])
    assert stage.client.job(spoils).failure["group"] == group
    assert set(stage.states(others)) == {"complete"}
    assert counts(stage, others) == {(0, 0, 0)}
    finish(stage, pool)


@pytest.mark.parametrize("how", ["fork", "close the output", "replace the task factory"])
def test_damage_by_a_job_to_its_process_harms_no_other_job(stage, how):
    pool = start_app(stage, HANDLERS, processes=1, on_error="fail").wait_ready()
    (held,) = put(stage, "sleep", "later")
    (spoils,) = put(stage, "spoil", {"how": how})
    await_starts(stage, held)
    flag(stage, "go")
    stage.wait_until_settled([spoils])
    later = put(stage, "say", *[None] * 30)
    stage.wait_until_settled(later)
    assert set(stage.states([*later, spoils])) == {"complete"}
    for jid in later:
        pool.wait_for("job.printed", jid=jid, line="said")
    flag(stage, "later")
    stage.wait_until_settled([held])
    finish(stage, pool)


def test_hundreds_are_cancelled_or_drained_at_once(stage):
    source = """
import asyncio, menu
@handler(concurrency=2000)
async def rest(job):
    menu.enter(job)
    await asyncio.sleep(1000)
"""
    pool = start_app(stage, source, processes=1, drain_timeout="0s").wait_ready()
    jids = put(stage, "rest", *[None] * 2000)
    stage.wait_until_counted(lambda: stage.queue.counts().running == 2000)
    await_starts(stage, *jids)
    stage.client.cancel(*jids[:1000])
    stage.wait_until_counted(lambda: stage.queue.counts().running == 1000)
    rest = jids[1000:]
    assert pool.drain() == 0
    assert set(stage.states(rest)) == {"waiting"}
    assert counts(stage, rest) == {(0, 0, 1)}
    assert not pool.find("child.killed")
    stage.assert_nothing_left(waiting={"default"})


def test_at_most_once_jobs_beside_a_culprit_are_not_started_again(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "once", {}, {"bad": True}, {})
    await_starts(stage, *jids)
    flag(stage, "go")
    stage.wait_until_settled(jids)
    assert {stage.client.job(jid).failure["group"] for jid in jids} == {"interrupted"}
    assert "other jobs beside it" in pool.wait_for("job.failed", jid=jids[0])["message"]
    assert all(len(stage.ledger.starts(jid)) == 1 for jid in jids)
    finish(stage, pool)


@pytest.mark.parametrize("patience", ["0s", "25s"])
def test_drain_interrupts_all_and_hands_them_back(stage, patience):
    pool = start_app(stage, HANDLERS, processes=1, drain_timeout=patience).wait_ready()
    jids = put(stage, "sleep", *["go"] * 30)
    await_starts(stage, *jids)
    if patience != "0s":
        pool.send(signal.SIGTERM)
        pool.wait_for("master.draining")
        flag(stage, "go")
    assert pool.drain() == 0
    done = patience != "0s"
    assert set(stage.states(jids)) == {"complete" if done else "waiting"}
    assert counts(stage, jids) == {(0, 0, 0 if done else 1)}
    stage.assert_nothing_left(waiting=() if done else {"default"})


def test_killed_master_leaves_its_shared_jobs_to_a_peer(stage):
    stage.config(heartbeat=1, grace=0.5)
    first = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "sleep", *["go"] * 20)
    await_starts(stage, *jids)
    for jid in jids:
        stage.wait_until_start_is_known(jid)
    first.send(signal.SIGKILL)
    first.wait()
    flag(stage, "go")
    second = start_app(stage, HANDLERS, processes=1).wait_ready()
    assert {stage.client.wait(jid, "30s") for jid in jids} == {2}
    stage.client.deregister(first.worker)
    finish(stage, second)


def test_lost_zygote_interrupts_its_shared_jobs(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "sleep", *["go"] * 20)
    await_starts(stage, *jids)
    os.kill(pool.zygote_pid, signal.SIGKILL)
    pool.wait_for("zygote.lost")
    flag(stage, "go")
    assert {stage.client.wait(jid, "30s") for jid in jids} == {2}
    assert counts(stage, jids) == {(0, 0, 1)}
    finish(stage, pool)
