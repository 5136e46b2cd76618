"""Signals and the ladder of a drain: what the manual says of them is what they do."""

import json
import os
import re
import signal
from pathlib import Path

import supervisor
from supervisor.config import LAST_EXCHANGE_S, REAP_S, SETTINGS
from supervisor.linux.kernel import HANDLED_SIGNALS, children_of
from supervisor.master.model.shutdown_schedule import HURRIED_EXCHANGE_S, ShutdownSchedule
from supervisor.master.model.signals import MEANINGS, Meaning
from supervisor.units import parse_duration
from tests.docs.pages import OPERATIONS, blocks, rows, section, tables
from tests.docs.terminal import started


def test_every_signal_of_the_master_is_documented():
    named = {word for row in rows(OPERATIONS, "Signals") for word in re.findall(r"[A-Z0-9]{2,}", row[0])}
    assert named == {each.name.removeprefix("SIG") for each in HANDLED_SIGNALS - {signal.SIGCHLD}} | {"KILL"}


#: Signals that do not end a process by default, says signal(7). TTIN and TTOU would stop a process in the session of a
#: terminal, and ours are in none.
HARMLESS_BY_DEFAULT = {"TTIN", "TTOU", "CONT"}


def does(pid: int, name: str) -> str:
    """Return what a signal does to a process, by the signals that the kernel says it catches, ignores and blocks."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Ign|Cgt):\s+(\w+)", status, re.MULTILINE)]
    bit = 1 << (signal.Signals[f"SIG{name}"] - 1)
    return "nothing" if name in HARMLESS_BY_DEFAULT or any(mask & bit for mask in masks) else "ends it"


SHELLING = """
import subprocess

from supervisor import handler


@handler(name="shell")
def shell(job):
    with subprocess.Popen(["sleep", "1000"]):
        print("begun")
"""


def test_signals_act_on_each_process_as_the_table_says(server, namespace, tmp_path):
    (tmp_path / "shelling.py").write_text(SHELLING)
    with supervisor.Client(server.url, namespace) as client:
        client.queue("default").put("shell")
    with started(server, namespace, tmp_path, "--handlers", "shelling", "--drain-timeout", "0") as master:
        pids = {}
        for event in map(json.loads, master.stderr):
            pids.setdefault(event["event"], event.get("pid"))
            if {"job.printed", "child.spawned"} <= set(pids):  # in any order: they come from two processes
                break
        zygote, child = pids["zygote.spawned"], pids["child.spawned"]
        assert os.getsid(child) == child, "else TTIN would stop it"
        (program,) = children_of(child)
        for names, *effects in tables(OPERATIONS, "Signals")[1]:
            for name in set(names.split(", ")) - {"STOP", "KILL"}:
                found = [does(pid, name) for pid in (zygote, child, program)]
                assert [re.match("nothing|ends it", effect)[0] for effect in effects] == found, name
        master.send_signal(signal.SIGTERM)
        list(master.stderr)
        assert master.wait(60) == 0


def test_the_ladder_has_the_times_of_the_code():
    default = {setting.flag: setting.default for setting in SETTINGS}
    patience_s, grace_s = (parse_duration(default[flag]) for flag in ("drain-timeout", "term-grace"))
    steps, advice = tables(OPERATIONS, "The ladder of a drain")
    assert [step for step, _ in steps] == [
        "0 s", f"`drain-timeout` ({patience_s:g} s)", f"+ `term-grace` ({grace_s:g} s)", f"+ {REAP_S:g} s",
        f"+ {LAST_EXCHANGE_S:g} s",
    ]  # fmt: skip
    drawn = blocks(OPERATIONS, "")
    (drawing,) = (block for block in drawn if "draining" in block)
    schedule = ShutdownSchedule.of(0.0, patience_s, grace_s)
    at = [schedule.interrupt_at, schedule.kill_at, schedule.hand_back_at, schedule.leave_by_at]
    assert re.findall(r"(\d+) s", drawing.splitlines()[0]) == [f"{each_s:g}" for each_s in at]
    assert f"in {REAP_S + HURRIED_EXCHANGE_S:g} s at the most" in section(OPERATIONS, "Signals")
    for given, _, advised in advice:
        schedule = ShutdownSchedule.of(0.0, parse_duration(re.search(r"--drain-timeout (\w+)", advised)[1]), grace_s)
        assert schedule.leave_by_at < parse_duration(given.replace(" ", ""))


def test_signal_table_agrees_with_the_master():
    effects = {word: row[1] for row in rows(OPERATIONS, "Signals") for word in re.findall(r"[A-Z0-9]{2,}", row[0])}
    for signo, meaning in MEANINGS.items():
        if meaning is not Meaning.REAP:
            assert meaning.value.split()[-1] in effects[signo.name.removeprefix("SIG")], meaning
