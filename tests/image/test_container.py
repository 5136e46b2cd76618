"""Containers of the image: limits by the kernel, stops with and without enough time, a container that is lost."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.deploy import dockerfile
from tests.image.building import ROOT, TIMEOUT_S

pytestmark = [pytest.mark.full, pytest.mark.timeout(TIMEOUT_S)]

#: Lost jobs are taken over after so long. Far above what a loaded machine keeps a supervisor waiting.
SHORT_LEASES = {"lease_ttl": "2s"}
GRACE_S = 0.5
KILLED = 128 + signal.SIGKILL


def hold(boxes, *containers, **options):
    """Start a job that runs until its gate is opened. Return jid and gate."""
    gate = boxes.stage.gate(f"gate-{len(boxes.stage.ledger.starts())}")
    jid = boxes.stage.queue.put("good.hold", gate, **options)
    boxes.stage.wait_for_starts(jid)
    return jid, gate


@pytest.mark.slow
def test_image_is_what_its_recipe_says(built):
    final = dockerfile.read(ROOT / "deploy/Dockerfile")[1][-1]
    config = built.config
    assert config["Entrypoint"] == final.last("ENTRYPOINT").command()
    assert config["Healthcheck"]["Test"] == ["CMD", *final.last("HEALTHCHECK").command()]
    assert (config["User"], config["StopSignal"]) == (final.last("USER").text, final.last("STOPSIGNAL").text)
    assert list(config["ExposedPorts"]) == [f"{final.last('EXPOSE').text}/tcp"]
    assert not [name for name in config["Env"] if "REDIS" in name]
    assert not list(built.files.glob("opt/leasehold/lib/*/site-packages/pip"))
    assert not (built.files / "src").exists() and not (built.files / "dist").exists()
    assert list(built.files.glob("app/handlers/__pycache__/*.pyc"))


@pytest.mark.parametrize("sandbox", ["basic", "strict"])
def test_container_without_rights_runs_a_job_and_drains(boxes, sandbox, measured):
    stage = boxes.stage
    box = boxes.start(handlers="handlers", sandbox=sandbox, memory_mb=300).wait_ready()
    started, listening = box.find("master.started")[0], box.find("http.listening")[0]
    measured(f"{sandbox}: listening -> able to lease {1000 * (started['time'] - listening['time']):.0f} ms")
    assert (started["pid"], started["memory_budget_mb"]) == (1, 270)
    status = Path(f"/proc/{box.first_pid}/status").read_text()
    assert "Uid:\t10001" in status and "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    jid = stage.queue.put("text.words", {"text": "to be or not to be"})
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).state == "complete"
    healthy = box.execute(*boxes.engine.built.config["Healthcheck"]["Test"][1:])
    assert (healthy.returncode, healthy.stderr) == (0, "")
    (told,) = json.loads(box.execute("leasehold", "status", "--json").stdout).values()
    assert told["state"] == "serving"
    assert "Read-only" in box.execute("touch", "/app/x").stderr
    boxes.finish(box)


def test_kernel_oom_kill_costs_only_the_job_that_grew(boxes):
    stage = boxes.stage
    box = boxes.start(processes=2, memory_mb=250, memory_budget="none").wait_ready()
    neighbour, gate = hold(boxes)
    grown = stage.queue.put("memory.grow", {"mb": 4000, "step_mb": 64}, max_deaths=2)
    died = box.wait_for("job.died", jid=grown, nth=2)
    assert (died["reason"], died["deaths"], died["state"]) == ("oom", 2, "failed")
    assert stage.client.failed() == {"died:oom": 1}
    assert box.kills_by_the_kernel() == 2
    stage.open_gate(gate)
    after = stage.queue.put("good.noop")
    stage.wait_until_ended([neighbour, after])
    assert stage.states([neighbour, after]) == ["complete"] * 2
    assert len(stage.ledger.starts(neighbour)) == 1
    boxes.finish(box)


def test_pids_limit_stops_a_fork_bomb_and_nobody_else(boxes):
    stage = boxes.stage
    box = boxes.start(processes=2, pids=50).wait_ready()
    neighbour, gate = hold(boxes)
    bomb_gate = stage.gate("bomb")
    bomb = stage.queue.put("bad.fork_until_refused", bomb_gate)
    box.wait_for("job.printed", jid=bomb)
    after = stage.queue.put("good.noop")
    stage.open_gate(gate)
    stage.wait_until_ended([neighbour])
    stage.open_gate(bomb_gate)
    stage.wait_until_ended([bomb, after])
    assert stage.states([neighbour, bomb, after]) == ["complete"] * 3
    assert 20 < stage.client.job(bomb).result < 50
    assert [len(stage.ledger.starts(jid)) for jid in (neighbour, bomb, after)] == [1] * 3
    boxes.finish(box)


def test_orphans_are_ended_with_their_job_and_reaped_by_pid_1(boxes):
    stage = boxes.stage
    box = boxes.start(processes=2).wait_ready()
    gate = stage.gate("gate")
    jids = [stage.queue.put("bad.daemons", {"gate": gate, "die": n == 0}, max_deaths=1) for n in range(2)]
    stage.wait_until(lambda: all(len(stage.ledger.left_behind(jid)) == 3 for jid in jids), "their processes")
    assert box.execute("sh", "-c", "sleep 0.1 & sleep 0.2 &").returncode == 0
    stage.open_gate(gate)
    stage.wait_until_ended(jids)
    first = psutil.Process(box.first_pid)
    stage.wait_until_counted(lambda: not [each for each in first.children(recursive=True) if is_stranger(each)])
    boxes.finish(box)


def is_stranger(process):
    """Left by a job or by `exec`: nothing of the supervisor's."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or "leasehold" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


# stops


def test_stop_with_enough_time_lets_the_job_end(boxes):
    box = boxes.start().wait_ready()
    jid, gate = hold(boxes)
    box.send(signal.SIGTERM)
    box.wait_for("master.draining")
    boxes.stage.open_gate(gate)
    assert box.wait() == 0
    assert boxes.stage.client.job(jid).state == "complete"
    boxes.assert_nothing_left()


def test_job_that_does_not_end_in_time_runs_at_a_peer_at_once(boxes, measured):
    stage = boxes.stage
    boxes_ = [boxes.start(drain_timeout="0.3s", term_grace="0.3s").wait_ready()]
    jid, gate = hold(boxes)
    boxes_.append(boxes.start().wait_ready())
    assert boxes_[0].stop(30) == 0
    released = boxes_[0].wait_for("job.released", jid=jid)
    _, again = stage.wait_for_starts(jid, 2)
    measured(f"released -> started in the other container {1000 * (again.unix - released['time']):.0f} ms")
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths) == ("complete", 1, 0)
    boxes.finish(boxes_[1])


def test_stop_without_enough_time_is_a_kill_and_a_peer_takes_over(boxes, measured):
    lose(boxes, lambda box: box.stop(0.5), measured)


def test_lost_container_is_replaced_by_its_peer(boxes, measured):
    lose(boxes, lambda box: box.kill(), measured)


def lose(boxes, end, measured):
    """Kill one of two containers in mid-job. The other starts the job anew after TTL + grace, as a death."""
    stage = boxes.stage
    stage.config(grace=GRACE_S)
    lost = boxes.start(**SHORT_LEASES).wait_ready()
    jid, gate = hold(boxes)
    stage.wait_until_start_is_known(jid)
    peer = boxes.start(**SHORT_LEASES).wait_ready()
    before = time.time()
    assert end(lost) == KILLED
    assert peer.find("job.started", jid=jid) == []
    _, again = stage.wait_for_starts(jid, 2)
    measured(f"end -> started at the peer {again.unix - before:.1f} s, TTL 2 s, grace {GRACE_S:g} s")
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert (job.state, job.deaths, job.interruptions) == ("complete", 1, 0)
    assert [ended["jid"] for ended in stage.find("job.completed")] == [jid]
    stage.client.deregister(lost.worker)
    boxes.finish(peer)


# where it cannot write


def test_workdir_takes_the_place_of_tmp(boxes):
    box = boxes.start(tmp=False, workdir="/dev/shm").wait_ready()
    jid = boxes.stage.queue.put("good.echo", "there")
    boxes.stage.wait_until_ended([jid])
    assert boxes.stage.client.job(jid).result == "there"
    boxes.finish(box)


def test_read_only_root_without_tmp_is_a_wrong_setting(boxes):
    box = boxes.start(tmp=False)
    assert box.wait() == 78
    assert "--workdir" in " ".join(box.said + [event.get("message", "") for event in box.events])
    boxes.assert_nothing_left()
