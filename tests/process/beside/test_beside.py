"""Jobs of `@handler(concurrency=…)` run beside each other in one child, and stay apart."""

import os
import signal
import subprocess
import sys

from tests.process.apps import flag, start_app

HANDLERS = """
import asyncio, contextvars, logging

import menu

logging.basicConfig(stream=sys.stderr, format="%(message)s")
mine = contextvars.ContextVar("mine", default=None)
running = most = 0


@handler(concurrency=50)
async def sleep(job):
    global running, most
    menu.enter(job)
    running += 1
    most = max(most, running)
    try:
        while not is_set(job.data):
            await asyncio.sleep(0.002)
    finally:
        running -= 1
    return [os.getpid(), most]


@handler(concurrency=50)
async def apart(job, n: int):
    mine.set(n)
    print("first", n)
    (job.workdir / "file").write_text(str(n))
    job.progress(0.5, f"half of {n}")
    await job.acheckpoint({"n": n})
    await asyncio.sleep(0.05)
    logging.getLogger("shop").error("second %d", n)
    await asyncio.to_thread(print, "third", n)
    print("fourth", n, end="")
    assert (job.workdir / "file").read_text() == str(n)
    assert os.listdir(job.workdir) == ["file"]
    if n % 10 == 3:
        raise LookupError(f"none of {n}")
    return [mine.get(), str(job.workdir)]


@handler
def plain(job):
    return os.getpid()


@handler(concurrency=5)
async def left(job):
    async def for_ever():
        try:
            await asyncio.sleep(1000)
        finally:
            count("left-ended")

    asyncio.get_running_loop().create_task(for_ever())
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@handler(concurrency=5)
async def puts(job, n: int):
    await asyncio.sleep(0.01)
    job.put("default", "plain", None, jid=f"of-{n}")
    return "x" * 1000


@handler(concurrency=20)
async def steps(job, n: int):
    job.checkpoint([n, 1])
    await asyncio.sleep(0)
    await asyncio.to_thread(job.checkpoint, [n, 2])
    if job.failures == 0:
        raise RuntimeError("again")
    return job.saved
"""


def finish(stage, pool):
    assert pool.drain() == 0
    stage.assert_nothing_left()


def put(stage, klass, *data, **options):
    return stage.queue.put_many({"klass": klass, "data": each, **options} for each in data)


def results(stage, jids):
    return [stage.client.wait(jid, "20s") for jid in jids]


def await_starts(stage, jids):
    for jid in jids:
        stage.wait_for_starts(jid)


def test_one_child_runs_as_many_jobs_at_once_as_its_handler_allows(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "sleep", *["go"] * 70)
    await_starts(stage, jids[:50])
    assert stage.queue.counts().running == 50
    flag(stage, "go")
    told = results(stage, jids)
    assert {pid for pid, _ in told} == set(pool.child_pids())
    assert max(most for _, most in told) == 50
    finish(stage, pool)


def test_status_tells_how_many_jobs_a_child_runs(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "sleep", *["go"] * 7)
    await_starts(stage, jids)
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace}
    command = [sys.executable, "-m", "supervisor", "status", pool.worker]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "sleep x7" in told
    flag(stage, "go")
    results(stage, jids)
    finish(stage, pool)


def test_jobs_are_spread_over_the_children(stage):
    pool = start_app(stage, HANDLERS, processes=2).wait_ready()
    pool.wait_for("child.ready", nth=2)
    jids = put(stage, "sleep", *["go"] * 60)
    await_starts(stage, jids)
    flag(stage, "go")
    by_child = [pid for pid, _ in results(stage, jids)]
    assert sorted(map(by_child.count, set(by_child))) == [30, 30]
    finish(stage, pool)


def test_output_progress_files_and_context_belong_to_their_own_job(stage):
    pool = start_app(stage, HANDLERS, processes=1, on_error="fail").wait_ready()
    jids = put(stage, "apart", *({"n": n} for n in range(30)))
    stage.wait_until_settled(jids)
    for n, jid in enumerate(jids):
        job = stage.client.job(jid)
        lines = [event["line"] for event in stage.find("job.printed", jid=jid)]
        assert lines == [f"first {n}", f"second {n}", f"third {n}", f"fourth {n}"]
        assert job.progress.text == f"half of {n}"
        if n % 10 == 3:
            assert (job.state, job.failure["group"]) == ("failed", "LookupError")
            assert job.failure["output"].splitlines() == lines
        else:
            own, workdir = job.result
            assert own == n
            assert workdir not in stage.files()
    finish(stage, pool)


def test_other_jobs_have_children_of_their_own(stage):
    pool = start_app(stage, HANDLERS, processes=2, dispatch_ahead="0s").wait_ready()
    held = put(stage, "sleep", *["go"] * 10)
    await_starts(stage, held)
    flag(stage, "go")
    shared = {pid for pid, _ in results(stage, held)}
    plain = results(stage, put(stage, "plain", *[None] * 5))
    assert not shared & set(plain)
    finish(stage, pool)


def test_ordinary_job_waits_for_a_free_child_and_others_pass_it(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    first = put(stage, "sleep", "go")
    await_starts(stage, first)
    (plain,) = put(stage, "plain", None)
    later = put(stage, "sleep", *["go"] * 5)
    await_starts(stage, later)
    assert not stage.find("job.started", jid=plain)
    flag(stage, "go")
    results(stage, [*first, *later])
    assert stage.client.wait(plain, "20s") > 0
    finish(stage, pool)


def test_tasks_of_a_job_end_with_the_job(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    (held,) = put(stage, "sleep", "go")  # the loop goes on
    (left,) = put(stage, "left", None)
    assert len(stage.client.wait(left, "20s")) >= 1
    stage.wait_until((stage.directory / "left-ended").exists, "the task has ended")
    flag(stage, "go")
    stage.client.wait(held, "20s")
    finish(stage, pool)


def test_jobs_that_follow_are_put_with_the_completion(stage):
    pool = start_app(stage, HANDLERS, processes=1, jobs_per_child=0).wait_ready()
    jids = put(stage, "puts", *({"n": n} for n in range(20)))
    results(stage, jids)
    assert len(results(stage, [f"of-{n}" for n in range(20)])) == 20
    finish(stage, pool)


def test_each_job_gets_its_own_checkpoints_back(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    jids = put(stage, "steps", *({"n": n} for n in range(20)))
    assert results(stage, jids) == [[n, 2] for n in range(20)]
    finish(stage, pool)


def test_many_checkpoints_at_once_are_all_answered(stage):
    source = """
import asyncio
@handler(concurrency=1500)
async def step(job):
    for number in range(3):
        await job.acheckpoint(number)
"""
    pool = start_app(stage, source, processes=1).wait_ready()
    jids = put(stage, "step", *[None] * 1500)
    stage.wait_until_settled(jids, timeout_s=60)
    assert set(stage.states(jids)) == {"complete"}
    finish(stage, pool)


def test_payload_of_any_size_reaches_its_job(stage):
    source = "import asyncio\n@handler(concurrency=9)\nasync def size(job):\n    return len(job.data)\n"
    pool = start_app(stage, source, processes=1).wait_ready()
    sizes = [0, 1, 20_000, 300_000, 5_000_000]
    assert results(stage, put(stage, "size", *("x" * size for size in sizes))) == sizes
    finish(stage, pool)


def test_reload_lets_running_jobs_end_on_the_old_code(stage):
    pool = start_app(stage, HANDLERS, processes=1).wait_ready()
    old = put(stage, "sleep", *["go"] * 10)
    await_starts(stage, old)
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    new = put(stage, "sleep", *["go"] * 10)
    flag(stage, "go")
    before, after = ({pid for pid, _ in results(stage, jids)} for jids in (old, new))
    assert not before & after
    assert {stage.client.job(jid).interruptions for jid in old} == {0}
    finish(stage, pool)
