"""The demo as a user runs it: it checks itself, Ctrl-C drains it, and nothing is left however it ends."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.environment import without_settings

ROOT = Path(__file__).parents[3]


class Demo:
    """A running demo in a session of its own with its stderr on a terminal, and all its processes."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory = directory
        self.screen = b""
        self.terminal, follower = pty.openpty()
        clean = without_settings()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "demo", *words],
            env={**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory), "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)

    def read_until(self, pattern: bytes) -> re.Match:
        """Read the screen until it shows the pattern."""
        while not (match := re.search(pattern, self.screen)):
            self.screen += os.read(self.terminal, 4096)
        return match

    def end(self) -> str:
        """Wait for the end, and return what was printed on stdout."""
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more
            while chunk := os.read(self.terminal, 4096):
                self.screen += chunk
        out = self.process.stdout.read().decode()
        self.process.wait(30)
        return out

    def relatives(self) -> list[int]:
        """Return the live processes of its session, or with a working directory inside its own."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # gone meanwhile
                    here = (entry / "cwd").readlink().is_relative_to(self.directory)
                    if here or os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        for pid in self.relatives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        self.process.stdout.close()
        os.close(self.terminal)


@pytest.fixture
def directory():
    """A temporary directory with a short path. Below a long path the demo makes its own elsewhere."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def demo(directory):
    started = []

    def start(*words):
        started.append(Demo(directory, *words))
        return started[-1]

    yield start
    for each in started:
        each.close()


def number_in(text: str, pattern: str) -> list[int]:
    match = re.search(pattern, text)
    assert match, text
    return [int(group.replace(",", "")) for group in match.groups()]


PROOF = r"Proven: ([\d,]+) put = ([\d,]+) completed \+ ([\d,]+) failed"


def test_demo_completes_every_job_and_leaves_nothing(demo):
    running = demo("--jobs", "400")
    out = running.end()
    assert running.process.returncode == 0, (out, running.screen)
    assert number_in(out, PROOF) == [400, 400, 0] and "left in the queue: 0." in out
    for reason, count in {"SIGSEGV": 4, "exit-3": 2, "SIGKILL": 2, "timeout": 2}.items():
        assert number_in(out, rf"deaths by {reason}\s+(\d+)") == [count]
    assert number_in(out, r"exceptions, retried\s+(\d+)") == [2]
    files, lines, code, tokens = (
        number_in(out, rf"{words}\s+([\d,]+)")[0] for words in ("files done", "lines", "lines with code", "tokens")
    )
    assert files == 400 and 400 < code < lines and code < tokens
    assert re.search(r"ran again after\s+p50 [\d.]+ ms, max [\d.]+ ms", out)
    assert b"400 of 400 jobs" in running.screen
    assert running.relatives() == [] and list(running.directory.iterdir()) == []


@pytest.mark.parametrize("to_the_group", [True, False], ids=["ctrl-c", "signal to the demo alone"])
def test_ctrl_c_drains_the_demo_and_leaves_nothing(demo, to_the_group):
    running = demo("--jobs", "3000")
    running.read_until(rb"[1-9]\d+ of 3,?000 jobs")
    if to_the_group:
        os.killpg(running.process.pid, signal.SIGINT)
    else:
        running.process.send_signal(signal.SIGINT)
    out = running.end()
    assert running.process.returncode == 0, (out, running.screen)
    completed, back = number_in(out, r"Drained: ([\d,]+) completed, ([\d,]+) back in the queue\.")
    assert completed > 0 and back > 0
    put, proven, failed, waiting, left = number_in(out, PROOF + r" \+ ([\d,]+) waiting; left in the queue: ([\d,]+)\.")
    assert (put, proven, failed, waiting, left) == (3000, completed, 0, back, back) and completed + back == put
    assert b"draining: what runs may finish, the rest goes back to the queue" in running.screen
    assert running.relatives() == [] and list(running.directory.iterdir()) == []


@pytest.mark.sampled(3)
def test_the_demo_killed_leaves_no_process(demo):
    running = demo("--jobs", "3000")
    running.read_until(rb"[1-9]\d+ of 3,?000 jobs")
    deadline = time.monotonic() + 40
    while len(seen := running.relatives()) < 6:  # a child ends with its job, and is gone before the next one is there
        assert time.monotonic() < deadline, f"demo, keeper, server, master, zygote, children: {len(seen)}"
    running.process.kill()
    while running.relatives() and time.monotonic() < deadline:
        time.sleep(0.1)  # there is no event for the end of foreign descendants
    assert running.relatives() == []


def test_failed_boot_of_the_demo_is_reported_and_leaves_nothing(directory):
    broken = directory / "import"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys\n"
        "class Spoiler:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'supervisor.cli.demo.handlers.files':\n"
        "            raise RuntimeError('these handlers are broken')\n"
        "sys.meta_path.insert(0, Spoiler())\n"
    )
    clean = without_settings()
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "demo", "--jobs", "100"],
        env={**clean, "PYTHONPATH": f"{broken}{os.pathsep}{ROOT}", "TMPDIR": str(directory)},
        capture_output=True,
        timeout=150,
    )
    assert done.returncode == 1 and b"these handlers are broken" in done.stderr, done
    assert b"run ended with exit code 71" in done.stderr
    assert b"100 put = 0 completed + 0 failed + 100 waiting" in done.stdout
    assert [path.name for path in directory.iterdir()] == ["import"]
