"""The manual explains the states, sandbox parts and events that a supervisor shows, and no others."""

import ast
import inspect
import re

import pytest

import supervisor
from supervisor.cli.commands import status
from supervisor.engine.client.event_stream import STREAM_EVENTS
from supervisor.master.model.states import Phase
from supervisor.ops.events import EVENTS
from supervisor.sandbox import confinement
from tests.docs.pages import CONTRACT, OPERATIONS, PAGES, ROOT, path_of, rows, section, tables

ATTACKS = ROOT / "tests/process/crash/test_attacks.py"

#: Attributes of `job` for its child, not for the handler.
NOT_FOR_HANDLERS = {"completion", "report_progress", "tell_to_stop"}


def test_states_of_a_supervisor_are_documented():
    states = {
        word for row in rows(OPERATIONS, "Asking and telling supervisors") for word in re.findall(r"`([\w-]+)`", row[0])
    }
    assert {each.value for each in Phase} - {Phase.STOPPED.value} <= states
    listed = re.search(r"State: (.*?)\. Exit", status.EXAMPLES, re.DOTALL)[1]
    assert states == {word.split()[-1] for word in re.split(r",\s", listed)}


def test_status_keys_are_documented():
    tree = ast.parse((ROOT / "supervisor/master/report/status.py").read_text())
    parts = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "status")
    returned = [line.value for part in parts for line in part.body if isinstance(line, ast.Return)]
    shown = [key.value for each in returned for key in each.keys if key is not None]
    listed = tables(OPERATIONS, "Asking and telling supervisors")[1]
    keys = [key for row in listed for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(keys) == sorted(shown)


def test_sandbox_parts_are_documented():
    _, parts = tables(OPERATIONS, "The sandbox")[:2]
    assert [part.strip("`") for part, *_ in parts] == list(confinement._PARTS)


#: Attempts of a handler, in the page's words, and the attacks that show their outcomes.
TRIED = {
    "to find the Redis password": ("own_environment", "own_memory", "own_descriptors", "environment_of_the_master"),
    "to read the supervisor's memory": ("memory_files", "process_vm_readv", "ptrace"),
    "to take their descriptors": ("descriptors_of_others", "connection_of_the_master", "sockets_of_a_sibling"),
    "to read the password of the embedded server": ("password_of_the_embedded_server",),
    "to kill or stop": ("signals",),
    "to set the limits of others": ("limits_of_others",),
    "to hold the supervisor up": ("descriptors_where_jobs_come",),
    "to leave System V shared memory": ("shared_memory",),
    "to leave queues and semaphores": ("queues_and_semaphores",),
    "to get all privileges in a user namespace": ("user_namespace",),
    "to gain privileges": ("raise_limits", "privileges", "privileges_of_programs"),
    "to fill its working directory": ("one_large_file",),
    "to write into another": ("directory_of_a_sibling",),
    "to write elsewhere": ("write_outside",),
    "to read what programs": ("read_outside",),
    "to connect to another machine": ("network", "network_of_a_program"),
}  # fmt: skip


def test_sandbox_table_agrees_with_the_attacks():
    attacks = re.findall(r'Attack\("(\w+)", "?(\w+)"?', ATTACKS.read_text())
    refused_from = dict(attacks)
    levels = ["none", "basic", "strict"]
    table = tables(OPERATIONS, "The sandbox")[2]
    for tried, names in TRIED.items():
        (cells,) = (row[1:] for row in table if row[0].startswith(tried))
        for name in names:
            first = levels.index(refused_from[name]) if refused_from[name] in levels else len(levels)
            assert [cell.startswith("**can**") for cell in cells] == [each < first for each in range(len(levels))], name
    assert refused_from.keys() - {name for names in TRIED.values() for name in names} <= {
        "command_lines",
        "leave_as_a_sibling",
        "leave_as_an_orphan",
    }


def job_attributes() -> set[str]:
    """Return the attributes of a handler's `job`: assigned in `__init__`, properties and methods."""
    tree = ast.parse((ROOT / "supervisor/child/context.py").read_text())
    (job,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "JobContext")
    assigned = {
        node.attr
        for node in ast.walk(job)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    defined = {node.name for node in job.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
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
