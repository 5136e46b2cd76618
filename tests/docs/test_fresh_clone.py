"""The README runs and tests a fresh clone by one line each. CI takes its line from there, and the wheel is complete."""

import subprocess
import tomllib

import pytest

from tests.docs.pages import FENCE, README, ROOT, section


@pytest.mark.parametrize(
    ("title", "extra", "end"), [("Run it", "all", "leasehold demo"), ("Test it", "test", "python -m pytest -n 5")]
)
def test_first_block_is_one_line_for_a_fresh_clone(title, extra, end):
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
    assert setuptools["packages"] == {"find": {"include": ["supervisor*"]}}
