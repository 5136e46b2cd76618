"""Strays of a job end before the job runs again, whatever they do against it."""

import os
import signal
from functools import partial

import psutil
import pytest
from apps import flag, start_app
from supervised import await_ends

DAEMONS = """
import errno


def reports(name):
    with open(HERE / name, "a") as file:
        file.write(f"{os.getpid()}\\n")


def stopped():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            reports("left")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)


def with_zombies():
    if os.fork() == 0:
        os.setsid()
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
        reports("left")
        while True:
            time.sleep(1000)


def hopping():
    \"\"\"Lives on in a fork of itself, again and again.\"\"\"
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)


def hopping_away():
    if os.fork() == 0:
        while True:
            os.setsid()
            if os.fork():
                os._exit(0)


def breeding():
    \"\"\"A few that fork as fast as they can.\"\"\"
    if os.fork() == 0:
        os.setsid()
        for _ in range(2):
            os.fork()
        while True:
            if os.fork() == 0:
                os._exit(0)


def many():
    for _ in range(100):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(1000)
            os._exit(0)


@handler
def leave(job):
    globals()[job.data["what"]]()
    if job.data["end"] == "killed" and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split())
"""
KINDS = ("stopped", "with_zombies", "hopping", "hopping_away", "breeding", "many")


@pytest.fixture
def app(stage):
    return partial(start_app, stage)


def below(pool):
    """Return all processes below the zygote."""
    return {process.pid for process in psutil.Process(pool.zygote_pid).children(recursive=True)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ["killed", "completed"])
@pytest.mark.parametrize("what", KINDS)
def test_nothing_is_left_when_a_jobs_end_is_reported(stage, app, what, end):
    pool = app(DAEMONS, processes=2).wait_ready()
    jid = stage.queue.put("leave", {"what": what, "end": end}, max_deaths=2)
    stage.wait_until_ended([jid])
    assert stage.states([jid]) == ["complete"]
    after = stage.queue.put("noop")
    stage.wait_until_ended([after])
    pool.wait_for("child.reaped", nth=2)
    stage.wait_until_counted(lambda: below(pool) == set(pool.child_pids()))
    assert not pool.find("zygote.retired")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("klass", ["alone", "beside"])
def test_job_that_ignores_the_ends_of_its_subprocesses_completes(stage, app, klass):
    source = """
def leave():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"])

@handler
def alone(job):
    leave()

@handler(concurrency=2)
async def beside(job):
    leave()
"""
    pool = app(source, processes=1)
    jids = [stage.queue.put(klass, max_deaths=1) for _ in range(3)]
    stage.wait_until_ended(jids)
    assert [(job.state, job.deaths) for job in stage.client.jobs(*jids)] == [("complete", 0)] * 3
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_job_of_a_busy_zygote_never_meets_its_strays(stage, app):
    """The job's child is killed meanwhile, and the master ends the processes below it."""
    source = """
@before_fork
def let_go():
    while is_set("busy"):
        time.sleep(0.01)

@handler
def work(job):
    if job.attempt == 1:
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (HERE / "left").write_text(str(left.pid))
        time.sleep(1000)
    try:
        return Path("/proc", (HERE / "left").read_text(), "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"
"""
    pool = app(source, processes=3).wait_ready()
    jid = stage.queue.put("work")
    started = pool.wait_for("job.started", jid=jid)
    left = stage.directory / "left"
    stage.wait_until_counted(lambda: len(pool.child_pids()) == 4 and left.exists() and left.read_text())
    own = pool.find("child.spawned", child=started["child"])[-1]["pid"]
    other = next(pid for pid in pool.child_pids() if pid != own)
    flag(stage, "busy")
    os.kill(other, signal.SIGKILL)
    pool.wait_for("child.reaped", pid=other)
    os.kill(own, signal.SIGKILL)
    stage.wait_until_ended([jid])
    flag(stage, "busy", on=False)
    job = stage.client.job(jid)
    assert (job.state, job.deaths) == ("complete", 1)
    assert job.result in ("Z", "gone")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_strays_of_a_killed_zygote_end_before_its_jobs_rerun(stage, app):
    """Includes processes that reach the master only after others have ended."""
    source = """
@handler
def work(job):
    if job.attempt == 1:
        again = f"sleep 1000 & echo $! > {HERE}/left; wait"
        subprocess.Popen(["sh", "-c", f"sh -c '{again}'; true"], start_new_session=True)
        time.sleep(1000)
"""
    pool = app(source, processes=1).wait_ready()
    jid = stage.queue.put("work")
    left = stage.directory / "left"
    stage.wait_until_counted(lambda: left.exists() and left.read_text().endswith("\n"))
    tree = below(pool)
    assert int(left.read_text()) in tree
    os.kill(pool.zygote_pid, signal.SIGKILL)
    pool.wait_for("job.started", jid=jid, nth=2)
    assert await_ends(tree, 0.0) == []
    stage.wait_until_ended([jid])
    assert pool.drain() == 0
    stage.assert_nothing_left()
