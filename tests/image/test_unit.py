"""deploy/leasehold.service under a real systemd, which is PID 1 of a container with the image's files."""

import pytest

from tests.image.building import TIMEOUT_S
from tests.image.machines import Machine

pytestmark = [pytest.mark.full, pytest.mark.timeout(TIMEOUT_S)]

RUN = "/srv/app/venv/bin/leasehold run"
#: A module of handlers whose import ends when the gate `boot` is opened.
SLOW = """
import menu
from supervisor import handler

menu.wait_at("boot")


@handler
def new(job):
    menu.enter(job)
"""


@pytest.fixture
def machine(boxes, tmp_path):
    """Starts a machine. The unit is not started yet."""

    def start(**settings):
        machine = Machine(boxes.stage, boxes.engine, tmp_path / "machine", **settings)
        boxes.stage.add(machine)
        return machine

    return start


def power_off(boxes, machine, *lost):
    """Power the machine off. Nothing is left on the machine or of it."""
    machine.power_off()
    for worker in lost:
        boxes.stage.client.deregister(worker)
    boxes.assert_nothing_left()


def main_pid(machine):
    return machine.shown("MainPID")


def test_start_waits_until_ready_and_stop_until_jobs_have_ended(boxes, machine):
    stage, machine = boxes.stage, machine()
    machine.release("two", slow=SLOW)
    boot = stage.gate("boot")
    machine.systemctl("start", "--no-block")
    machine.wait_until_shown("StatusText", "0/2 busy, booting")
    machine.wait_for("zygote.spawned")
    assert machine.shown("ActiveState") == "activating"
    stage.open_gate(boot)
    machine.wait_until_shown("ActiveState", "active")
    machine.wait_until_shown("StatusText", "0/2 busy")
    assert machine.find("master.warned") == []
    gate = stage.gate("gate")
    jid = stage.queue.put("bad.daemons", {"gate": gate})
    stage.wait_until(lambda: len(stage.ledger.left_behind(jid)) == 3, "its processes")
    machine.wait_until_shown("StatusText", "1/2 busy")
    machine.systemctl("stop", "--no-block")
    machine.wait_for("master.draining")
    assert machine.shown("ActiveState") == "deactivating"
    left = [str(pid) for pid in stage.ledger.left_behind(jid)]
    assert machine.tell("kill", "-0", *left).returncode == 0, "TERM goes to the master alone"
    stage.open_gate(gate)
    machine.wait_until_shown("ActiveState", "inactive")
    assert (machine.shown("Result"), machine.shown("ExecMainStatus")) == ("success", "0")
    assert stage.client.job(jid).state == "complete"
    assert machine.groups() == []
    power_off(boxes, machine)


def test_reload_is_shown_until_the_new_release_has_taken_over(boxes, machine):
    stage, machine = boxes.stage, machine()
    machine.systemctl("start")
    pid = main_pid(machine)
    machine.release("two", slow=SLOW)
    gate = stage.gate("boot")
    machine.systemctl("reload", "--no-block")
    machine.wait_until_shown("ActiveState", "reloading")
    assert machine.find("reload.completed") == []
    stage.open_gate(gate)
    machine.wait_until_shown("ActiveState", "active")
    machine.wait_for("reload.completed")
    jid = stage.queue.put("slow.new")
    stage.wait_until_ended([jid])
    assert (stage.client.job(jid).state, main_pid(machine)) == ("complete", pid)
    power_off(boxes, machine)


def test_watchdog_restarts_a_supervisor_that_stands_still(boxes, machine):
    stage, machine = boxes.stage, machine(lease_ttl="2s")
    stage.config(grace=0.5)
    machine.change(WatchdogSec="3")
    machine.systemctl("start")
    gate = stage.gate("gate")
    jid = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(jid)
    lost = machine.wait_for("master.started")["worker"]
    stage.let_time_pass(4)
    assert machine.shown("NRestarts") == "0", "it is fed"
    machine.systemctl("kill", "--signal=STOP", "--kill-whom=main")
    machine.wait_for("zygote.ready", nth=2, timeout_s=60)
    assert any("Failed with result 'watchdog'" in line for line in machine.said)
    assert machine.shown("NRestarts") == "1"
    stage.wait_for_starts(jid, 2)
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    assert (stage.client.job(jid).state, stage.client.job(jid).deaths) == ("complete", 1)
    power_off(boxes, machine, lost)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (
            "69",
            {
                "Environment": "LEASEHOLD_HTTP=none",
                "ExecStart": "/srv/app/venv/bin/leasehold run --redis-url unix:///no",
            },
        ),
        ("70", {"LimitNOFILE": "9"}),
        ("71", {"ExecStart": "/srv/app/venv/bin/leasehold run --handlers nowhere"}),
    ],
)
def test_unit_starts_again_after(boxes, machine, code, changes):
    machine = machine()
    machine.change(RestartSec="1", **changes)
    assert machine.tell("systemctl", "start", "leasehold").returncode == 1
    boxes.stage.wait_until_counted(lambda: machine.ends().count(f"status={code}") >= 2, 60)
    power_off(boxes, machine)


@pytest.mark.parametrize(
    ("code", "words"), [("78", "--processes some"), ("2", "--frobnicate")], ids=["a wrong setting", "wrong usage"]
)
def test_unit_does_not_start_again_after(boxes, machine, code, words):
    machine = machine()
    machine.change(RestartSec="100ms", ExecStart=f"{RUN} {words}")
    assert machine.tell("systemctl", "start", "leasehold").returncode == 1
    machine.wait_until_shown("ActiveState", "failed")
    assert (machine.shown("ExecMainStatus"), machine.shown("NRestarts")) == (code, "0")
    power_off(boxes, machine)


def test_kernel_oom_kill_does_not_end_the_unit(boxes, machine):
    stage, machine = boxes.stage, machine(memory_budget="none")
    machine.change(MemoryMax="300M")
    machine.systemctl("start")
    pid = main_pid(machine)
    gate = stage.gate("gate")
    neighbour = stage.queue.put("good.hold", gate)
    stage.wait_for_starts(neighbour)
    jid = stage.queue.put("memory.grow", {"mb": 4000, "step_mb": 64}, max_deaths=1)
    assert machine.wait_for("job.died", jid=jid)["reason"] == "oom"
    stage.open_gate(gate)
    stage.wait_until_ended([neighbour])
    assert (machine.shown("ActiveState"), main_pid(machine)) == ("active", pid)
    power_off(boxes, machine)


def test_power_off_hands_a_job_back_without_spending_anything(boxes, machine):
    stage, machine = boxes.stage, machine(term_grace="0.3s")
    machine.change(ExecStart=f"{RUN} --drain-timeout 0.3s")
    machine.systemctl("start")
    jid = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(jid)
    machine.power_off()
    job = stage.client.job(jid)
    assert (job.state, job.interruptions, job.deaths, job.failures) == ("waiting", 1, 0, 0)
    stage.client.cancel(jid)
    boxes.assert_nothing_left()
