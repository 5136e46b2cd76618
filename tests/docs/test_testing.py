"""The pages about tests: what they show is carried out in an empty folder, as an application's own tests."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import FIRST_STEPS, ROOT, TESTING, blocks, example, section
from tests.lengths import FULL


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that has Leasehold with its extra `testing`: at full length of its own, from the package index."""
    if not FULL:
        return sys.executable
    own = tmp_path_factory.mktemp("testing") / "venv"
    subprocess.run([sys.executable, "-m", "venv", own], check=True, timeout=300)
    install = ["-m", "pip", "install", "--quiet", "--no-cache-dir", f"{ROOT}[testing]"]
    subprocess.run([own / "bin/python", *install], check=True, timeout=600)
    return str(own / "bin/python")


@pytest.fixture
def run(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handlers").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    path = {} if FULL else {"PYTHONPATH": str(ROOT)}

    def run():
        return subprocess.run(
            [python, "-m", "pytest", "-p", "no:cacheprovider", "tests"], cwd=tmp_path, env={**os.environ, **path},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def written(page, title=None):
    """Write the modules that a page names in the first line of their blocks."""
    for block in (
        blocks(page, "python") if title is None else re.findall(r"```python\n(.*?)```", section(page, title), re.S)
    ):
        if named := re.match(r"# ((?:handlers|tests)/\w+\.py)", block):
            with open(named[1], "w") as module:
                module.write(block)


@pytest.mark.sampled(3)
def test_crash_test_of_the_first_ten_minutes_finds_the_planted_fault(run):
    title = "Test a handler"
    written(FIRST_STEPS, title)
    done = run()
    assert re.search(r"1 failed, 1 passed", done.stdout), done.stdout
    told = re.search(r"```text\n(.*?)```", section(FIRST_STEPS, title), re.S)[1]
    shown = [line.removeprefix("E").strip() for line in done.stdout.splitlines()]
    assert [line for line in told.splitlines() if line not in shown] == []
    (mended,) = re.findall(r"^payments\[job.*$", section(FIRST_STEPS, title), re.MULTILINE)
    with open("handlers/billing.py") as module:
        text = module.read()
    with open("handlers/billing.py", "w") as module:
        module.write(text.replace("payments[str(uuid4())] = cents", mended))
    done = run()
    assert " 2 passed" in done.stdout, done.stdout


@pytest.mark.sampled(2)
def test_examples_of_the_page_pass(run):
    written(TESTING)
    with open("handlers/greetings.py", "w") as module:
        module.write(example(FIRST_STEPS, "greetings"))
    done = run()
    assert " 3 passed" in done.stdout and "failed" not in done.stdout, done.stdout
