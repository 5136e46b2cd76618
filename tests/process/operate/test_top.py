"""`leasehold top` on a real terminal with real supervisors: screens, keys, and the way back."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import psutil
import pytest
from supervised import ROOT

from tests.environment import without_settings
from tests.lengths import SOON_S

pytest.importorskip("rich")
pyte = pytest.importorskip("pyte")

TOP = f"{sys.executable} -m supervisor top --every 300ms"
LEFT = b"\x1b[?25h\x1b[?1049l"  # the cursor, and the screen that was there before


class Screen(pyte.Screen):
    """A screen with a real cursor: after a full line it is on the last cell, where pyte has it behind."""

    def erase_in_line(self, how=0, private=False):
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        super().erase_in_line(how, private)

    def erase_in_display(self, how=0, *rest, **more):
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        super().erase_in_display(how, *rest, **more)


class Seat:
    """A user at a terminal, whose shell runs a script."""

    def __init__(self, stage, script, size=(120, 40), **environment):
        clean = without_settings()
        self._master, theirs = os.openpty()
        self.screen = Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self._news = threading.Condition()
        self._resize(*size)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "-c", script],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=stage.directory,
            env={
                **clean, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
                "LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace, **environment,
            },
        )  # fmt: skip
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            try:
                sent = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                sent = b""
            with self._news:
                self.sent += sent
                self._stream.feed(sent)
                self._news.notify_all()
            if not sent:
                return

    def _resize(self, columns, lines):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        with self._news:
            self.screen.resize(lines, columns)
            self._resize(columns, lines)

    def press(self, keys):
        os.write(self._master, keys.encode())

    def hang_up(self):
        """Close the terminal, as a broken connection does."""
        master, self._master = self._master, -1  # the reader looks there before it reads again
        os.close(master)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def row(self, name):
        """Return the cells of the row that begins with a name."""
        rows = (line.removeprefix("▸").split() for line in self.lines)
        return next((cells for cells in rows if cells[:1] == [name]), [])

    def chosen(self, pane):
        """Return the cells of the chosen row of a pane, once it is drawn."""
        self.wait_until(lambda: self._chosen(pane), f"a chosen row of {pane}")
        return self._chosen(pane)

    def _chosen(self, pane):
        lines = iter(self.lines)
        for line in lines:
            if line.startswith((f"── {pane}", f"━━ {pane}")):
                break
        return next((line[1:].split() for line in lines if line.startswith("▸")), [])

    def wait_until(self, holds, what):
        deadline_at = time.monotonic() + SOON_S
        with self._news:
            while not holds():
                left_s = deadline_at - time.monotonic()
                if left_s <= 0 or not self._news.wait(left_s):
                    assert holds(), f"not within {SOON_S:g} s: {what}\n{self.text}"
                    return

    def wait_for(self, *texts):
        self.wait_until(lambda: all(text in self.text for text in texts), texts)

    def end(self):
        """Return the exit code of the script."""
        code = self.process.wait(SOON_S)
        self._reader.join(SOON_S)
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(SOON_S)
        if self._master >= 0:
            os.close(self._master)


@pytest.fixture
def seat(stage):
    """Start a script at a terminal: seat(script). Processes left are killed at the end."""
    seats = []

    def sit(script, **more):
        seats.append(Seat(stage, script, **more))
        return seats[-1]

    yield sit
    for each in seats:
        each.close()


def pid_of_top(seat):
    (top,) = (each for each in psutil.Process(seat.process.pid).children() if "top" in each.cmdline())
    return top.pid


def forget_answers(stage):
    """Delete answers to abandoned queries, which would stay for a minute."""
    for key in stage.server.redis.scan_iter(f"{stage.prefix}answer:*", count=10_000):
        stage.server.redis.delete(key)


@pytest.mark.sampled(2)
def test_two_supervisors_under_load_are_seen_and_steered(stage, seat):
    gate = stage.gate("gate")
    big = stage.start(processes=2, queue="work", jobs_per_child=0, drain_timeout="60s").wait_ready()
    small = stage.start(processes=1, queue="work", jobs_per_child=0).wait_ready()
    queue = stage.client.queue("work")
    jids = [queue.put("good.hold", gate, jid=f"held-{number}") for number in range(5)]
    stage.wait_until(lambda: len(stage.ledger.starts()) == 3, "three jobs that run")
    stage.client.queue("other").put("good.noop", delay=3600, jid="later")
    top = seat(f"stty -g; {TOP}; echo code $?; stty -g")
    top.wait_for("2 supervisors", "3/3 busy", big.worker, small.worker, "good.hold")
    assert top.screen.cursor.hidden
    assert top.row("other")[:2] == ["other", "0"]
    assert (top.row("work")[1], top.row("work")[3]) == ("2", "3")
    first, second = sorted((big, small), key=lambda pool: pool.worker)
    assert top.row(first.worker)[1] == top.row(second.worker)[1] == "serving"

    top.press("\t")  # to the children of the first
    top.press("s")
    top.wait_for("wait_at", "Escape or q goes back")
    top.press("\x1b")
    top.wait_for(f"children of {first.worker}")
    jid = top.chosen("children")[4]
    top.press("c")
    top.wait_for(f"Cancel {jid} (good.hold)?")
    top.press("y")
    top.wait_for(f"cancelled {jid}")
    assert stage.client.job(jid) is None
    stage.wait_until(lambda: len(stage.ledger.starts()) == 4, "the next one runs")

    top.press("\x1b[Z+++")  # back to the supervisors
    most = {big: 2, small: 1}[first] + 3
    top.wait_until(lambda: f"/{most}" in top.row(first.worker)[2], "three processes more, however quickly it was typed")
    top.press("jd")
    top.wait_for(f"Drain {second.worker}, which runs ")
    top.press("y")
    second.wait_for("master.draining")
    top.wait_until(lambda: top.row(second.worker)[1] == "draining", "it is seen to drain")
    stage.open_gate(gate)
    assert second.wait() == 0
    top.wait_for("1 supervisor  ")

    stage.wait_until_ended(set(jids) - {jid})
    top.wait_until(lambda: top.row("work")[1:4:2] == ["0", "0"], "there is nothing to do: the last of the queues")
    top.press("\t\t\t")  # round to the queues
    top.press("\x1b[Fp")
    top.wait_for("paused queue work")
    top.wait_until(lambda: top.row("work")[-1:] == ["paused"], "it is seen to be paused")
    stage.client.queue("work").unpause()
    top.press("q")
    assert top.end() == 0
    before, after = re.findall(r"(?:\w+:){9,}\w+", top.sent.decode())
    assert before == after and LEFT in top.sent and b"code 0" in top.sent
    assert first.drain() == 0
    stage.client.cancel("later")
    forget_answers(stage)
    stage.assert_nothing_left()


def test_the_terminal_is_restored_on_stop_and_end(stage, seat):
    top = seat(f"stty -g; set -m; {TOP}; echo stopped $?; stty -g; read; fg; echo ended $?; stty -g", size=(80, 24))
    top.wait_for("no supervisor is running here")
    top.resize(100, 30)
    top.wait_until(lambda: len(top.lines[3]) == 100 and top.lines[29].startswith("? keys"), "the new size is filled")
    top.press("\x1a")
    top.wait_for("stopped 148")
    assert LEFT in top.sent and not top.screen.cursor.hidden
    heard = len(top.sent)
    top.press("\n")
    top.wait_until(lambda: b"no supervisor is running here" in top.sent[heard:], "it is drawn again")
    assert top.screen.cursor.hidden
    stage.client.queue("q").put("good.noop", jid="j")
    top.wait_until(lambda: top.row("q")[1:2] == ["1"], "it goes on")
    top.press("\x13")
    stage.client.queue("q").put("good.noop", jid="k")
    top.wait_until(lambda: top.row("q")[1:2] == ["2"], "Ctrl-S stops nothing")
    heard = len(top.sent)
    os.kill(pid_of_top(top), signal.SIGTERM)
    top.wait_for("ended 143")
    assert LEFT in top.sent[heard:]
    assert top.end() == 0
    assert len(set(re.findall(r"(?:\w+:){9,}\w+", top.sent.decode()))) == 1
    stage.client.cancel("j", "k")


def test_top_ends_with_its_terminal(stage, seat, tmp_path):
    complaints = tmp_path / "complaints"
    top = seat(f"exec {TOP} 2>{complaints}")
    top.wait_for("no supervisor is running here")
    top.hang_up()
    assert (top.end(), complaints.read_text()) == (-signal.SIGHUP, "")


def test_top_survives_a_redis_outage(own_stage, own_server, seat):
    stage = own_stage
    stage.client.queue("emails").put("good.noop")
    top = seat(f"{TOP}; echo code $?")
    top.wait_until(lambda: top.row("emails")[1:2] == ["1"], "the queue is seen")
    own_server.kill()
    top.wait_for("Redis is away since ")
    assert top.row("emails")[1] == "1"
    top.press("p")
    top.wait_for("no supervisor is running here")
    own_server.start()
    stage.client.queue("emails").put("good.noop")
    top.wait_until(lambda: top.row("emails")[1:2] == ["2"] and "away" not in top.text, "it is back")
    top.press("q")
    assert top.end() == 0


def test_errors_at_start_are_shown_before_the_screen_is_taken(stage, seat):
    lost = seat(f"{TOP}; echo code $?", LEASEHOLD_REDIS_URL=f"unix://{stage.directory}/nobody")
    assert lost.end() == 0
    assert "code 69" in lost.text and b"\x1b[?1049h" not in lost.sent
    (stage.directory / "rich.py").write_text("raise ImportError('no rich here')\n")
    bare = seat(f"{TOP}; echo code $?", PYTHONPATH=f"{stage.directory}:{ROOT}")
    assert bare.end() == 0
    assert "pip install 'leasehold[cli]'" in bare.text and "code 1" in bare.text


CLOCK = re.compile(r"\d\d:\d\d:\d\d$")


def is_whole(lines):
    """True if the last column is drawn: in the clock, a queue's state and the rules."""
    queues = [line.rstrip().endswith("nobody") for line in lines if line.startswith(("  emails", "▸ emails"))]
    rules = [len(line) == len(lines[0]) for line in lines if line.startswith(("──", "━━"))]
    return bool(CLOCK.search(lines[0])) and queues == [True] and len(rules) == 4 and all(rules)


def test_the_last_column_is_drawn(stage, seat):
    stage.client.queue("emails").put("good.noop", jid="j")
    top = seat(TOP, size=(80, 24))
    for columns in (80, 110, 140, 200):
        top.resize(columns, 24)
        top.wait_until(lambda: is_whole(top.lines), f"{columns} columns are whole")
    top.press("q")
    assert top.end() == 0
    stage.client.cancel("j")


@pytest.fixture
def tmux(stage):
    """Run tmux(words) with its own server and terminal, and return its output."""
    if shutil.which("tmux") is None:
        pytest.skip("this machine has no tmux")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEHOLD_", "TMUX"))}
    environment |= {
        "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "LEASEHOLD_REDIS_URL": stage.server.url,
        "LEASEHOLD_NAMESPACE": stage.namespace,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="leasehold-tmux-") as directory:  # a socket's path must be short

        def say(*words):
            command = ["tmux", "-S", f"{directory}/socket", "-f", "/dev/null", *words]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SOON_S, check=True
            ).stdout

        yield say
        with contextlib.suppress(subprocess.CalledProcessError):  # its server has ended with its last window
            say("kill-server")


def until(holds, what):
    """tmux sends no notification when its windows change."""
    deadline_at = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_at, what()
        time.sleep(0.05)


@pytest.mark.parametrize("columns", [80, 110, 140, 200])
def test_tmux_shows_the_last_column(stage, tmux, columns):
    stage.client.queue("emails").put("good.noop", jid="j")
    ended = stage.directory / "ended"
    tmux("new-session", "-d", "-x", str(columns), "-y", "24", f"{TOP}; echo $? > {ended}")
    until(lambda: is_whole(tmux("capture-pane", "-p").splitlines()), lambda: tmux("capture-pane", "-p"))
    tmux("send-keys", "q")
    until(lambda: ended.is_file() and ended.read_text() == "0\n", lambda: "top goes on")
    stage.client.cancel("j")
