"""The page on the security of the web page has each requirement, and names tests and modules that exist."""

import ast
import re
from collections import Counter

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "supervisor/docs/web_security.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d+\.", line)
]
#: Level 1 of version 4.0.3: how many requirements each section has, or which of them.
LEVEL_1 = {
    "2.1": 12, "2.2": 3, "2.3": 1, "2.5": 6, "2.7": 4, "2.8": 1,
    "3.1": 1, "3.2": 3, "3.3": 2, "3.4": 5, "3.7": 1,
    "4.1": (1, 2, 3, 5), "4.2": 2, "4.3": 2,
    "5.1": 5, "5.2": 8, "5.3": 10, "5.5": 4,
    "6.2": 1,
    "7.1": 2, "7.4": 1,
    "8.2": 3, "8.3": 4,
    "9.1": 3,
    "10.3": 3,
    "11.1": 5,
    "12.1": 1, "12.3": 5, "12.4": 2, "12.5": 2, "12.6": 1,
    "13.1": (1, 3), "13.2": 3, "13.3": 1,
    "14.2": 3, "14.3": (2, 3), "14.4": 7, "14.5": 3,
}  # fmt: skip
TESTS = {
    node.name
    for folder in ("tests/web", "tests/cli/commands", "tests/engine/client")
    for path in (ROOT / folder).glob("test_*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef)
}


def kind(row):
    return re.match(r"Met|Does not apply|Not met", row[2])[0]


def test_each_requirement_of_level_1_has_a_row():
    numbers = [
        f"{section}.{number}"
        for section, many in LEVEL_1.items()
        for number in (many if isinstance(many, tuple) else range(1, many + 1))
    ]
    assert [row[0] for row in ROWS] == numbers


def test_the_page_counts_its_rows():
    kinds = Counter(map(kind, ROWS))
    assert (
        f"Level 1 has {len(ROWS)} requirements: {kinds['Met']} are met, {kinds['Does not apply']} do not apply,"
        f" {kinds['Not met']} are not met."
    ) in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_met_requirements_name_tests_and_modules_that_exist(row):
    named = re.findall(r"`([^`]+)`", row[2])
    tests = [name for name in named if name.startswith("test_")]
    modules = [name for name in named if re.fullmatch(r"\w+/[\w/]+\.\w+", name)]
    assert set(tests) <= TESTS
    assert [name for name in modules if not (ROOT / "supervisor" / name).is_file()] == []
    assert tests or modules or kind(row) != "Met"
