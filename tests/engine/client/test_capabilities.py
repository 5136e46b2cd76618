"""The parity page: each call and each test that it names exists, and each number of the inventory has a row."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

import supervisor
from supervisor.child import context
from supervisor.cli.lib import parser
from supervisor.engine.client import async_client, sync_client, sync_config, sync_handles, sync_queues
from supervisor.engine.client.event_stream import STREAM_EVENTS
from supervisor.engine.commands import deleting, lanes, limits, queue_counts, statistics
from supervisor.engine.model import errors
from supervisor.engine.model.new_jobs import PutOptions
from supervisor.engine.model.options import OPTIONS
from supervisor.engine.model.recurring import RecurChanges, RecurOptions

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "tests/engine/PARITY.md"

#: The number of items of each section of the inventory. Items that users do not see are in the table's last section.
ITEMS = {
    "A": 40, "B": 34, "D": 9, "E": 15, "F": 10,
    "C1": 6, "C2": 14, "C3": 10, "C4": 8, "C5": 5, "C6": 7, "C7": 4, "C8": 5, "C9": 4, "C10": 3, "C11": 2, "C12": 2,
    "C13": 8, "C14": 7, "C15": 5, "C16": 5, "C17": 1, "C18": 3, "C19": 5, "C20": 1, "C21": 2,
}  # fmt: skip
NUMBERS = [
    f"{section}.{n}" if section[1:] else f"{section}{n}" for section, most in ITEMS.items() for n in range(1, most + 1)
] + ["C22", "C23"]
NUMBER = re.compile(r"\b[A-F]\d+(?:\.\d+)?")

CLASSES = {
    "Client": sync_client.Client, "Queue": sync_queues.Queue, "Config": sync_config.Config, "Lease": sync_handles.Lease,
    "Job": sync_handles.Job, "RecurringJob": sync_handles.RecurringJob, "AsyncClient": async_client.AsyncClient,
    "Stats": statistics.Stats, "Spread": statistics.Spread, "Lane": sync_queues.Lane,
    "LaneCounts": lanes.LaneCounts, "Deleted": deleting.Deleted,
    "Limit": limits.Limit, "Counts": queue_counts.Counts, "JobFailed": errors.JobFailed, "job": context.JobContext,
}  # fmt: skip
OPTIONS_OF = {
    "put": PutOptions,
    "add": PutOptions,
    "recur": RecurOptions,
    "update": RecurChanges,
}


def rows():
    """The cells of every row but the headings."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("| |")]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


SHOWN = [row for row in rows() if len(row) >= 4]
CALLS = sorted({call for row in SHOWN if len(row) == 4 for call in re.findall(r"(?:config )?`[^`]+`", row[2])})
TESTS = sorted({test for row in SHOWN for test in quoted(row[-1])})


@cache
def defined(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def check_arguments(function, given):
    known = set(inspect.signature(function).parameters) | set(get_type_hints(OPTIONS_OF.get(function.__name__, dict)))
    assert {name for name in re.findall(r"(\w+)(?:=|(?=[,)]))", given) if name} <= known


def check_call(call):
    match = re.fullmatch(r"(\w+)(?:\.(\w+))?(\(.*\))?", call)
    assert match, call
    name, attribute, arguments = match.groups()
    if name not in CLASSES:
        assert attribute is None
        assert name in supervisor.__all__ or name in ("ValueError", "TypeError")
        return
    owner = CLASSES[name]
    found = owner if attribute is None else getattr(owner, attribute, None)
    if found is None:
        assert attribute in inspect.getsource(owner.__init__)
    if arguments:
        check_arguments(found, arguments)


def check_command(words):
    built, module = parser.build(words[1])
    assert module is not None
    known = set(built.commands[words[1]].flags)
    assert set(words[2:]) <= known


def test_each_call_exists_with_its_arguments():
    for call in CALLS:
        (name,) = quoted(call)
        if call.startswith("config "):
            assert name in OPTIONS
        elif name.startswith("leasehold "):
            check_command(name.split())
        elif name not in STREAM_EVENTS and name not in OPTIONS and not name.startswith("LPUSH "):
            check_call(name)


def exists(test):
    path, _, name = test.partition("::")
    folder = ROOT / "tests" if "/" in path else next((ROOT / "tests/engine").rglob(path), ROOT).parent
    return (folder / path).is_file() and name in defined(folder / path)


def test_each_test_exists():
    assert [test for test in TESTS if not exists(test)] == []


def test_each_item_has_a_row_or_a_reason():
    named = {number for row in rows() for number in NUMBER.findall(row[0])}
    assert set(NUMBERS) - named == set()
    assert named - set(NUMBERS) == set()


@pytest.mark.parametrize("letter", "ABCDEF")
def test_rows_are_in_the_order_of_the_inventory(letter):
    numbers = [number for row in SHOWN for number in NUMBER.findall(row[0])[:1] if number.startswith(letter)]
    assert numbers == sorted(numbers, key=NUMBERS.index)


def test_no_cell_of_a_row_is_empty():
    assert all(row[1] and row[2] and row[3] for row in SHOWN)
