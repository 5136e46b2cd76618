"""The command as users and containers start it: exit codes, errors of one sentence, few imports."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.lib.parser import COMMANDS, build
from supervisor.config import SETTINGS
from tests.environment import without_settings
from tests.waiting import until_it_waits

ROOT = Path(__file__).parents[3]


def leasehold(*words, environ=None, cwd=None, input=None, timeout=60):
    """Run the real command without this machine's own settings."""
    clean = without_settings()
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *words],
        env={**clean, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **(environ or {})},
        cwd=cwd,
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        timeout=timeout,
    )


def sentence(done) -> str:
    """Return stderr, which must be one line and no traceback."""
    said = done.stderr.decode()
    assert said.startswith("leasehold: ") and said.count("\n") == 1 and said.endswith("\n"), said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_every_command_and_every_exit_code(words):
    done = leasehold(*words)
    text = done.stdout.decode()
    assert done.returncode == (0 if words else 2)
    assert all(re.search(rf"^    {command}\s", text, re.MULTILINE) for command in COMMANDS)
    assert all(code in text for code in ("1 refused", "2 usage", "69 ", "70 ", "71 ", "75 ", "78 "))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    done = leasehold(command, "--help")
    assert done.returncode == 0 and done.stderr == b""
    assert f"leasehold {command}" in done.stdout.decode().split("examples:")[1]


def test_the_help_of_run_has_every_setting_with_its_default():
    text = " ".join(leasehold("run", "--help").stdout.decode().split())
    for setting in SETTINGS:
        assert f"--{setting.flag} {setting.metavar}" in text
        assert setting.default is None or setting.switch or f"(default: {setting.default})" in text


def test_the_word_help_is_taken_as_the_flag():
    assert leasehold("help").stdout == leasehold("--help").stdout
    assert leasehold("help", "peek").stdout == leasehold("peek", "--help").stdout


def test_version_says_a_version():
    done = leasehold("--version")
    assert done.returncode == 0 and done.stdout.startswith(b"leasehold ")


WRONG_USE = [
    (["rum"], "did you mean run?"),
    (["--bogus"], "--bogus"),
    (["run", "--bogus"], "--bogus"),
    (["run", "--bogus=1"], "--bogus"),
    (["run", "--proceses", "3"], "did you mean --processes?"),
    (["run", "--queu", "a"], "--queue"),
    (["run", "extra"], "'extra'"),
    (["run", "--processes"], "--processes"),
    (["put"], "KLASS"),
    (["put", "a.b", "{", "--nope"], "--nope"),
    (["put", "a.b", "1", "2"], "'2'"),
    (["put", "a.b", "{nope}"], "column 2"),
    (["put", "a.b", '{"a": 1,\n"b" 2}'], "line 2 column 5"),
    (["put", "a.b", "NaN"], "NaN"),
    (["put", "a.b", "[1, -Infinity]"], "-Infinity"),
    (["put", "a.b", "1e999"], "1e999"),
    (["put", "a.b", "["], "DATA is not JSON"),
    (["put", "a.b", "[" * 100_000], "nested too deep"),
    (["put", "a.b", ""], "DATA is not JSON"),
    (["put", "a.b", b"\xff"], "byte 1 is not UTF-8"),
    (["put", "a.b", "1", "--file", "x"], "not both"),
    (["put", "a.b", "--file", "/nonexistent"], "No such file"),
    (["put", "a.b", "--file", "/"], "directory"),
    (["put", "a.b", "1", "--add"], "--jid"),
    (["put", "a.b", "1", "--delay", "soon"], "--delay 'soon'"),
    (["put", "a.b", "1", "--timeout", "-1"], "--timeout"),
    (["put", "a.b", "1", "--at", "tomorrow"], "--at 'tomorrow'"),
    (["put", "a.b", "1", "--priority", "high"], "--priority 'high'"),
    (["put", "a.b", "1", "--retries", "1.5"], "--retries '1.5'"),
    (["put", "a.b", "1", "--max-deaths", ""], "--max-deaths ''"),
    (["job"], "JID"),
    (["failed", "--limit", "0"], "--limit '0'"),
    (["failed", "--limit", "x"], "--limit 'x'"),
    (["failed", "a", "b"], "'b'"),
    (["sweep", "emails"], "'emails'"),
    (["demo", "--jobs", "3"], "--jobs '3'"),
    (["demo", "now"], "'now'"),
]


@pytest.mark.parametrize(("words", "about"), WRONG_USE, ids=lambda value: repr(value)[:40])
def test_wrong_use_is_2_and_one_sentence(words, about, tmp_path):
    done = leasehold(*words, cwd=tmp_path)
    assert about in sentence(done)
    assert done.returncode == 2 and done.stdout == b""
    assert not list(tmp_path.iterdir()), "not even an embedded server's directory"


BAD_CONFIGURATION = [
    (["run", "--processes", "none"], {}, "--processes 'none'"),
    (["run", "--queue", "a", "--queue", "a"], {}, "twice"),
    (["run", "--redis-url", "http://:geheim@x"], {}, "***"),
    (["run", "--redis-url", "redis://h/abc"], {}, "--redis-url 'redis://h/abc' names a database"),
    (
        ["put", "a.b"],
        {"LEASEHOLD_REDIS_URL": "redis://user:12/geheim@h/0"},
        "LEASEHOLD_REDIS_URL 'redis://user:***@h/0'",
    ),
    (["failed"], {"LEASEHOLD_REDIS_URL": "redis://h/0?pasword=geheim"}, "did you mean password?"),
    (["queues", "--redis-url", "redis://h/0?socket_timeout=abc"], {}, "socket_timeout"),
    (["run", "--redis-url", "rediss://h/0?ssl_password=geheim&ssl_ca_certs=/nowhere"], {}, "ssl_ca_certs"),
    (["run"], {"LEASEHOLD_JOB_TIMEOUT": "5x"}, "LEASEHOLD_JOB_TIMEOUT '5x'"),
    (["run"], {"LEASEHOLD_LOG_LEVEL": "loud"}, "LEASEHOLD_LOG_LEVEL 'loud'"),
    (["run"], {"LEASEHOLD_REDIS_ULR": "redis://x"}, "did you mean LEASEHOLD_REDIS_URL?"),
    (["put", "a.b", "1"], {"LEASEHOLD_REDIS_ULR": "redis://x"}, "did you mean LEASEHOLD_REDIS_URL?"),
    (["put", "a.b", "1"], {"LEASEHOLD_REDIS_URL": ""}, "is empty"),
    (["put", "a.b", "1", "--redis-url", "nowhere"], {}, "--redis-url 'nowhere'"),
    (["queues"], {"LEASEHOLD_NAMESPACE": "{a}"}, "LEASEHOLD_NAMESPACE '{a}'"),
    (["job", "x", "--namespace", ""], {}, "--namespace ''"),
    (["failed"], {"LEASEHOLD_WHATEVER": "1"}, "LEASEHOLD_WHATEVER"),
]


@pytest.mark.parametrize(("words", "environ", "about"), BAD_CONFIGURATION, ids=lambda value: repr(value)[:40])
def test_a_bad_setting_is_78_and_one_sentence(words, environ, about, tmp_path):
    done = leasehold(*words, environ=environ, cwd=tmp_path)
    said = sentence(done)
    assert about in said and "geheim" not in said
    assert done.returncode == 78
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["scale", "w", "--timeout", "3s", "4"],
        ["scale", "w", "4", "--timeout", "3s"],
        ["scale", "--timeout=3s", "w", "4"],
        ["scale", "w", "--timeout", "3s", "--", "4"],
        ["tag", "j", "--namespace", "n", "red", "green"],
        ["put", "a.b", "--unique", "{}", "--priority", "-1"],
        ["priority", "j", "--namespace", "n", "-5"],
        ["limit", "k", "--remove", "rate", "--namespace", "n"],
        ["depend", "j", "--on", "a", "b", "--namespace", "n"],
    ],
    ids=" ".join,
)
def test_flags_may_stand_anywhere(words):
    flags = {"--timeout": "3s", "--namespace": "n", "--priority": "-1"}
    parser, _ = build(words[0])
    args = parser.parse_args(words)
    given = {name: getattr(args, name.lstrip("-"), None) for name in flags if any(w.startswith(name) for w in words)}
    assert given == {name: flags[name] for name in given} and given
    others = {
        "scale": {"workers": ["w"], "processes": "4"},
        "tag": {"jid": "j", "tags": ["red", "green"]},
        "put": {"klass": "a.b", "data": "{}", "unique": ""},
        "priority": {"jid": "j", "priority": "-5"},
        "limit": {"key": "k", "remove": "rate"},
        "depend": {"jid": "j", "on": ["a", "b"]},
    }[words[0]]
    if words[0] == "priority":
        given.pop("--priority", None)
    assert {name: getattr(args, name) for name in others} == others


def test_several_bad_settings_are_all_said_at_once():
    done = leasehold("run", "--processes", "x", "--log", "xml", environ={"LEASEHOLD_TYPO": "1"})
    assert done.returncode == 78 and done.stderr.count(b"\n") == 3


def imported_by(*words) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "supervisor", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
    )
    return {line.rsplit(b"|", 1)[-1].strip().decode() for line in done.stderr.splitlines() if b"|" in line}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["demo", "--help"]])
def test_help_and_version_import_no_other_command(words):
    modules = imported_by(*words)
    assert "supervisor.cli.lib.parser" in modules
    assert not {name for name in modules if name.split(".")[0] in {"redis", "rich", "psutil", "asyncio"}}
    others = {f"supervisor.cli.{module}" for command, (module, _) in COMMANDS.items() if command not in words}
    assert not modules & others


def test_help_takes_less_than_300_ms():
    best = 1.0
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        leasehold("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.3, "of processor time, as a busy machine makes it wait; measured: 45 ms"


def test_every_command_is_named_by_its_modules_docstring():
    for command in COMMANDS:
        _, module = build(command)
        assert module is not None and module.__doc__ is not None
        assert f"`leasehold {command}`" in module.__doc__.partition(": ")[0]


_AT_FIRST_IMPORT = (
    "import ctypes, signal, sys\n"
    "sys.argv = ['leasehold', sys.argv[1], '--help']\n"
    "import supervisor.__main__ as m\n"
    "class Spy:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == 'supervisor.cli': print(*sorted({}))\n"
    "sys.meta_path.insert(0, Spy())\n"
    "m.main()\n"
)


def at_first_import(command, what):
    """Return the modules beyond those that every command imports."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_FIRST_IMPORT.format(what), command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
    )
    return {int(number) for number in done.stdout.split(b"\n")[0].split()}


def test_run_blocks_its_signals_before_any_import():
    """PID 1 without handler or mask loses a signal. The mask is checked at the first import."""
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, ())"
    names = ("TERM", "INT", "QUIT", "HUP", "TTIN", "TTOU", "USR1", "USR2", "CONT", "CHLD")
    assert at_first_import("run", blocked) >= {getattr(signal, f"SIG{name}") for name in names}
    assert at_first_import("queues", blocked) == set()


@pytest.mark.parametrize("command", ["run", "put", "top"])
def test_no_other_process_can_look_into_a_command(command):
    assert at_first_import(command, "[ctypes.CDLL(None).prctl(3)]") == {0}  # PR_GET_DUMPABLE


def test_ctrl_c_is_no_traceback_and_130(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "put", "a.b", "--file", str(fifo)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with open(fifo, "wb"):
        until_it_waits(process, "pipe_read")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_leaves_early_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "run", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 0
