"""Supervisors that are told something by a command: each that is there does it, and says so."""

import json
import os
import signal
import subprocess
import sys

from apps import start_app
from supervised import ROOT


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


def leasehold(stage, *arguments):
    """The command, as a user would type it."""
    command = [sys.executable, "-m", "supervisor", *arguments]
    flags = ["--redis-url", stage.server.url, "--namespace", stage.namespace]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    return subprocess.run(
        [*command, *flags], env={**clean, "PYTHONPATH": str(ROOT)}, cwd=stage.directory, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def test_a_drain_by_command_ends_those_that_are_named_as_sigterm_would_and_no_other(stage):
    one, other = stage.start().wait_ready(), stage.start().wait_ready()
    said = leasehold(stage, "drain", one.worker)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"{one.worker}  drains")
    assert one.wait() == 0
    (event,) = one.find("master.draining")
    assert event["by"].startswith("leasehold drain of ") and f"at {os.uname().nodename}, pid " in event["by"]
    jid = stage.queue.put("good.noop")
    stage.wait_until_ended([jid])
    assert other.find("master.draining") == []
    finish(stage, other)


def test_supervisors_of_different_states_are_in_one_table(stage):
    gate = stage.gate("gate")
    booting = start_app(stage, f"hold(type('Job', (), dict(data={gate!r})))")
    booting.wait_for("master.started")
    draining = stage.start(queue="d", drain_timeout="60s").wait_ready()
    jid = stage.client.queue("d").put("good.hold", gate)
    stage.wait_for_starts(jid)
    draining.send(signal.SIGTERM)
    draining.wait_for("master.draining")
    paused = stage.start().wait_ready()
    assert leasehold(stage, "pause", "--worker", paused.worker).returncode == 0
    table = leasehold(stage, "status")
    assert (table.returncode, table.stderr) == (0, "")
    states = {words[0]: words[1] for line in table.stdout.splitlines() if len(words := line.split()) > 1}
    assert [states[pool.worker] for pool in (booting, draining, paused)] == ["booting", "draining", "paused"]
    told = json.loads(leasehold(stage, "status", draining.worker, "--json").stdout)[draining.worker]
    (busy,) = [child for child in told["children"] if child["jid"]]
    assert (busy["jid"], busy["pid"], busy["state"]) == (jid, stage.ledger.starts(jid)[0].pid, "busy")
    assert 0 < told["left_s"] <= 65 and told["busy"] == 1
    stage.open_gate(gate)
    assert draining.wait() == 0
    booting.wait_for("child.ready")
    assert stage.client.ask([booting.worker], "status")[booting.worker]["state"] == "serving"
    finish(stage, booting, paused)


def test_what_one_was_told_that_has_not_answered_in_time_it_still_does(stage):
    stopped, other = stage.start(lease_ttl="60s").wait_ready(), stage.start().wait_ready()
    stage.wait_until_idle(2)
    stopped.send(signal.SIGSTOP)
    said = leasehold(stage, "pause", "--all-workers", "--timeout", "1s")
    assert said.returncode == 1
    assert said.stdout.startswith(f"{other.worker}  ") and said.stdout.count("\n") == 1
    assert f"{stopped.worker} has not answered within 1s; what it was told stands for 59 s more" in said.stderr
    assert stopped.find("master.paused") == []
    stopped.send(signal.SIGCONT)
    stopped.wait_for("master.paused")
    other.wait_for("master.paused")
    assert [stopped.drain(), other.drain()] == [0, 0]
    (late,) = stage.server.redis.scan_iter(f"{stage.prefix}answer:*", count=10_000)  # nobody waits for it any more
    assert 0 < stage.server.redis.ttl(late) <= 60
    stage.server.redis.delete(late)
    stage.assert_nothing_left()
