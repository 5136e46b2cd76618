"""Names in the sentences of the pages: commands, pages and codes by HTTP, metrics, alerts, signals, keys of units."""

import ast
import re
import shlex
import signal
from http import HTTPStatus

import pytest
import yaml

from supervisor.cli.lib import parser
from supervisor.exit_codes import Exit
from supervisor.ops import pages
from tests.deploy import figures
from tests.docs.pages import (
    CONTRACT,
    FENCE,
    FIRST_STEPS,
    GUIDE,
    OPERATIONS,
    PAGES,
    README,
    ROOT,
    path_of,
    rows,
    section,
)

UNIT = (ROOT / "deploy/leasehold.service").read_text()
MANIFESTS = "".join(path.read_text() for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")))
ALERTS = {
    rule["alert"]
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
#: Exit code of a killed process, as shells and containers tell it.
KILLED = 128 + signal.SIGKILL


def words_of_commands(page) -> list[list[str]]:
    """Return the words of each `leasehold …` that is named in a sentence or shown in a block."""
    text = page.read_text()
    named = re.findall(r"`leasehold\s([^`]+)`", FENCE.sub("", text))
    shown = [line.split("#")[0] for line in re.findall(r"\bleasehold ([a-z][^\n]*)$", "\n".join(
        body for language, body in FENCE.findall(text) if language == "sh"), re.MULTILINE)]  # fmt: skip
    return [shlex.split(each.replace("…", "")) for each in named] + [each.split() for each in shown]


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_named_command_takes_its_flags(page):
    for name, *words in words_of_commands(page):
        if name.startswith("-"):
            continue
        assert name in parser.COMMANDS, f"leasehold {name}"
        built, _ = parser.build(name)
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        assert flags <= set(built.commands[name].flags), f"leasehold {name} {words}"


def test_every_command_is_told_of():
    told = {
        words[0] for page in (README, FIRST_STEPS, OPERATIONS, GUIDE, CONTRACT) for words in words_of_commands(page)
    }
    assert set(parser.COMMANDS) - told == set()


def test_served_pages_are_documented():
    told = [row[0].strip("`") for row in rows(OPERATIONS, "Probes")]
    assert told == re.findall(r"^(/\w+)", pages.INDEX.body.decode(), re.MULTILINE)
    for page in PAGES:
        named = re.findall(r"`(/[a-z]+)`", page.read_text())
        assert {path for path in named if path.endswith("z") or path in told} <= set(told), path_of(page)


def test_http_codes_are_documented():
    answered = {
        HTTPStatus[node.attr].value
        for path in (ROOT / "supervisor/ops").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "HTTPStatus"
    }
    told = {int(code) for code in re.findall(r"\b([2-5]\d\d)\b", section(OPERATIONS, "Probes"))}
    assert told == answered


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_named_metric_and_alert_exists(page):
    text = page.read_text()
    named = re.findall(r"\bleasehold_[a-z_]+\b(?:\{[^}]*\})?", text)
    # The option of the plugin of pytest, and the tables of an outbox.
    known = {"leasehold_handlers", "leasehold_outbox", "leasehold_outbox_name"}
    assert [each for name in named if name not in known for each in figures.unknown(name)] == []
    assert set(re.findall(r"\bLeasehold[A-Z]\w+", text)) <= ALERTS | {"LeaseholdError", "LeaseholdBackend"}


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_every_named_signal_and_exit_code_exists(page):
    text = page.read_text()
    for name in re.findall(r"\bSIG[A-Z]+[0-9]?\b", text):
        assert name in signal.Signals.__members__, name
    codes = {int(code) for code in re.findall(r"(?i)\bexit codes? (\d+)", text)}
    assert codes <= {each.value for each in Exit} | {KILLED}


def test_explained_lines_stand_in_the_unit():
    """Or it says why they do not."""
    for key, value in re.findall(r"`([A-Z]\w+)=([^`]*)`", section(OPERATIONS, "systemd")):
        line = f"{key}={value}"
        assert re.search(rf"(?m)(^|[ (]){re.escape(line)}", UNIT) or f"`{line}` is wrong" in OPERATIONS.read_text(), (
            line
        )


def test_explained_kubernetes_words_stand_in_the_manifests():
    for word in re.findall(r"`([a-z]+[A-Z]\w+)`", section(OPERATIONS, "Kubernetes")):
        assert word in MANIFESTS, word
