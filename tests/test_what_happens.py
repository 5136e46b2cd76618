"""What is read at three in the morning. The manual's contents are its sections; in its tables of what happens each name
is one that there is, whatever the log may warn of has its row, and each row the tests that show it.
"""

import ast
import builtins
import inspect
import itertools
import re
import signal

import pytest

import supervisor
from supervisor.cli.lib import parser
from supervisor.config import SETTINGS
from supervisor.engine.model import outcomes
from supervisor.engine.model.options import OPTIONS
from supervisor.master.model import outcome_rules
from supervisor.master.model.counts import OUTCOMES
from supervisor.master.report.status import STATES
from supervisor.ops.events import EVENTS
from supervisor.ops.metrics import METRICS
from tests.docs.pages import OPERATIONS, ROOT, section, tables

CHAPTER = "What happens when …"
*PARTS, SHOWN = tables(OPERATIONS, CHAPTER)
ROWS = [row for part in PARTS for row in part]

#: Reasons of deaths beside signals and exit codes.
NAMED_REASONS = {"timeout", "memory", "disk", "oom", "lost", "boot"}
KNOWN = {
    *EVENTS, *itertools.chain(*(fields for _, fields in EVENTS.values())), *METRICS, *OUTCOMES, *STATES, *OPTIONS,
    *(setting.flag for setting in SETTINGS), *signal.Signals.__members__, *NAMED_REASONS, "exit-N",
    *outcome_rules.INTERRUPTIONS, *outcome_rules._LOSSES, *supervisor.__all__, *dir(builtins),
    *inspect.signature(supervisor.handler).parameters,
    *("broken", "expired", "expires", "interrupted", "unknown-handler"),  # failed groups, and an option
    *("go-on", "stop"),  # values of on_cut_off
    *("/livez", "/readyz", "/metrics"),
    *("sys.exit", "os._exit", "put", "failed", "stalled", "READONLY", "died:…", "died:<reason>"),
}  # fmt: skip


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def exists(word: str) -> bool:
    program, _, command = word.partition(" ")
    return word.removeprefix("--") in KNOWN or (program == "leasehold" and command in parser.COMMANDS)


def test_the_contents_are_the_sections_in_their_order():
    contents = re.findall(r"^\| \[(.*?)\]\(#", section(OPERATIONS, "Operations"), re.MULTILINE)
    assert contents == re.findall(r"^## (.*)$", OPERATIONS.read_text(), re.MULTILINE)


def test_every_name_in_it_is_one_that_there_is():
    before_its_tests = section(OPERATIONS, CHAPTER).partition("### Which test")[0]
    assert {word for word in named(before_its_tests) if not exists(word)} == set()


def test_whatever_the_log_warns_of_has_a_row():
    seen = set().union(*(named("".join(row[1:])) for row in ROWS))
    assert {name for name, (level, _) in EVENTS.items() if level in ("warning", "error")} - seen == set()


def test_every_reason_of_a_death_and_of_an_interruption_has_a_row():
    told = set().union(*(named("".join(row)) for row in ROWS))
    assert all(reason in outcomes._DEATH_REASON.pattern.split("|") for reason in NAMED_REASONS)
    assert len(outcomes._DEATH_REASON.pattern.split("|")) == len(NAMED_REASONS) + 2
    assert {*NAMED_REASONS, "exit-N", "SIGSEGV", "SIGKILL"} - told == set()
    assert {*outcome_rules.INTERRUPTIONS, *outcome_rules._LOSSES} - told == set()


def test_its_rows_are_told_apart_and_each_is_shown_by_something():
    rows = [row[0] for row in ROWS]
    assert len(set(rows)) == len(rows)
    assert [row[0] for row in SHOWN] == rows


def names_in(path: str) -> set[str]:
    """The tests of a module."""
    body = ast.parse((ROOT / "tests" / path).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("shown", [row[1] for row in SHOWN], ids=[row[0] for row in SHOWN])
def test_what_is_said_to_show_a_row_is_a_test(shown):
    for reference in shown.split("<br>"):
        path, name = re.fullmatch(r"`((?:\w+/)+\w+\.py)::(test_\w+)`", reference).groups()
        assert name in names_in(path), reference
