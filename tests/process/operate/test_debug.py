"""`leasehold run --debug` gives handlers the terminal: breakpoint() works, however long the user thinks."""

import os
import subprocess
import sys
import threading

import pytest

from tests.environment import without_settings
from tests.lengths import SOON_S
from tests.process.apps import start_app, write_app
from tests.process.supervised import ROOT

APP = """
@handler(timeout="0.3s")
def stops(job):
    number = 6
    breakpoint()
    print("the number is", number)
    return number


@handler
def asks(job):
    return input("your name? ")
"""


class Terminal:
    """A user's terminal, with a supervisor in it."""

    def __init__(self, stage, *flags):
        self._ours, theirs = os.openpty()
        clean = without_settings()
        environment = {**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(stage.directory / "tmp"), "TERM": "dumb"}
        command = [sys.executable, "-m", "supervisor", "run", "--debug", "--redis-url", stage.server.url, "--namespace",
                   stage.namespace, "--handlers", "app", *flags]  # fmt: skip
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=stage.directory,
            env=environment,
        )  # fmt: skip
        os.close(theirs)
        self._news = threading.Condition()
        self._said = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                said = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            with self._news:
                self._said += said
                self._news.notify_all()

    @property
    def text(self):
        return self._said.decode(errors="replace")

    def wait_for(self, text):
        with self._news:
            assert self._news.wait_for(lambda: text in self.text, SOON_S), self.text

    def type(self, line):
        os.write(self._ours, line.encode() + b"\n")

    def end(self):
        self.process.terminate()
        code = self.process.wait(SOON_S)
        os.close(self._ours)
        return code


@pytest.mark.parametrize("sandbox", ["basic", "strict"])
def test_breakpoint_works_and_no_time_limit_ends_it(stage, sandbox):
    write_app(stage, APP)
    jid = stage.queue.put("stops", None)
    terminal = Terminal(stage, "--sandbox", sandbox, "--lease-ttl", "1s")
    terminal.wait_for("(Pdb)")
    stage.let_time_pass(2)  # past the job's limit and its lease's first end, which no event reports
    terminal.type("number = 7")
    terminal.type("p 'it is', number * 6")
    terminal.wait_for("('it is', 42)")
    terminal.type("c")
    terminal.wait_for("the number is 7")
    stage.wait_until_settled([jid])
    job = stage.client.job(jid)
    assert (job.result, job.deaths, job.failures) == (7, 0, 0)
    assert terminal.end() == 0
    stage.assert_nothing_left()


def test_handler_may_read_the_terminal_and_quitting_the_debugger_fails_the_job(stage):
    write_app(stage, APP)
    asked = stage.queue.put("asks", None)
    terminal = Terminal(stage)
    terminal.wait_for("your name? ")
    terminal.type("Ada")
    stage.wait_until_settled([asked])
    assert stage.client.job(asked).result == "Ada"
    quits = stage.queue.put("stops", None, retries=0)
    terminal.wait_for("(Pdb)")
    terminal.type("q")
    stage.wait_until_settled([quits])
    failure = stage.client.job(quits).failure
    assert failure["group"] == "BdbQuit" and "terminal" not in failure["message"]
    assert terminal.end() == 0
    stage.assert_nothing_left()


def test_breakpoint_without_debug_fails_naming_the_flag(stage):
    pool = start_app(stage, APP, processes=1, on_error="fail")
    jid = stage.queue.put("stops", None)
    stage.wait_until_ended([jid])
    assert "`leasehold run --debug`" in stage.client.job(jid).failure["message"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_debug_without_a_terminal_is_refused(stage):
    write_app(stage, APP)
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "--debug", "--redis-url", stage.server.url, "--handlers", "app"],
        cwd=stage.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 78
    assert "--debug gives handlers the terminal on stdin, and there is none" in done.stderr
    stage.assert_nothing_left()
