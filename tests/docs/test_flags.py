"""Commands, flags, variables, options and exit codes: those of the pages are those of the code."""

import re
import shlex
import subprocess

import pytest

from supervisor.cli.lib import parser
from supervisor.config import FROM_KUBERNETES, IN_POOL, SETTINGS, VARIABLES
from supervisor.engine.model.options import OPTIONS
from supervisor.exit_codes import Exit
from supervisor.master.model.environment import BASICS
from tests.docs.pages import OPERATIONS, PAGES, RECIPES, blocks, path_of, rows

#: Flags of other programs that the pages show.
FOREIGN_FLAGS = {
    *("--quiet", "--no-cache-dir", "--file", "--tag", "--rm", "--stop-timeout", "--env", "--build", "--init"),
    *("--with-scheduler", "--appendonly", "--appendfsync", "--maxmemory-policy"),
    *(
        "--system",
        "--uid",
        "--no-create-home",
        "--home-dir",
        "--from",
        "--signal",
        "--depth",
        "--pids-limit",
        "--ulimit",
    ),
    *("--gid", "--no-deps", "--wheel-dir", "--only-binary", "--without-pip", "--python", "--read-only", "--tmpfs"),
    *("--interval", "--timeout", "--start-period", "--retries", "--now"),
    *("--build-arg", "--require-hashes", "--no-index", "--no-build-isolation", "--upgrade", "--universal"),
    *("--python-version", "--generate-hashes", "--no-header", "--no-annotate", "--extra", "--output-file"),
    *("--kustomize", "--from-file", "--from-literal", "--scale", "--spider", "--silent"),
    *("--full", "--format", "--volume", "--editable"),
}


def shown_commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("leasehold ")]


@pytest.mark.parametrize("command", shown_commands())
def test_every_shown_command_parses(command):
    words = shlex.split(command, comments=True)[1:]
    built, module = parser.build(words[0] if words[0] in parser.COMMANDS else None)
    assert module is not None, words
    _, unknown = built.parse_known_args(words)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_a_shell_reads_its_shown_lines(page):
    for block in blocks(page, "sh"):
        read = subprocess.run(["sh", "-n"], input=block, capture_output=True, text=True)
        assert (read.returncode, read.stderr) == (0, ""), block


def all_flags() -> set[str]:
    found = {"--version", "--help"}
    for command in parser.COMMANDS:
        built, _ = parser.build(command)
        found.update(built.commands[command].flags)
    return found


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=path_of)
def test_every_flag_exists(page):
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert flags - all_flags() - FOREIGN_FLAGS == set()


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=path_of)
def test_every_variable_exists(page):
    names = set(re.findall(r"LEASEHOLD_[A-Z_]+[A-Z]", page.read_text()))
    assert {name for name in names - VARIABLES - {IN_POOL} if not FROM_KUBERNETES.fullmatch(name)} == set()


def test_every_variable_is_told_of():
    assert set(re.findall(r"LEASEHOLD_[A-Z_]+[A-Z]", OPERATIONS.read_text())) >= VARIABLES


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


def test_basic_variables_agree_with_the_code():
    assert f"`{' '.join(BASICS)}`" in OPERATIONS.read_text()
