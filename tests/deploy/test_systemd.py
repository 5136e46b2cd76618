"""The unit: systemd reads it without a word, and what it keeps from the supervisor is nothing that that needs."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor
from supervisor.cli.lib import parser
from supervisor.config import LAST_EXCHANGE_S, REAP_S, SETTINGS, RunConfig
from supervisor.exit_codes import Exit
from supervisor.linux.kernel import children_of
from supervisor.units import parse_duration
from tests.environment import without_settings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/leasehold.service"
#: Exposure as systemd-analyze counts it, from 0 (the service can do nothing to the machine) to 10. Measured: 2.1.
EXPOSURE = 2.5


class Unit(configparser.RawConfigParser):
    """The options of the service. A name that comes twice is in `repeated`."""

    def __init__(self) -> None:
        super().__init__(strict=False, comment_prefixes=("#",), delimiters=("=",))
        self.optionxform = str
        self.read_string(UNIT.read_text())
        self.service = self["Service"]
        self.words = shlex.split(self.service["ExecStart"])[1:]
        self.environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))


@pytest.fixture
def unit():
    return Unit()


@pytest.fixture
def installed(tmp_path):
    """The unit with an existing program in its place, because systemd-analyze looks for the program."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    program = tmp_path / "bin/leasehold"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / "leasehold.service"
    path.write_text(UNIT.read_text().replace("/srv/app/venv/bin/leasehold", str(program)))
    return path


def analyzed(*words):
    return subprocess.run(
        ["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


def test_systemd_reads_the_unit_without_a_word(installed):
    done = analyzed("verify", "--man=no", installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_can_do_little_to_the_machine(installed, measured):
    done = analyzed("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE * 10:.0f}", installed)
    assert done.returncode == 0, done.stdout
    measured(re.search(r"Overall exposure level for \S+: \S+", done.stdout)[0])


def test_command_and_variables_are_valid(unit):
    assert unit.words[0] == "run"
    built, _ = parser.build("run")
    flags = parser.given(built.parse_args(unit.words))
    RunConfig.load(flags, {"LEASEHOLD_REDIS_URL": "redis://redis:6379/0", **unit.environment}, terminal=False)


def test_time_is_enough_for_a_drain_and_a_boot(unit):
    default = {setting.flag: setting.default for setting in SETTINGS}
    patience = unit.words[unit.words.index("--drain-timeout") + 1]
    ladder_s = parse_duration(patience) + parse_duration(default["term-grace"]) + REAP_S + LAST_EXCHANGE_S
    assert float(unit.service["TimeoutStopSec"]) >= ladder_s + 5
    assert float(unit.service["TimeoutStartSec"]) >= parse_duration(default["boot-timeout"]) + 30


def test_service_restarts_unless_that_would_mend_nothing(unit):
    assert unit.service["Restart"] == "always"
    hopeless = {Exit.USAGE, Exit.CONFIG}  # with 71 ends, too, whose handlers' database is away
    assert set(map(int, unit.service["RestartPreventExitStatus"].split())) == hopeless
    assert float(unit.service["RestartSec"]) * 5 > 10, "systemd gives up after five starts in 10 s"


def test_only_the_master_gets_term_and_the_rest_is_killed(unit):
    assert (unit.service["KillMode"], unit.service["KillSignal"]) == ("mixed", "SIGTERM")
    assert (unit.service["Type"], unit.service["NotifyAccess"]) == ("notify", "main")


def test_no_line_hides_children_or_takes_their_cgroups(unit):
    assert unit.service["Delegate"] == "yes" and unit.service["OOMPolicy"] == "continue"
    breaking = {"ProtectProc", "ProcSubset", "ProtectControlGroups", "MemoryDenyWriteExecute", "PrivateUsers"}
    assert not breaking & set(unit.service)
    for name in breaking:
        assert f"{name}=" in UNIT.read_text(), "the unit says why it is not there"


# the calls to the kernel


def allowed_calls(*names):
    """The calls of SystemCallFilter=, with those of its groups."""
    found = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        _, *lines = analyzed("syscall-filter", name).stdout.splitlines()
        found |= allowed_calls(*(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")))
    return found


def test_supervisor_makes_no_call_that_the_unit_refuses(unit, installed, server, namespace, tmp_path):
    if shutil.which("strace") is None:
        pytest.skip("this machine has no strace")
    allowed = allowed_calls(*unit.service["SystemCallFilter"].split())
    environment = without_settings()
    environment |= {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace, "PYTHONPATH": str(ROOT)}
    flags = ["--processes", "1", "--sandbox", "strict", "--memory-limit", "64M", "--http", "127.0.0.1:0"]
    run = [sys.executable, "-m", "supervisor", "run", *flags]
    with supervisor.Client(server.url, namespace) as client:
        client.queue("default").put("text.words", {"text": "to be"})
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(tmp_path / "calls"), *run], cwd=ROOT, env=environment, stderr=subprocess.PIPE
    ) as traced:
        try:
            for event in map(json.loads, traced.stderr):
                if event["event"] == "job.completed":
                    (master,) = children_of(traced.pid)
                    os.kill(master, signal.SIGTERM)
            assert (event["event"], traced.wait(30)) == ("master.stopped", 0)
        finally:
            traced.kill()
    made = set(re.findall(r"^\d+ +(\w+)\(", (tmp_path / "calls").read_text(), re.MULTILINE))
    assert {"execve", "sendmsg"} <= made
    assert made - allowed == set()
