"""Plays a reader who types the lines that the pages show, as printed, in one folder.

Each line finds the directory and the variables that the line before has left. A line that says "until Ctrl-C" has a
terminal of its own.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.docs import warm
from tests.docs.pages import ROOT
from tests.environment import without_settings
from tests.lengths import PATIENCE

#: Notes where a line has led to.
_AFTERWARDS = "\n__code=$?; { pwd; env --null; } >%s; exit $__code"
#: Time limit of steps that take a moment on a machine without other work.
_LONGEST_S = 60

_LEASEHOLD = f"""\
#!/bin/sh
exec {sys.executable} -m supervisor "$@"
"""
_WARM_LEASEHOLD = f"""\
#!/bin/sh
case "$1" in run|web) exec %s "$@";; esac
exec {sys.executable} -IS {Path(warm.__file__)} %s "$@"
"""
_REDIS_CLI = f"""\
#!{sys.executable}
import os, sys, redis
where, address, *words = sys.argv[1:]
password = os.environ.get("REDISCLI_AUTH")
opened = {{"-u": redis.Redis.from_url, "-s": lambda path: redis.Redis(unix_socket_path=path, password=password)}}[where]
print(opened(address).execute_command(*words))
"""
_GIT = """\
#!/bin/sh
[ "$1" = clone ] || exit 2
for folder; do :; done
cp -R "$ORIGIN" "$folder"
"""
_CURL = f"""\
#!{sys.executable}
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[-1], timeout=30).read().decode(), end="")
"""
_JQ = f"""\
#!{sys.executable}
import json, sys
print(json.dumps(json.load(sys.stdin)[sys.argv[1].removeprefix(".")], indent=2))
"""


def commands(block: str) -> list[str]:
    """The lines of a block that do something; what ends in a backslash goes on."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def typed(line: str) -> str:
    """Return a line without its comment, which the pages set off by two spaces."""
    return line.partition("  ")[0]


def is_until_ctrl_c(line: str) -> bool:
    return line.endswith("until Ctrl-C")


class Running:
    """A command in a terminal of its own, until Ctrl-C."""

    def __init__(self, line: str, directory: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", f"exec {line}"], cwd=directory, env=environment,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the command's events as they come, to its end."""
        assert self.process.stderr is not None
        yield from (json.loads(line) for line in self.process.stderr if line.startswith(b"{"))

    def log_until(self, name: str) -> list[dict[str, Any]]:
        """Return the events up to the next one of this name."""
        said = []
        for event in self.events():
            said.append(event)
            if event["event"] == name:
                return said
        raise AssertionError(f"it has ended without {name}")

    def until(self, name: str) -> dict[str, Any]:
        """Return the next event of this name."""
        return self.log_until(name)[-1]

    def until_ready(self) -> dict[str, Any]:
        """Wait until the supervisor can lease jobs, and return the event that says so."""
        missing = {"master.started", "zygote.ready"}  # in any order
        said = []
        for event in self.events():
            said.append(event)
            missing.discard(event["event"])
            if not missing:
                return event
        raise AssertionError(f"it has ended without {missing}: {said}")

    def until_listening(self) -> None:
        """Wait until the web page can be asked."""
        assert self.process.stderr is not None
        assert any(b"listening at http://" in line for line in self.process.stderr), "it has ended before it listened"

    def end(self, ctrl_c: bool = True) -> int:
        """Return the exit code, after Ctrl-C or an end by itself."""
        if ctrl_c and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        for _ in self.events():
            pass
        return self.process.wait(_LONGEST_S)


class Terminal:
    """A shell in a folder. `instead` are words of the pages that stand for something of the reader's own."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.directory = directory
        self.environment = without_settings()
        self.environment |= {"HOME": str(directory), "LEASEHOLD_BOOT_TIMEOUT": f"{60 * PATIENCE:g}s", **variables}
        self.instead: dict[str, str] = {}
        self.running: list[Running] = []

    def read(self, line: str) -> str:
        """Replace the words of a line that a reader has to replace."""
        for word, ours in self.instead.items():
            line = line.replace(word, ours)
        return line

    def carry_out(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Type it, and wait for its end."""
        with tempfile.NamedTemporaryFile("r") as afterwards:
            done = subprocess.run(
                ["sh", "-c", f"{self.read(line)}{_AFTERWARDS % afterwards.name}"],
                cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_LONGEST_S, check=False,
            )  # fmt: skip
            where, _, variables = afterwards.read().partition("\n")
        self.directory = Path(where)
        self.environment = dict(pair.split("=", 1) for pair in variables.split("\0") if pair)
        return done

    def begin(self, line: str) -> Running:
        """Type it in a terminal of its own."""
        self.running.append(Running(self.read(line), self.directory, self.environment))
        return self.running[-1]

    def close(self) -> None:
        """Kill all commands that still run in terminals of their own."""
        for each in self.running:
            each.process.kill()
            each.process.wait(_LONGEST_S)
            assert each.process.stderr is not None
            each.process.stderr.close()


def _is_installed() -> bool:
    """Return whether the `leasehold` beside this interpreter is the tested code, not another version of it."""
    try:
        installed = Path(str(metadata.distribution("leasehold").locate_file("supervisor")))
    except metadata.PackageNotFoundError:
        return False
    ours = [path.relative_to(ROOT / "supervisor") for path in (ROOT / "supervisor").rglob("*.py")]
    return all(
        (installed / path).is_file() and (installed / path).read_bytes() == (ROOT / "supervisor" / path).read_bytes()
        for path in ours
    )


def install(folder: Path) -> None:
    """A `.venv` with the command: the one in which these tests run, or what does the same with the code here."""
    venv = folder / ".venv"
    if _is_installed() and Path(sys.prefix, "bin/activate").is_file():
        venv.symlink_to(sys.prefix)
        return
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").mkdir()
    (venv / "lib/supervisor").symlink_to(ROOT / "supervisor")
    _program(venv / "bin/leasehold", _LEASEHOLD)
    (venv / "bin/activate").write_text(f'export PATH="{venv}/bin:$PATH" PYTHONPATH="{venv}/lib"\n')


@contextlib.contextmanager
def kept_warm(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Meanwhile the `leasehold` in the folder is one that needs not be loaded."""
    installed = shutil.which("leasehold", path=environment["PATH"])
    socket_path = folder / "warm"
    server = subprocess.Popen(
        [sys.executable, warm.__file__, "--serve", socket_path], env=environment, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        assert server.stdout.read(1) == b"!"
        _program(folder / "leasehold", _WARM_LEASEHOLD % (installed, socket_path))
        yield
    finally:
        server.kill()
        server.communicate()


def stand_in(folder: Path, *names: str) -> None:
    """Programs of others that the pages name, and a machine may not have: what they do here, and no more."""
    for name in names:
        _program(folder / name, {"redis-cli": _REDIS_CLI, "curl": _CURL, "git": _GIT, "jq": _JQ}[name])


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@contextlib.contextmanager
def started(server, namespace, directory: Path, *flags: str) -> Iterator[subprocess.Popen]:
    """A supervisor with one process, and all that it says on its stderr."""
    environment = without_settings()
    environment |= {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "supervisor", "run", "--processes", "1", "--log-level", "debug", *flags]
    with subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE) as master:
        try:
            yield master
        finally:
            master.kill()
