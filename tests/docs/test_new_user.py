"""A new user carries out the page of the first ten minutes, line by line as printed, in an empty folder."""

import fcntl
import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from tests.docs.pages import FENCE, FIRST_STEPS, OPERATIONS, README, ROOT, blocks, example, section
from tests.docs.terminal import Terminal, commands, install, is_until_ctrl_c, stand_in, typed
from tests.lengths import FULL
from tests.servers import free_port

TITLE = "From a handler to a drained pool"
#: The event after which a reader types the next line, by the line that causes it.
LOOKED_FOR = {
    "leasehold run --processes 2 --http 127.0.0.1:9464": "job.completed",
    """leasehold put greetings.hello '{"name": "Godot"}'""": "job.retried",
}
#: The text that a reader sees then, by the beginning of the line.
SEEN = {
    "leasehold job first": r'(?s)^state +complete$.*\{"greeted":"Ada"\}',
    "leasehold queues": r"^queue .* scheduled .*\n(-.*\n)?default .* 1 ",
    "leasehold top": r"^1 supervisor .*0/2 busy(?s:.*)retried +greetings\.hello",
    "leasehold status": r"serving",
    "curl --silent": r'^leasehold_jobs_ended_total\{klass="greetings.hello",outcome="completed".*\} 1\.0$',
    "leasehold drain --all": r"drains",
}


#: The sections that come next, and the names in the data of the jobs that complete at once.
NEXT = ("Put jobs", "What a queue can do")
GREETED = {"Ada", "Alan", "Cleo", "Dan", "Ida", "Tim"}
#: A line that needs a Redis of the reader's own. test_commands.py provides one.
ELSEWHERE = "redis-cli -u redis://localhost:6379/0"


def get_it(clone):
    """Install the command in its `.venv`: at full length by the page's own first line, from the package index."""
    if not FULL:
        install(clone)
        return
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "supervisor", clone / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    (line,) = FENCE.search(section(README, "Run it"))[2].splitlines()
    subprocess.run(["sh", "-c", line], cwd=clone, check=True, stdout=subprocess.DEVNULL, timeout=300)


@pytest.mark.sampled(3)
def test_first_steps_lead_from_an_empty_folder_to_a_drain(open_directory, measured):
    begun_at = time.monotonic()
    clone = open_directory / "leasehold"
    clone.mkdir()
    get_it(clone)
    terminal = Terminal(clone, LC_ALL="C.UTF-8")
    terminal.environment.pop("PYTHONPATH", None)
    terminal.instead["9464"] = str(free_port())
    if shutil.which("curl") is None:
        (tools := open_directory / "tools").mkdir()
        stand_in(tools, "curl")
        terminal.environment["PATH"] += f":{tools}"
    try:
        said, said_here = walk(terminal)
    finally:
        terminal.close()
    for line, pattern in SEEN.items():
        (shown,) = (text for command, text in said.items() if command.startswith(line))
        assert re.search(pattern, shown, re.MULTILINE), f"{line}\n{shown}"
    (shown,) = (json.loads(block) for block in blocks(FIRST_STEPS, "json"))
    assert list(shown) == list(said_here["job.completed"]), "the line of the log on the page has other fields"
    await_the_servers_end(open_directory / "first")
    measured(f"every command of the first ten minutes: {time.monotonic() - begun_at:.1f} s")


def await_the_servers_end(folder):
    """Wait for the end of the embedded server, which ends with the last command."""
    with (folder / ".leasehold/running.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.fixture
def folder(open_directory):
    """A terminal in the folder that the first ten minutes leave."""
    install(open_directory)
    (first := open_directory / "first").mkdir()
    (first / "handlers").mkdir()
    (first / "handlers/greetings.py").write_text(example(FIRST_STEPS, "greetings"))
    (tools := open_directory / "tools").mkdir()
    if shutil.which("redis-cli") is None:
        stand_in(tools, "redis-cli")
    terminal = Terminal(open_directory, LC_ALL="C.UTF-8")
    terminal.environment.pop("PYTHONPATH", None)
    terminal.environment["PATH"] += f":{tools}"
    terminal.carry_out(f". .venv/bin/activate; cd {first}")
    yield terminal
    terminal.close()
    await_the_servers_end(first)


def completed(pool, names):
    """Yield the pool's events until each of these names has been greeted."""
    names = set(names)
    for event in pool.events():
        yield event
        if event["event"] == "job.printed":
            names.discard(event["line"].removeprefix("hello "))
        if not names:
            return


@pytest.mark.sampled(3)
def test_next_sections_work_in_the_same_folder(folder):
    pool = folder.begin("leasehold run --processes 2")
    pool.until_ready()
    for title in NEXT:
        for language, body in FENCE.findall(section(FIRST_STEPS, title)):
            if language == "python":
                (folder.directory / "block.py").write_text(body)
            lines = {"python": [f"{sys.executable} block.py"], "sh": commands(body)}[language]
            for line in lines:
                if not line.startswith(ELSEWHERE):
                    done = folder.carry_out(line)
                    assert (done.returncode, "Traceback" in done.stderr) == (0, False), f"{line}\n{done.stderr}"
                    if language == "python":
                        assert len(done.stdout) < 1000, f"too much to read\n{done.stdout}"
    said = list(completed(pool, GREETED))
    assert pool.end() == 0
    assert not {"job.unknown", "job.retried", "job.failed", "job.died"} & {event["event"] for event in said}


def walk(terminal):
    """Carry out a section. Return the output of each line, and the last event of each name that was looked for."""
    said, events = {}, {}
    for language, body in FENCE.findall(section(FIRST_STEPS, TITLE)):
        if language == "python":
            name, _, _ = body.removeprefix("# ").partition("\n")
            (terminal.directory / name).write_text(body)
        for line in commands(body) if language == "sh" else []:
            if is_until_ctrl_c(line):
                pool = terminal.begin(line)
            else:
                done = terminal.carry_out(line)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                said[typed(line)] = done.stdout
            if typed(line) in LOOKED_FOR:
                event = pool.until(LOOKED_FOR[typed(line)])
                events[event["event"]] = event
    assert pool.end(ctrl_c=False) == 0
    return said, events


def test_page_holds_each_line_that_is_looked_for():
    lines = [line for block in FENCE.findall(section(FIRST_STEPS, TITLE)) for line in commands(block[1])]
    for each in [*LOOKED_FOR, *SEEN]:
        assert [line for line in lines if line.startswith(each)], each


def test_readme_and_first_steps_take_ten_minutes():
    assert len(README.read_text().splitlines()) <= 150
    words = sum(len(FENCE.sub("", page.read_text()).split()) for page in (README, FIRST_STEPS))
    assert words < 10 * 200, f"{words} words"


def test_last_lines_of_the_demo_are_current():
    (shown,) = (block for block in blocks(README, "text") if "Proven" in block)
    program = (ROOT / "supervisor/cli/demo/command.py").read_text()
    *rows, proof = shown.splitlines()
    for row in rows:
        words = re.split(r"  +", row)[0]
        assert f'"{words}"' in program or words.startswith("deaths by "), row
    put, completed, failed, left = (int(word) for word in re.findall(r"\d+", proof.replace(",", "")))
    assert (put, failed, left) == (completed, 0, 0)


def test_screen_on_the_page_is_one_of_top():
    (screen,) = (block for block in blocks(OPERATIONS, "text") if "── queues" in block)
    drawn = (ROOT / "tests/cli/top/screens/busy-80x24.txt").read_text()
    assert screen.splitlines() == drawn.splitlines()
