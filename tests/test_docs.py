"""What the documents say is so: their commands run, and every name in them is one that the code has."""

import argparse
import ast
import contextlib
import gzip
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

import supervisor
from handlers import files, text
from supervisor.cli import parser, status
from supervisor.config import (
    FROM_KUBERNETES,
    LAST_EXCHANGE_S,
    REAP_S,
    SETTINGS,
    VARIABLES,
    Exit,
    parse_duration,
)
from supervisor.engine.options import OPTIONS
from supervisor.engine.stream import STREAM_EVENTS
from supervisor.ops.events import EVENTS
from supervisor.pool.drain import HURRIED_EXCHANGE_S, Ladder
from supervisor.pool.environment import BASICS
from supervisor.pool.handlers import Fail
from supervisor.pool.kernel import HANDLED_SIGNALS, children_of
from supervisor.pool.sandbox import confinement
from supervisor.pool.signals import MEANINGS, Meaning
from supervisor.pool.states import Phase
from tests.docs.pages import (
    ARCHITECTURE,
    CONTRACT,
    FENCE,
    GUIDE,
    OPERATIONS,
    PAGES,
    README,
    RECIPES,
    ROOT,
    anchors,
    blocks,
    example,
    path_of,
    rows,
    section,
    tables,
)
from tests.engine.invariants import look, misplaced

ENTRIES = ROOT / "supervisor/engine/lua/include/entries.lua"
ATTACKS = ROOT / "tests/process/test_attacks.py"

#: Flags of other programs that the pages show.
FOREIGN_FLAGS = {
    *("--quiet", "--no-cache-dir", "--file", "--tag", "--rm", "--stop-timeout", "--env", "--build", "--init"),
    *("--appendonly", "--appendfsync", "--maxmemory-policy"),
    *("--system", "--uid", "--no-create-home", "--home-dir", "--from", "--signal", "--depth", "--pids-limit"),
    *("--gid", "--no-deps", "--wheel-dir", "--only-binary", "--without-pip", "--python", "--read-only", "--tmpfs"),
    *("--interval", "--timeout", "--start-period", "--retries", "--now"),
    *("--kustomize", "--from-literal", "--scale", "--spider", "--silent"),
}
#: What `job` has for its child, and not for the handler.
NOT_FOR_HANDLERS = {"completion", "report_progress", "tell_to_stop"}


@contextlib.contextmanager
def started(server, namespace, directory: Path, *flags: str) -> Iterator[subprocess.Popen]:
    """A supervisor with one process, and all that it says on its stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    environment |= {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "supervisor", "run", "--processes", "1", "--log-level", "debug", *flags]
    with subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE) as master:
        try:
            yield master
        finally:
            master.kill()


# the two commands


@pytest.mark.parametrize(
    ("title", "extra", "end"), [("Run it", "all", "leasehold demo"), ("Test it", "test", "python -m pytest -n 3")]
)
def test_the_first_block_is_one_line_for_a_fresh_clone(title, extra, end):
    first = FENCE.search(section(README, title))
    assert first and first[1], "the block must name its language: CI's extraction stops at a bare fence"
    (command,) = first[2].splitlines()
    make, install, use = command.split(" && ")
    assert make == "python3 -m venv .venv"
    assert install.startswith(".venv/bin/pip install ") and install.endswith(f" '.[{extra}]'")
    assert use == f".venv/bin/{end}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras


def test_ci_finds_the_test_command_in_the_readme():
    line = next(line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("test_command="))
    found = subprocess.run(["bash", "-c", f'{line}; echo "$test_command"'], cwd=ROOT, capture_output=True, text=True)
    assert [found.stdout.strip()] == [FENCE.search(section(README, "Test it"))[2].strip()]


def test_the_wheel_holds_every_file_that_is_not_python():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    held = {
        path
        for package, patterns in setuptools["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    files = {path for path in (ROOT / "supervisor").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files - held if path.suffix != ".py"} == set()
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in files if path.suffix == ".py"}
    assert packages == set(setuptools["packages"])


# commands, flags, variables


def shown_commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("leasehold ")]


@pytest.mark.parametrize("command", shown_commands())
def test_every_command_shown_is_one_that_the_command_line_takes(command):
    words = shlex.split(command, comments=True)[1:]
    built, module = parser.build(words[0] if words[0] in parser.COMMANDS else None)
    assert module is not None, words
    _, unknown = built.parse_known_args(words)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_a_shell_reads_what_is_shown_for_it(page):
    for block in blocks(page, "sh"):
        read = subprocess.run(["sh", "-n"], input=block, capture_output=True, text=True)
        assert (read.returncode, read.stderr) == (0, ""), block


def all_flags() -> set[str]:
    found = {"--version", "--help"}
    for command in parser.COMMANDS:
        built, _ = parser.build(command)
        commands = next(a for a in built._actions if isinstance(a, argparse._SubParsersAction))
        found.update(commands.choices[command]._option_string_actions)
    return found


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=path_of)
def test_every_flag_exists(page):
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert flags - all_flags() - FOREIGN_FLAGS == set()


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=path_of)
def test_every_variable_exists(page):
    names = set(re.findall(r"LEASEHOLD_[A-Z_]+[A-Z]", page.read_text()))
    assert {name for name in names - VARIABLES if not FROM_KUBERNETES.fullmatch(name)} == set()


def test_the_settings_of_operations_are_those_of_the_code():
    table = {row[0]: (row[1], row[2]) for row in rows(OPERATIONS, "Settings")}
    assert list(table) == [f"`--{setting.flag}`" for setting in SETTINGS]
    for setting in SETTINGS:
        variable, default = table[f"`--{setting.flag}`"]
        assert variable == f"`{setting.variable}`"
        if setting.default is not None:
            assert default == f"`{setting.default}`"


def test_the_options_in_redis_are_those_of_the_engine():
    defaults = {name: str(option.default).lower() for name, option in OPTIONS.items() if option.default is not None}
    shown = {}
    for names, values, _ in rows(OPERATIONS, "The config in Redis"):
        shown |= dict(zip(re.findall(r"`([\w-]+)`", names), values.split(", "), strict=True))
    assert shown == defaults


def test_the_exit_codes_are_those_of_the_code():
    table = [(int(code), name.strip("`")) for code, name, *_ in rows(OPERATIONS, "Exit codes")]
    assert table == [(each.value, each.name) for each in Exit]


def test_every_signal_that_the_master_reads_is_in_the_table():
    named = {word for row in rows(OPERATIONS, "Signals") for word in re.findall(r"[A-Z0-9]{2,}", row[0])}
    assert named == {each.name.removeprefix("SIG") for each in HANDLED_SIGNALS - {signal.SIGCHLD}} | {"KILL"}


#: What signal(7) says that they do to who has done nothing about them. TTIN and TTOU would stop a process that has a
#: terminal's session above it, and ours have none.
HARMLESS_BY_DEFAULT = {"TTIN", "TTOU", "CONT"}


def does(pid: int, name: str) -> str:
    """What the signal does to the process: by what the kernel says that it catches, ignores and blocks."""
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


def test_the_signals_do_to_zygote_child_and_programs_what_the_table_says(server, namespace, tmp_path):
    (tmp_path / "shelling.py").write_text(SHELLING)
    with supervisor.Client(server.url, namespace) as client:
        client.queue("default").put("shell")
    with started(server, namespace, tmp_path, "--handlers", "shelling", "--drain-timeout", "0") as master:
        pids = {}
        for event in map(json.loads, master.stderr):
            pids.setdefault(event["event"], event.get("pid"))
            if event["event"] == "job.printed":
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
        assert master.wait(30) == 0


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
    ladder = Ladder.of(0.0, patience_s, grace_s)
    at = [ladder.interrupt_at, ladder.kill_at, ladder.hand_back_at, ladder.leave_by_at]
    assert re.findall(r"(\d+) s", drawing.splitlines()[0]) == [f"{each_s:g}" for each_s in at]
    assert f"in {REAP_S + HURRIED_EXCHANGE_S:g} s at the most" in section(OPERATIONS, "Signals")
    for given, _, advised in advice:
        ladder = Ladder.of(0.0, parse_duration(re.search(r"--drain-timeout (\w+)", advised)[1]), grace_s)
        assert ladder.leave_by_at < parse_duration(given.replace(" ", ""))


def test_every_signal_is_said_to_do_what_the_master_makes_of_it():
    effects = {word: row[1] for row in rows(OPERATIONS, "Signals") for word in re.findall(r"[A-Z0-9]{2,}", row[0])}
    for signo, meaning in MEANINGS.items():
        if meaning is not Meaning.REAP:
            assert meaning.value.split()[-1] in effects[signo.name.removeprefix("SIG")], meaning


def test_the_states_of_a_supervisor_are_those_that_status_knows():
    states = {
        word for row in rows(OPERATIONS, "Asking and telling supervisors") for word in re.findall(r"`([\w-]+)`", row[0])
    }
    assert {each.value for each in Phase} - {Phase.STOPPED.value} <= states
    listed = re.search(r"State: (.*?)\. Exit", status.EXAMPLES, re.DOTALL)[1]
    assert states == {word.split()[-1] for word in re.split(r",\s", listed)}


def test_what_a_supervisor_says_of_itself_is_in_the_table():
    tree = ast.parse((ROOT / "supervisor/pool/status.py").read_text())
    (told,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "tell")
    (said,) = (node.value for node in told.body if isinstance(node, ast.Return))
    listed = tables(OPERATIONS, "Asking and telling supervisors")[1]
    keys = [key for row in listed for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(keys) == sorted(key.value for key in said.keys)


def test_the_parts_of_the_sandbox_are_those_that_it_reports():
    _, parts = tables(OPERATIONS, "The sandbox")[:2]
    assert [part.strip("`") for part, *_ in parts] == list(confinement._PARTS)


#: What a handler tries, as the page says it, and the attacks that show what comes of it.
TRIED = {
    "to find the Redis password": ("own_environment", "own_memory", "own_descriptors", "environment_of_the_master"),
    "to read the supervisor's memory": ("memory_files", "process_vm_readv", "ptrace"),
    "to take their descriptors": ("descriptors_of_others", "connection_of_the_master", "sockets_of_a_sibling"),
    "to read the password of the embedded server": ("password_of_the_embedded_server",),
    "to kill or stop": ("signals",),
    "to set the limits of others": ("limits_of_others",),
    "to gain privileges": ("raise_limits", "privileges", "privileges_of_programs"),
    "to fill its working directory": ("one_large_file",),
    "to write into another": ("directory_of_a_sibling",),
    "to write elsewhere": ("write_outside",),
    "to read what programs": ("read_outside",),
    "to connect to another machine": ("network", "network_of_a_program"),
}  # fmt: skip


def test_what_the_sandbox_is_said_to_keep_off_is_what_the_attacks_show():
    attacks = re.findall(r'Attack\("(\w+)", "?(\w+)"?', ATTACKS.read_text())
    refused_from = dict(attacks)
    levels = ["none", "basic", "strict"]
    table = tables(OPERATIONS, "The sandbox")[2]
    for tried, names in TRIED.items():
        (cells,) = (row[1:] for row in table if row[0].startswith(tried))
        for name in names:
            first = levels.index(refused_from[name]) if refused_from[name] in levels else len(levels)
            assert [cell.startswith("**can**") for cell in cells] == [each < first for each in range(len(levels))], name
    assert refused_from.keys() - {name for names in TRIED.values() for name in names} <= {"command_lines"}


def test_the_variables_that_all_handlers_see_are_those_of_the_code():
    assert f"`{' '.join(BASICS)}`" in OPERATIONS.read_text()


# events and references


def job_attributes() -> set[str]:
    """What a handler's `job` has: assigned in `__init__`, a property or a method."""
    tree = ast.parse((ROOT / "supervisor/pool/job.py").read_text())
    (job,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Job")
    assigned = {
        node.attr
        for node in ast.walk(job)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    defined = {node.name for node in job.body if isinstance(node, ast.FunctionDef)}
    return {name for name in assigned | defined if name[0] != "_"} - NOT_FOR_HANDLERS


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_event_and_every_attribute_of_a_job_exists(page):
    nouns = {name.partition(".")[0] for name in EVENTS}
    for noun, word in re.findall(r"`(\w+)\.(\w+)`", page.read_text()):
        if noun in nouns and word not in {"py", "lua", "md"}:
            said = EVENTS.keys() | STREAM_EVENTS.keys()
            attributes = {"job": job_attributes(), "lease": dir(supervisor.Lease)}.get(noun, ())
            known = f"{noun}.{word}" in said or word in attributes
            assert known, f"{page.name} names {noun}.{word}"


def test_the_contract_lists_what_a_job_has():
    (line,) = (line for line in CONTRACT.read_text().splitlines() if line.startswith("- `job.jid "))
    listed = set(re.search(r"`job\.([\w ]+)`", line)[1].split())
    assert listed == job_attributes()


def test_the_contract_names_every_option_of_a_handler():
    (listed,) = (part for part in CONTRACT.read_text().split("\n\n") if part.startswith("Options of `@handler`:"))
    options = set(inspect.signature(supervisor.handler).parameters) - {"function"}
    assert {option for option in options if f"`{option}`" not in listed} == set()


def test_operations_explain_every_event_that_is_said_by_default():
    table = section(OPERATIONS, "The log")
    said = {name for name, (level, _) in EVENTS.items() if level != "debug"}
    missing = {name for name in said if f"`{name}`" not in table}
    assert missing == set()


def definitions(path: Path) -> set[str]:
    """Functions, classes and their methods, dotted."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{method.name}" for method in methods)
    return found


REFERENCES = sorted(set(re.findall(r"`([\w/]+\.(?:py|lua))(?:::([\w.]+))?`", ARCHITECTURE.read_text())))


@pytest.mark.parametrize(("path", "name"), REFERENCES)
def test_every_reference_of_the_architecture_resolves(path, name):
    file = next((base / path for base in (ROOT / "supervisor", ROOT) if (base / path).is_file()), None)
    assert file, path
    if name:
        assert name in definitions(file)


def test_each_of_the_ten_steps_names_a_function():
    steps = re.split(r"^\d+\. ", section(ARCHITECTURE, "The life of a job"), flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert all(re.search(r"`[\w/]+\.(py::[\w.]+|lua)`", step) for step in steps)


def test_the_architecture_is_short_enough_to_be_read():
    assert len(ARCHITECTURE.read_text().splitlines()) <= 250


def test_every_module_of_the_pool_has_its_place_on_the_page():
    modules = {path.name for path in (ROOT / "supervisor/pool").glob("[!_]*.py")}
    assert modules <= set(re.findall(r"`pool/(\w+\.py)", ARCHITECTURE.read_text()))


def test_every_invariant_names_its_test_or_says_that_it_has_none():
    table = rows(ARCHITECTURE, "Invariants")
    assert [row[0] for row in table] == [f"INV-{number}" for number in range(1, 13)]
    assert all("`tests/" in row[2] or "none yet" in row[2] for row in table)
    assert section(README, "What is promised").count("\n- ") == len(table)


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_links_lead_somewhere_and_no_path_is_of_one_machine(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    assert not re.search(r"(?<![\w.])/(root|home|work|tmp)/", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_links_into_a_page_lead_to_a_heading_of_it(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#([\w-]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


# Python in the pages


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_what_is_imported_from_supervisor_is_public(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "supervisor":
                assert {alias.name for alias in node.names} <= set(supervisor.__all__)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        pytest.param(page, name, id=f"{path_of(page)}-{name}")
        for page in PAGES
        for name in re.findall(r"^# handlers/(\w+)\.py", page.read_text(), re.MULTILINE)
    ],
)
def test_the_handlers_in_the_pages_load_under_the_name_they_are_said_to_have(page, name, tmp_path):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers" / f"{name}.py").write_text(example(page, name))
    code = "from supervisor.pool import handlers; print(*handlers.load('handlers'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (klass,) = done.stdout.split()
    assert klass.startswith(f"{name}.") and f"`{klass}`" in page.read_text().replace('"', "`")


def test_every_module_with_a_handler_in_the_pages_says_its_name():
    for page in PAGES:
        assert all(block.startswith("# handlers/") for block in blocks(page, "python") if "@handler" in block)


def test_the_long_job_of_the_contract_survives_a_drain_and_does_each_step_once(server, namespace, tmp_path):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/newsletter.py").write_text(example(CONTRACT, "newsletter"))
    readers = [f"reader-{number}" for number in range(150)]
    printed = []
    with supervisor.Client(server.url, namespace) as client:
        jid = client.queue("default").put("newsletter.send", {"readers": readers})
        for steps_of_a_start in (50, None):
            with started(server, namespace, tmp_path, "--drain-timeout", "0") as master:
                steps = 0
                for event in map(json.loads, master.stderr):
                    assert event["event"] not in {"job.retried", "job.failed", "job.died"}, event
                    if event["event"] == "job.printed":
                        printed.append(event["line"])
                        steps += 1
                    if steps == steps_of_a_start or event["event"] == "job.completed":
                        master.send_signal(signal.SIGTERM)
                assert master.wait(30) == 0
        job = client.job(jid)
        assert (job.state, job.result, job.interruptions) == ("complete", {"sent": len(readers)}, 1)
    assert [line.split()[1] for line in printed] == readers


@pytest.mark.parametrize(("page", "waiting"), [(README, 5), (CONTRACT, 2)], ids=["README.md", "handlers/README.md"])
def test_putting_jobs_works_as_shown(page, waiting, server, namespace):
    first, *more = (block for block in blocks(page, "python") if "with Client()" in block)
    block = "\n".join([first, *more])
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    with supervisor.Client(server.url, namespace) as client:
        assert client.queue("default").counts().waiting == waiting


# the guide


def carry_out(block: str, names: dict[str, object]) -> None:
    """Runs a block. Each statement that ends with `# -> value` must answer that value, or assign it."""
    lines, checked = block.splitlines(), 0
    for node in ast.parse(block).body:
        code, _, answer = "\n".join(lines[node.lineno - 1 : node.end_lineno]).partition("  # -> ")
        if not answer:
            exec(code, names)
            continue
        if isinstance(node, ast.Assign):
            exec(code, names)
            code = ast.unparse(node.targets[0])
        public = {name: getattr(supervisor, name) for name in supervisor.__all__}
        assert eval(code, names) == eval(answer, public), code
        checked += 1
    assert checked == block.count("# -> "), "only what is not indented is checked"


FIRST, *EXAMPLES = (block for block in blocks(GUIDE, "python") if "@handler" not in block)


@pytest.mark.parametrize("block", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_the_examples_of_the_guide_answer_what_they_say(block, server, namespace, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    names: dict[str, object] = {}
    carry_out(FIRST, names)
    carry_out(block.replace("{leasehold}", f"{{{namespace}}}"), names)
    names["client"].close()
    assert misplaced(look(server.redis, namespace)) == []


def test_the_accounts_can_do_what_they_are_for_and_no_more(server, namespace):
    lines = [line for block in blocks(OPERATIONS, "") for line in block.splitlines() if line.startswith("ACL SETUSER")]
    everything, pushing = (line.replace("{leasehold}", f"{{{namespace}}}").split() for line in lines)
    key = f"{{{namespace}}}:in:emails"
    try:
        for command in (everything, pushing):
            server.redis.execute_command(*command)
        with redis.Redis(unix_socket_path=str(server.socket), username="producer", password="PASSWORD") as producer:
            producer.lpush(key, '{"klass": "email.send"}')
            for refused in (["LRANGE", key, 0, -1], ["LPUSH", f"{key}-2", "x"], ["HGETALL", f"{{{namespace}}}:config"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    producer.execute_command(*refused)
        url = server.url.replace("unix://", "unix://leasehold:PASSWORD@")
        with supervisor.Client(url, namespace) as client, client.events() as events:
            queue = client.queue("emails")
            client.limit("smtp", running=1)
            queue.put("email.send", limit="smtp", unique=True)
            assert [lease.complete("sent") for lease in queue.lease("worker", count=2, block=5)] == [True, True]
            assert client.sweep() == 0 and client.check(repair=True) == []
            assert events.get(timeout=5) is not None
        with redis.Redis(unix_socket_path=str(server.socket), username="leasehold", password="PASSWORD") as door:
            assert door.execute_command("BLMOVE", key, key, "RIGHT", "RIGHT", "0.001") is None
            assert door.llen(key) == 0
    finally:
        server.redis.acl_deluser("leasehold", "producer")


def test_a_job_is_pushed_by_one_command_in_five_languages(server, namespace):
    pushes = [block for block in FENCE.findall(section(GUIDE, "Jobs from any language")) if "LPUSH" in block[1].upper()]
    assert [language for language, _ in pushes][:5] == ["sh", "python", "js", "go", "ruby"]
    assert all('"{leasehold}:in:emails"' in body.replace("'", '"') for _, body in pushes)
    program, *command = shlex.split(pushes[0][1].replace("{leasehold}", f"{{{namespace}}}"))
    assert program == "redis-cli"
    server.redis.execute_command(*command)
    with supervisor.Client(server.url, namespace) as client:
        (lease,) = client.lease("worker", ["emails"])
        assert (lease.klass, lease.data, lease.priority) == ("email.send", {"to": "ada@example.org"}, -1)


def test_the_keys_of_an_entry_are_those_that_the_script_knows():
    table = {row[0].strip("`") for row in rows(GUIDE, "Jobs from any language")}
    assert table == set(re.findall(r"\bchecks\.(\w+)", ENTRIES.read_text()))


# the handlers


def test_words_are_counted():
    found = text.words(SimpleNamespace(data={"text": "To be,\nor not to be. Isn't it?"}))
    assert (found["lines"], found["words"], found["characters"]) == (2, 8, 30)
    assert found["most_common"][:2] == [("to", 2), ("be", 2)]
    assert text.words(SimpleNamespace(data=b"two words \xff"))["words"] == 2
    with pytest.raises(Fail):
        text.words(SimpleNamespace(data=[1]))


def compress(path: Path, token: int = 1, **data: object) -> dict:
    return files.compress(SimpleNamespace(data={"path": str(path), **data}, token=token))


def test_a_file_is_compressed_in_one_step_and_a_second_start_does_no_harm(tmp_path):
    plain = tmp_path / "a[1].txt"
    plain.write_bytes(b"hello\n" * 1000)
    plain.chmod(0o640)
    left_by_an_earlier_start = tmp_path / ".a[1].txt.gz.3.part"
    of_a_later_start = tmp_path / ".a[1].txt.gz.9.part"
    for part in (left_by_an_earlier_start, of_a_later_start):
        part.touch()
    first = compress(plain, token=5)
    packed = tmp_path / "a[1].txt.gz"
    content = packed.read_bytes()
    assert gzip.decompress(content) == plain.read_bytes()
    assert packed.stat().st_mode == plain.stat().st_mode
    assert first == {"path": str(packed), "from_bytes": 6000, "to_bytes": len(content)}
    assert not left_by_an_earlier_start.exists() and of_a_later_start.exists()
    assert compress(plain, token=6) == first and packed.read_bytes() == content


def test_a_file_that_an_earlier_start_has_compressed_and_removed_is_done(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_text("hello")
    first = compress(plain, remove=True)
    assert not plain.exists()
    assert compress(plain, token=2, remove=True) == {**first, "from_bytes": None}
    with pytest.raises(FileNotFoundError):
        compress(plain, token=3)


def test_a_relative_path_is_refused_for_good():
    with pytest.raises(Fail, match="absolute"):
        files.compress(SimpleNamespace(data={"path": "a.txt"}, token=1))
