"""As a container's first process: it drains on TERM, exits 0, reaps whatever is left to it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest


def _refused():
    tried = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount-proc", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() if tried.returncode else None


@pytest.fixture
def inside():
    """The prefix that makes a command PID 1 of a namespace of its own."""
    why = _refused()
    if why is not None:
        pytest.skip(f"this machine gives no PID namespace: {why}")
    return ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child=SIGKILL"]


def _pid_1(pool):
    """Seen from outside."""
    (first,) = psutil.Process(pool.pid).children()
    return first.pid


def _zombies(pool):
    return [p.pid for p in psutil.Process(_pid_1(pool)).children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]


def test_as_pid_1_it_drains_on_term_and_exits_0(stage, inside):
    gate = stage.gate("gate")
    pool = stage.start(prefix=inside, processes=2)
    assert pool.wait_for("master.started")["pid"] == 1
    jid = stage.queue.put("good.hold", gate)
    rest = stage.queue.put_many([{"klass": "good.noop"}] * 20)
    stage.wait_until_ended(rest)
    os.kill(_pid_1(pool), signal.SIGTERM)
    assert pool.wait_for("master.draining")["running"] == 1
    stage.open_gate(gate)
    assert pool.wait() == 0
    assert stage.client.job(jid).state == "complete"
    assert stage.files() == []
    assert stage.keys() == {}


def test_as_pid_1_it_reaps_orphans_and_finds_the_leftovers_of_dead_children(stage, inside):
    gate = stage.gate("gate")
    pool = stage.start(prefix=inside, processes=2)
    pool.wait_for("master.started")
    jids = [stage.queue.put("bad.daemons", {"gate": gate, "die": n % 2 == 0}, max_deaths=1) for n in range(4)]
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    # As `docker exec sh -c 'sleep 0.1 &'` does: a process that is left to PID 1.
    subprocess.run(
        ["nsenter", "--target", str(_pid_1(pool)), "--pid", "--mount", "sh", "-c", "sleep 0.1 & sleep 0.2 &"],
        check=True,
    )
    deadline_at = time.monotonic() + 5
    while time.monotonic() < deadline_at:
        below = psutil.Process(_pid_1(pool)).children(recursive=True)
        if not any("sleep" in " ".join(_cmdline(process)) for process in below) and not _zombies(pool):
            break
        time.sleep(0.02)  # nobody is told when a stranger's zombie is reaped
    assert _zombies(pool) == []
    left = [_cmdline(process) for process in psutil.Process(_pid_1(pool)).children(recursive=True)]
    assert not [line for line in left if "sleep" in " ".join(line)]
    os.kill(_pid_1(pool), signal.SIGTERM)
    assert pool.wait() == 0
    assert stage.files() == []


def _cmdline(process):
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return []


def test_as_pid_1_a_second_master_does_not_mistake_the_pid_of_the_first(stage, inside):
    """Every container's master is PID 1 on a host of any name: the worker's name must differ all the same."""
    pools = [stage.start(prefix=inside) for _ in range(2)]
    workers = {pool.wait_for("master.started")["worker"] for pool in pools}
    assert len(workers) == 2
    for pool in pools:
        os.kill(_pid_1(pool), signal.SIGTERM)
    assert [pool.wait() for pool in pools] == [0, 0]
