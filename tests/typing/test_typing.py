"""Type checkers understand an application, and find its mistakes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lengths import FULL
from tests.type_checks import mypy

ROOT = Path(__file__).parents[2]
SHOP = (Path(__file__).parent / "shop.py").read_text()
#: A line of the example, and what a typing mistake makes of it.
MISTAKES = {
    "misspelt parameter": ("return welcome.put(user=user, template=Template.RICH)", "return welcome.put(usr=user)"),
    "wrong type": ("return await welcome.aput(user=user)", 'return await welcome.aput(user="seven")'),
    "missing parameter": ('[charge.job(order=order, card="4711") for', "[charge.job(order=order) for"),
    "misspelt option of a put": ('delay="10s", queue="bulk"', 'delai="10s", queue="bulk"'),
    "wrong option of a put": ('delay="1h", priority=-1)', 'delay="1h", priority="low")'),
    "misspelt option of a handler": ('@handler(queue="mail", timeout="30s"', '@handler(queue="mail", timeot="30s"'),
    "misspelt attribute of the context": ("if job.attempt > 3:", "if job.attempts > 3:"),
    "batch that may not be": ("if job.batch is not None:", "if job.attempt:"),
    "misspelt option in a batch": ('{"days": days}, delay="1h")', '{"days": days}, dely="1h")'),
    "misspelt method of the results": ("len(job.results.values())", "len(job.results.nope())"),
    "wrong result": ("result: dict[str, int] = report(", "result: dict[str, str] = report("),
    "misspelt count": ("{counts.waiting} wait", "{counts.wating} wait"),
    "handler without a context": ("def probe(job: JobContext) -> None:", "def probe() -> None:"),
    "job that may be gone": ("    if job is None:\n", "    if job.state:\n"),
    "unknown state of a policy": ('"on_parent_failure": "fail"', '"on_parent_failure": "explode"'),
    "positional parameter of the wrong type": ("return later.put(user)", "return later.put([user])"),
}


def mistakes(path, code):
    """Return what mypy finds in the code. No decorated function may have a type with Any."""
    path.write_text(f"{code}# mypy: disallow-any-decorated\n")
    return [line for line in mypy(path.parent, path.name) if ": error:" in line]


def with_mistake(name):
    right, wrong = MISTAKES[name]
    assert SHOP.count(right) == 1, name
    return SHOP.replace(right, wrong)


def line_of(name):
    return SHOP[: SHOP.index(MISTAKES[name][0])].count("\n") + 1


def test_example_has_three_hundred_lines_and_no_any():
    assert SHOP.count("\n") >= 280
    assert "Any" not in re.findall(r"\w+", SHOP)


@pytest.mark.slow
def test_mypy_finds_every_mistake_and_no_other(tmp_path):
    path = tmp_path / "shop.py"
    assert mistakes(path, SHOP) == []
    for name in MISTAKES:
        errors = [int(line.split(":")[1]) for line in mistakes(path, with_mistake(name))]
        assert any(0 <= error - line_of(name) <= 2 for error in errors), (name, errors)


@pytest.mark.slow
def test_pyright_finds_every_mistake_and_no_other(tmp_path):
    if not FULL:
        pytest.skip("TEST_FULL=1 fetches pyright")
    if shutil.which("npx") is None:
        pytest.skip("this machine has no npx")
    files = {"right": SHOP, **{name: with_mistake(name) for name in MISTAKES}}
    for number, text in enumerate(files.values()):
        (tmp_path / f"shop_{number}.py").write_text(text)
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "strict", "extraPaths": ["{ROOT}"], "pythonVersion": "3.11"}}'
    )
    command = ["npx", "--yes", "pyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    found = re.findall(r"shop_(\d+)\.py:(\d+):\d+ - error", done.stdout)
    assert "0" not in {number for number, _ in found}, done.stdout
    for number, name in list(enumerate(files))[1:]:
        lines = [int(line) for of, line in found if of == str(number)]
        assert any(0 <= line - line_of(name) <= 2 for line in lines), (name, lines)
