"""The pages for people who change the code: readable, complete, and each path in them exists."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ARCHITECTURE, CONTRIBUTING, INTERNALS, PROMISES, ROOT, path_of, rows, section

PACKAGE = ROOT / "supervisor"
_PATH = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|lua|md|toml)|(?:[\w-]+/)+)`")


def paths_in(text: str) -> list[str]:
    return _PATH.findall(text)


def exists(path: str) -> bool:
    return any((base / path).exists() for base in (PACKAGE, ROOT))


def mentioned(folder: Path) -> set[str]:
    """The modules of a folder that the pages name."""
    text = "".join(page.read_text() for page in INTERNALS)
    return {path.name for path in folder.glob("*.py") if f"`{path.relative_to(PACKAGE)}`" in text}


@pytest.mark.parametrize("page", INTERNALS, ids=path_of)
def test_every_path_exists(page):
    named = paths_in(page.read_text())
    assert len(named) > 5
    assert [path for path in named if not exists(path)] == []


@pytest.mark.parametrize("page", INTERNALS, ids=path_of)
def test_no_page_names_a_test_function(page):
    assert re.findall(r"\btest_\w+\b(?!\.py)", page.read_text()) == []


@pytest.mark.parametrize("page", INTERNALS, ids=path_of)
def test_lines_are_short_and_pages_too(page):
    lines = page.read_text().splitlines()
    assert len(lines) <= 250
    assert [line for line in lines if len(line) > 140] == []


def test_each_of_the_ten_steps_names_a_module():
    steps = re.split(r"^\d+\. ", section(ARCHITECTURE, "One job's way"), flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert all(paths_in(step) for step in steps)


def test_each_decision_names_a_module():
    for decision, modules in rows(ARCHITECTURE, "Who decides what"):
        assert paths_in(modules), decision


def test_every_folder_is_explained():
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("[!_]*.py")}
    explained = {path.strip("/") for row in rows(ARCHITECTURE, "Folders") for path in paths_in(" ".join(row))}
    assert folders - {"."} <= explained


def test_each_promise_names_what_holds_and_shows_it():
    table = rows(ARCHITECTURE, "Promises")
    assert [row[0] for row in table] == [f"INV-{number}" for number in range(1, 13)]
    for _, _, held_by, shown_by in table:
        assert paths_in(held_by)
        assert all(path.startswith("tests/") for path in paths_in(shown_by)) and paths_in(shown_by)
    assert section(PROMISES, "What is promised").count("\n- ") == len(table)


@pytest.mark.parametrize("folder", ["ops", "zygote", "child", "sandbox", "master/jobs", "master/processes"])
def test_every_module_of_a_process_is_explained(folder):
    modules = {path.name for path in (PACKAGE / folder).glob("[!_]*.py")}
    assert modules - mentioned(PACKAGE / folder) == set()


def test_the_glossary_has_at_most_sixty_terms():
    terms = [term for term, _ in rows(CONTRIBUTING, "Glossary")]
    assert 40 < len(terms) <= 60
    assert terms == sorted(set(terms), key=lambda term: term.strip("`").lower())
