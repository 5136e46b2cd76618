"""A supervisor as the first process of a container: it drains on TERM, exits 0, and reaps all orphans."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.lengths import LONG

SWARM = 500 if LONG else 150
#: PID 1 must have reaped its orphans within this time.
REAPED_S = 10.0


def _pid_1(pool):
    """Return the pid that the container's first process has outside."""
    (first,) = psutil.Process(pool.pid).children()
    return first.pid


def _zombies(pool):
    """Return the zombies, each with its parent and name."""
    found = []
    for process in psutil.Process(_pid_1(pool)).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}, below {process.parent()}")
    return found


def test_supervisor_as_pid_1_drains_on_term_and_exits_0(stage, as_pid_1):
    gate = stage.gate("gate")
    pool = stage.start(prefix=as_pid_1, processes=2)
    assert pool.wait_for("master.started")["pid"] == 1
    jid = stage.queue.put("good.hold", gate)
    rest = stage.queue.put_many([{"klass": "good.noop"}] * 20)
    stage.wait_for_starts(jid)
    stage.wait_until_ended(rest)
    os.kill(_pid_1(pool), signal.SIGTERM)
    assert pool.wait_for("master.draining")["running"] == 1
    stage.open_gate(gate)
    assert pool.wait() == 0
    assert stage.client.job(jid).state == "complete"
    assert stage.files() == []
    assert stage.keys() == {}


def test_supervisor_as_pid_1_reaps_orphans_and_ends_strays(stage, as_pid_1):
    gate = stage.gate("gate")
    pool = stage.start(prefix=as_pid_1, processes=2)
    pool.wait_for("master.started")
    jids = [stage.queue.put("bad.daemons", {"gate": gate, "die": n % 2 == 0}, max_deaths=1) for n in range(4)]
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    # Leave a process to PID 1, as `docker exec sh -c 'sleep 0.1 &'` does.
    subprocess.run(
        ["nsenter", "--target", str(_pid_1(pool)), "--pid", "--mount", "sh", "-c", "sleep 0.1 & sleep 0.2 &"],
        check=True,
    )
    deadline_at = time.monotonic() + 20
    while time.monotonic() < deadline_at:
        below = psutil.Process(_pid_1(pool)).children(recursive=True)
        if not any("sleep" in " ".join(_cmdline(process)) for process in below) and not _zombies(pool):
            break
        time.sleep(0.02)  # there is no event for the reaping of a foreign zombie
    assert _zombies(pool) == []
    left = [_cmdline(process) for process in psutil.Process(_pid_1(pool)).children(recursive=True)]
    assert not [line for line in left if "sleep" in " ".join(line)]
    os.kill(_pid_1(pool), signal.SIGTERM)
    assert pool.wait() == 0
    assert stage.files() == []


def _cmdline(process):
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_as_pid_1_a_second_master_has_another_worker_name(stage, as_pid_1):
    """Each container's master is PID 1, on a host of any name. The worker names must differ."""
    pools = [stage.start(prefix=as_pid_1) for _ in range(2)]
    workers = {pool.wait_for("master.started")["worker"] for pool in pools}
    assert len(workers) == 2
    for pool in pools:
        os.kill(_pid_1(pool), signal.SIGTERM)
    assert [pool.wait() for pool in pools] == [0, 0]


# Orphans of jobs and of other processes.


def _below(pool):
    return psutil.Process(_pid_1(pool)).children(recursive=True)


def _swarm(pool):
    """Return the processes that a swarming job has started, and its zombies."""
    return [process.pid for process in _below(pool) if "chaos.swarm" in " ".join(_cmdline(process))]


def _seconds_until(holds, what):
    """Poll: no process is notified when a foreign zombie is reaped."""
    began_at = time.monotonic()
    while not holds():
        assert time.monotonic() < began_at + 20, what
        time.sleep(0.01)
    return time.monotonic() - began_at


def _seconds_until_no_zombie(pool):
    began_at = time.monotonic()
    while left := _zombies(pool):
        assert time.monotonic() < began_at + 20, f"{len(left)} zombies: {left[:5]}"
        time.sleep(0.01)
    return time.monotonic() - began_at


def _drain(pool):
    os.kill(_pid_1(pool), signal.SIGTERM)
    return pool.wait()


@pytest.mark.parametrize("die", [False, True], ids=["it returns", "it is killed"])
def test_double_forked_processes_of_a_job_are_killed_and_reaped(stage, as_pid_1, die, measured):
    gates = [stage.gate("swarm"), stage.gate("neighbour")]
    pool = stage.start(prefix=as_pid_1, processes=3)
    pool.wait_for("master.started")
    neighbour = stage.queue.put("bad.daemons", {"gate": gates[1], "reap": True})
    stage.wait_until(lambda: len(stage.ledger.left_behind(neighbour)) == 3, "the neighbour's processes")
    jid = stage.queue.put("chaos.swarm", {"count": SWARM, "gate": gates[0], "die": die}, max_deaths=1)
    _seconds_until(lambda: len(_swarm(pool)) >= SWARM, "the swarm")
    spared = {p.pid for p in _below(pool) if "sleep" in _cmdline(p) or "bad.daemons" in " ".join(_cmdline(p))}
    assert len(spared) == 4  # its child, a daemon, and two programs
    swarm = _swarm(pool)
    (child,) = (process.pid for process in _below(pool) if process.pid in swarm and process.ppid() not in swarm)

    stage.open_gate("swarm")
    pool.wait_for("job.died" if die else "job.completed", jid=jid)
    exiting = set() if die else {child}  # a child shows the title of its last job until it has exited
    assert set(_swarm(pool)) - exiting == set(), "an end is not told before everything has ended"
    reaped_s = _seconds_until_no_zombie(pool)
    measured(f"the end of {SWARM} processes is told -> no zombie: {1000 * reaped_s:.0f} ms")
    assert reaped_s <= REAPED_S
    assert spared <= {p.pid for p in _below(pool)}
    stage.open_gate("neighbour")
    pool.wait_for("job.completed", jid=neighbour)
    assert len(stage.ledger.starts(neighbour)) == 1
    _seconds_until(lambda: not spared & {p.pid for p in _below(pool)}, "the neighbour's processes end with it")
    assert _drain(pool) == 0
    assert stage.files() == []


def test_unknown_orphans_and_killed_health_checks_are_reaped_silently(stage, as_pid_1):
    pool = stage.start(prefix=as_pid_1, processes=1).wait_ready()
    stage.wait_until_idle(1)
    said = len(pool.events)
    enter = ["nsenter", "--target", str(_pid_1(pool)), "--pid", "--mount"]
    left = "for n in 1 2 3 4 5; do sleep 0.3 & done"
    for _ in range(5):
        subprocess.run([*enter, "sh", "-c", left], check=True)
        checked = subprocess.run([*enter, "timeout", "--signal=KILL", "0.1", "sh", "-c", f"{left}; wait"], check=False)
        assert checked.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    strangers = lambda: [p.pid for p in _below(pool) if "sleep" in _cmdline(p)]  # noqa: E731
    _seconds_until(lambda: not strangers(), "they end by themselves")
    assert _seconds_until_no_zombie(pool) <= REAPED_S
    assert [event for event in pool.events[said:] if event["level"] != "debug"] == []
    assert pool.said == []
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert _drain(pool) == 0


# Crashes below it.


def test_as_pid_1_a_child_that_crashes_is_replaced_and_its_job_runs_again(stage, as_pid_1):
    pool = stage.start(prefix=as_pid_1, processes=2).wait_ready()
    jids = [stage.queue.put(klass, {"times": 1}) for klass in ("bad.kill_self", "bad.segv")]
    stage.wait_until_ended(jids)
    assert {said["reason"] for said in pool.find("job.died")} == {"SIGKILL", "SIGSEGV"}
    assert [(job.state, job.deaths) for job in stage.client.jobs(*jids)] == [("complete", 1)] * 2
    assert _seconds_until_no_zombie(pool) <= REAPED_S
    assert _drain(pool) == 0
    assert stage.files() == []
    assert stage.keys() == {}


def test_supervisor_as_pid_1_survives_its_zygote_and_cleans_up(stage, as_pid_1):
    gate = stage.gate("gate")
    pool = stage.start(prefix=as_pid_1, processes=2).wait_ready()
    jid = stage.queue.put("bad.daemons", {"gate": gate})
    stage.wait_until(lambda: len(stage.ledger.left_behind(jid)) == 3, "its processes")
    first = {p.pid for p in _below(pool)}
    (zygote,) = psutil.Process(_pid_1(pool)).children()
    zygote.kill()
    pool.wait_for("zygote.lost")
    stage.wait_for_starts(jid, 2)
    assert not first & {p.pid for p in _below(pool)}, "the second run meets nothing of the first"
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths) == ("complete", 1, 0)
    assert _seconds_until_no_zombie(pool) <= REAPED_S
    assert _drain(pool) == 0
    assert stage.files() == []
    assert stage.keys() == {}


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"handlers": "broken"}, 71),
        ({"processes": "some"}, 78),
        ({"redis_url": "unix:///nowhere/redis.sock"}, 69),
    ],
    ids=["handlers that do not boot", "bad configuration", "no Redis"],
)
def test_as_pid_1_the_exit_code_names_the_cause(stage, as_pid_1, flags, code):
    (stage.directory / "broken").mkdir()
    (stage.directory / "broken" / "__init__.py").write_text("raise RuntimeError('broken for the test')\n")
    pool = stage.start(prefix=as_pid_1, **flags)
    assert pool.wait(60) == code
    assert stage.files() == []
    assert stage.keys() == {}
