"""The page for whoever changes the code: short, whole, and every reference in it resolves."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.pages import ARCHITECTURE, README, ROOT, rows, section


@cache
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


def resolves(path: str, name: str) -> bool:
    file = next((base / path for base in (ROOT / "supervisor", ROOT) if (base / path).is_file()), None)
    return file is not None and (not name or name in definitions(file))


def test_every_reference_of_the_architecture_resolves():
    assert [reference for reference in REFERENCES if not resolves(*reference)] == []


def test_each_of_the_ten_steps_names_a_function():
    steps = re.split(r"^\d+\. ", section(ARCHITECTURE, "The life of a job"), flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert all(re.search(r"`[\w/]+\.(py::[\w.]+|lua)`", step) for step in steps)


def test_the_architecture_is_short_enough_to_be_read():
    assert len(ARCHITECTURE.read_text().splitlines()) <= 250


def test_every_folder_has_its_place_on_the_page():
    package = ROOT / "supervisor"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("[!_]*.py")}
    assert folders - {"."} <= set(re.findall(r"`([\w/]+)/[`\w]", ARCHITECTURE.read_text()))


def test_every_invariant_names_its_test_or_says_that_it_has_none():
    table = rows(ARCHITECTURE, "Invariants")
    assert [row[0] for row in table] == [f"INV-{number}" for number in range(1, 13)]
    assert all("`tests/" in row[2] or "none yet" in row[2] for row in table)
    assert section(README, "What is promised").count("\n- ") == len(table)


def test_every_module_by_which_people_look_has_its_place_on_the_page():
    modules = {path.name for path in (ROOT / "supervisor/ops").glob("[!_]*.py")}
    assert modules <= set(re.findall(r"`ops/(\w+\.py)", ARCHITECTURE.read_text()))
