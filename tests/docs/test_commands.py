"""Carries out each line that the README and the operations manual show for a shell, as printed and in order.

A supervisor runs beside them. A line that ends the supervisor is followed by a new start.
"""

import contextlib
import re

import pytest

from supervisor import Client
from tests.docs.pages import FENCE, FIRST_STEPS, OPERATIONS, README, blocks, example, path_of, section
from tests.docs.terminal import Terminal, commands, install, is_until_ctrl_c, kept_warm, stand_in, typed
from tests.lengths import FULL
from tests.servers import free_port

#: Exit codes other than 0 that a line has here, and why.
ENDS_WITH = {
    "leasehold queues emails --delete": (2, "it asks, and nobody sits at this terminal"),
    "leasehold upgrade --back --dry-run": (1, "a supervisor runs beside it"),
    "leasehold upgrade --back": (1, "a supervisor runs beside it"),
    "leasehold reshard 16 --dry-run": (1, "there are doors, of the page before"),
    "leasehold reshard 16": (1, "there are doors, of the page before"),
}
#: Lines with this text need the server of the reader's own folder. test_new_user.py types them there.
AT_THE_EMBEDDED_SERVER = "redis-cli -s .leasehold/socket"
#: Sections whose blocks for a shell other tests carry out.
ELSEWHERE = {
    "Run it": "tests/process/jobs/test_demo.py runs the demo, test_new_user.py with TEST_FULL=1 the whole line",
    "Test it": "this is what runs",
    "From a handler to a drained pool": "test_new_user.py",
    "Test a handler": "test_testing.py",
}
_NO_ENGINE = "there is no engine; tests/deploy/test_dockerfile.py does the image's steps"
_ACCOUNT = "test_access.py gives the account to a server"
#: Lines in other fences: how they begin, and who looks at them.
NOT_FOR_A_SHELL_HERE = {
    ("deploy/docs", "docker build"): _NO_ENGINE,
    ("deploy/docs", "docker run"): _NO_ENGINE,
    ("deploy/docs", "docker kill"): _NO_ENGINE,
    ("deploy/docs", "docker exec"): _NO_ENGINE,
    ("deploy/docs", "buildah build"): "tests/image builds by it, in the full run",
    ("deploy/docs", "podman run"): _NO_ENGINE,
    ("deploy/docs", "TERM 25"): "a drawing; test_ending.py compares it with the times of the code",
    ("deploy/docs", "ACL SETUSER leasehold on"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~orders"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~hworker"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~bqueues"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~queue"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~rq"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER leasehold ~celery"): _ACCOUNT,
    ("deploy/docs", "ACL SETUSER producer"): _ACCOUNT,
}


class Manual:
    """A page that is read at a terminal in the folder of a release, as the manual has it, beside a supervisor."""

    def __init__(self, folder, server, namespace):
        self.folder = folder
        (release := folder / "srv/app/releases/first").mkdir(parents=True)
        (release / "handlers").mkdir()
        (release / "handlers/greetings.py").write_text(example(README, "greetings"))
        (folder / "srv/app/current").symlink_to(release)
        install(folder)
        self.tools = folder / "tools"
        self.tools.mkdir()
        stand_in(self.tools, "redis-cli", "git", "curl", "jq")
        self.terminal = Terminal(folder, LC_ALL="C.UTF-8", PATH=f"{self.tools}:/usr/bin:/bin")
        self.terminal.environment["ORIGIN"] = str(release)
        self.terminal.environment.pop("PYTHONPATH", None)
        self._type(f". .venv/bin/activate; cd {folder}/srv/app/current")
        self.terminal.environment |= {
            "LEASEHOLD_REDIS_URL": server.url,
            "LEASEHOLD_NAMESPACE": namespace,
            "LEASEHOLD_PROCESSES": "2",
        }
        self.terminal.instead = {
            "{leasehold}": f"{{{namespace}}}", "/srv/app": f"{folder}/srv/app", "9464": str(free_port()),
            "9465": str(free_port()), "redis://localhost:6379/0": server.url,
        }  # fmt: skip
        self.pool = None
        with Client(server.url, namespace) as client:  # nobody here serves them
            client.queue("emails").put("greetings.hello", {"name": "Ada"})

    def _type(self, line):
        done = self.terminal.carry_out(line)
        code, _ = ENDS_WITH.get(typed(line), (0, ""))
        assert done.returncode == code, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def has_a_supervisor(self):
        if self.pool is None:
            self.pool = self.terminal.begin("leasehold run --http 127.0.0.1:9464")
            self.terminal.instead["web-1-4711-3f2a"] = self.pool.until_ready()["worker"]

    def carry_out(self, block):
        beside = [self._line(line) for line in commands(block)]
        for running in filter(None, beside):
            assert running.end() == 0

    def _line(self, line):
        if is_until_ctrl_c(line):
            running = self.terminal.begin(line)
            (running.until_listening if line.startswith("leasehold web") else running.until_ready)()
            return running
        self.has_a_supervisor()
        healthcheck = line.startswith("leasehold healthcheck")
        self._type(f"LEASEHOLD_HTTP=127.0.0.1:9464 {line}" if healthcheck else line)
        if line.startswith("leasehold drain"):
            assert self.pool.end(ctrl_c=False) == 0
            self.pool = None
        return None

    def script(self, block):
        """A file, not lines."""
        (path := self.folder / "script").write_text(self.terminal.read(block))
        path.chmod(0o755)
        self.has_a_supervisor()
        return self.terminal.carry_out(str(path))

    def end(self):
        assert self.pool is None or self.pool.end() == 0


@pytest.fixture
def manual(open_directory, server, namespace):
    manual = Manual(open_directory, server, namespace)
    with contextlib.ExitStack() as held:
        held.callback(manual.terminal.close)
        if not FULL:
            held.enter_context(kept_warm(manual.tools, manual.terminal.environment))
            manual.terminal.environment["PATH"] = f"{manual.tools}:{manual.terminal.environment['PATH']}"
        yield manual


def has_section(page, title):
    return f"## {title}\n" in page.read_text()


def for_a_shell(page):
    """Return the blocks of a page that are carried out here."""
    elsewhere = [
        body for title in ELSEWHERE if has_section(page, title) for _, body in FENCE.findall(section(page, title))
    ]
    return [block for block in blocks(page, "sh") if block not in elsewhere and AT_THE_EMBEDDED_SERVER not in block]


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, FIRST_STEPS, OPERATIONS], ids=path_of)
def test_every_shell_line_works(page, manual, measured):
    lines = 0
    for block in for_a_shell(page):
        if block.startswith("#!"):
            done = manual.script(block)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            manual.carry_out(block)
        lines += len(commands(block))
    manual.end()
    measured(f"{lines} lines of {path_of(page)}")


def test_deploy_script_rolls_back_broken_code(manual):
    current = manual.folder / "srv/app/current"
    before = current.resolve()
    broken = manual.folder / "origin"
    (broken / "handlers").mkdir(parents=True)
    (broken / "handlers/greetings.py").write_text("import nothing_of_this_name")
    manual.terminal.environment["ORIGIN"] = str(broken)
    (script,) = (block for block in blocks(OPERATIONS, "sh") if block.startswith("#!"))
    done = manual.script(script)
    assert done.returncode == 1 and "nothing_of_this_name" in done.stdout + done.stderr
    assert current.resolve() == before
    assert [event["event"] for event in manual.pool.log_until("reload.completed")].count("reload.failed") == 1
    manual.end()


def test_lines_that_are_not_carried_out_are_listed_with_a_reason():
    found = []
    for page in (README, FIRST_STEPS, OPERATIONS):
        for language, body in FENCE.findall(page.read_text()):
            assert language in {"", "console", "sh", "python", "json", "text", "js"}, language  # js: tests/web runs it
            if language in {"", "console"}:
                lines = [line for line in body.splitlines() if re.match(r" {0,2}[a-zA-Z]", line)]
                found += [(path_of(page), " ".join(line.split())) for line in lines]
    for page, line in found:
        assert any(page == where and line.startswith(begin) for where, begin in NOT_FOR_A_SHELL_HERE), (page, line)
    assert len(found) == len(NOT_FOR_A_SHELL_HERE)
    for line in ENDS_WITH:
        assert any(line in block for page in (README, FIRST_STEPS, OPERATIONS) for block in for_a_shell(page)), line
