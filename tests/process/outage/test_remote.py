"""Commands to several supervisors: each live one carries the request out, and reports it."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from apps import start_app

from supervisor.cli.lib.parser import dispatch


def finish(stage, *pools, waiting=()):
    assert [pool.drain() for pool in pools] == [0] * len(pools)
    stage.assert_nothing_left(waiting=waiting)


class Said(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture
def leasehold(stage, capsys):
    """Run the command line in this process."""

    def run(*words):
        capsys.readouterr()
        code = dispatch([*words, "--redis-url", stage.server.url, "--namespace", stage.namespace])
        return Said(code, *capsys.readouterr())

    return run


def test_drain_command_ends_only_the_named_supervisors(stage, leasehold):
    one, other = stage.start().wait_ready(), stage.start().wait_ready()
    said = leasehold("drain", one.worker)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{one.worker}  drains")
    assert one.wait() == 0
    (event,) = one.find("master.draining")
    assert event["by"].startswith("leasehold drain of ") and f"at {os.uname().nodename}, pid " in event["by"]
    jid = stage.queue.put("good.noop")
    stage.wait_until_ended([jid])
    assert other.find("master.draining") == []
    finish(stage, other)


def test_one_table_shows_supervisors_of_different_states(stage, leasehold):
    gate = stage.gate("gate")
    booting = start_app(stage, f"hold(type('Job', (), dict(data={gate!r})))")
    booting.wait_for("master.started")
    draining = stage.start(queue="d", drain_timeout="60s").wait_ready()
    jid = stage.client.queue("d").put("good.hold", gate)
    stage.wait_for_starts(jid)
    draining.send(signal.SIGTERM)
    draining.wait_for("master.draining")
    paused = stage.start().wait_ready()
    assert leasehold("pause", "--worker", paused.worker).code == 0
    table = leasehold("status")
    assert (table.code, table.err) == (0, "")
    states = {words[0]: words[1] for line in table.out.splitlines() if len(words := line.split()) > 1}
    assert [states[pool.worker] for pool in (booting, draining, paused)] == ["booting", "draining", "paused"]
    told = json.loads(leasehold("status", draining.worker, "--json").out)[draining.worker]
    (busy,) = [child for child in told["children"] if child["jid"]]
    assert (busy["jid"], busy["pid"], busy["state"]) == (jid, stage.ledger.starts(jid)[0].pid, "busy")
    assert (busy["attempt"], type(busy["memory_bytes"])) == (1, int)
    assert 0 < told["left_s"] <= 65 and told["busy"] == 1
    stage.open_gate(gate)
    assert draining.wait() == 0
    booting.wait_for("child.ready")
    assert stage.client.ask([booting.worker], "status")[booting.worker]["state"] == "serving"
    finish(stage, booting, paused)


def test_late_supervisor_still_carries_out_its_request(stage, leasehold):
    stopped, other = stage.start(lease_ttl="60s").wait_ready(), stage.start().wait_ready()
    stage.wait_until_idle(2)
    stopped.send(signal.SIGSTOP)
    said = leasehold("pause", "--all-workers", "--timeout", "3s")
    assert said.code == 1
    assert said.out.startswith(f"{other.worker}  ") and said.out.count("\n") == 1
    assert f"{stopped.worker} has not answered within 3s; what it was told stands for 57s more" in said.err
    assert stopped.find("master.paused") == []
    stopped.send(signal.SIGCONT)
    stopped.wait_for("master.paused")
    other.wait_for("master.paused")
    assert [stopped.drain(), other.drain()] == [0, 0]
    (late,) = stage.server.redis.scan_iter(f"{stage.prefix}answer:*", count=10_000)  # no client waits for it any more
    assert 0 < stage.server.redis.ttl(late) <= 60
    stage.server.redis.delete(late)
    stage.assert_nothing_left()


def test_reload_command_waits_for_the_result(stage, leasehold):
    pool = start_app(stage, "@handler\ndef which(job): return 'old'\n").wait_ready()
    code = stage.directory / "app" / "__init__.py"
    old = code.read_text()
    code.write_text(old.replace("'old'", "'new'"))
    said = leasehold("reload")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{pool.worker}  runs the new code")
    jid = stage.queue.put("which")
    assert stage.client.wait(jid, 20) == "new"
    code.write_text(old + "raise LookupError('no such thing')\n")
    said = leasehold("reload", pool.worker)
    assert said.code == 71
    assert f"{pool.worker} does not run the new code: the handlers cannot be imported: LookupError" in said.err
    assert "raise LookupError('no such thing')" in said.out
    told = stage.client.ask(None, "status")[pool.worker]
    assert (told["state"], told["reload"]["outcome"]) == ("serving", "failed")
    assert told["reload"]["by"].startswith("leasehold reload of ")
    assert stage.client.wait(stage.queue.put("which"), 20) == "new"
    finish(stage, pool)


def test_drain_that_ends_a_reload_does_not_blame_the_new_code(stage, leasehold):
    pool = start_app(stage, "@handler\ndef which(job): ...\n").wait_ready()
    code = stage.directory / "app" / "__init__.py"
    code.write_text(code.read_text() + "import time\ntime.sleep(100)\n")
    with ThreadPoolExecutor(1) as aside:
        reload = aside.submit(leasehold, "reload")
        pool.wait_for("reload.requested")
        pool.send(signal.SIGTERM)
        said = reload.result()
    assert said.code == 1
    assert said.err == f"leasehold: {pool.worker} refuses: given up, as this supervisor drains\n"
    assert pool.wait() == 0
    stage.assert_nothing_left()
