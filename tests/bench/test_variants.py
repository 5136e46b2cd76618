"""A run chooses the code and the interpreters that it measures, and describes them."""

import re
import sys
from pathlib import Path

import pytest

from tests.bench import variants
from tests.bench.benchmark import BEFORE, Unmeasured
from tests.bench.builds import build_of
from tests.bench.measurer import started
from tests.bench.pool import SOURCE
from tests.bench.variants import Variant, chosen, notes

OURS = Path(sys.executable)
#: The modules of 5b71a59 that the benchmarks use.
OF_BEFORE = {
    "supervisor", "supervisor.child", "supervisor.zygote.zygote",
    *(f"supervisor.engine.client.{name}" for name in ("async_client", "sync_client", "sync_handles")),
    *(f"supervisor.engine.{name}" for name in ("commands", "commands.writes")),
    *(f"supervisor.engine.model.{name}" for name in ("jobs", "outcomes", "scripts", "validation")),
    "supervisor.engine.model", "supervisor.linux",
}  # fmt: skip
GOOD, POOR = "CPython 3.11.2, built with PGO and LTO", "CPython 3.11.7, built without PGO and LTO"


@pytest.fixture
def builds(monkeypatch):
    """Tell the build of each interpreter by its name."""
    monkeypatch.setattr(variants, "build_of", lambda python: GOOD if "good" in str(python) else POOR)


@pytest.fixture
def clone(tmp_path):
    """An earlier clone, with an environment of its own."""
    (tmp_path / "supervisor").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    return tmp_path


def test_by_default_the_code_that_runs_is_measured_alone():
    assert chosen(None, None) == [Variant("", OURS, SOURCE)]


def test_the_interpreter_that_was_not_asked_for_is_shown_too(builds):
    assert chosen(Path("/good"), None) == [Variant("", Path("/good"), SOURCE), Variant(f", {POOR}", OURS, SOURCE)]
    assert chosen(Path("/as-poor"), None) == [Variant("", Path("/as-poor"), SOURCE)]


def test_a_clone_runs_in_its_own_environment_unless_an_interpreter_is_given(builds, clone):
    assert chosen(None, clone)[1:] == [Variant(BEFORE, clone / ".venv/bin/python", clone)]
    assert chosen(Path("/good"), clone)[-1] == Variant(BEFORE, Path("/good"), clone)
    (clone / ".venv/bin/python").unlink()
    assert chosen(None, clone)[1:] == [Variant(BEFORE, OURS, clone)]


def test_an_environment_is_measured_with_its_own_packages(tmp_path):
    environment = Path(sys.executable).parents[1]
    (found,) = chosen(None, environment)[1:]
    assert found.python == environment / "bin/python" and (found.source / "supervisor/__main__.py").exists()
    with pytest.raises(Unmeasured, match="is neither a clone nor a virtual environment"):
        chosen(None, tmp_path)


def test_a_reader_is_told_of_unfair_interpreters(builds):
    assert notes([Variant("", Path("/good"), SOURCE)], [GOOD, GOOD]) == []
    (poor,) = notes([Variant("", OURS, SOURCE)], [])
    assert poor.startswith(f"Leasehold ran under {POOR}. ") and "--python" in poor
    (unfair,) = notes([Variant("", Path("/good"), SOURCE)], [GOOD, POOR])
    assert unfair == f"Leasehold ran under {GOOD}, peers under {POOR}: ratios between them are not fair."
    pair = [Variant("", Path("/good"), SOURCE), Variant(BEFORE, OURS, SOURCE)]
    assert notes(pair, []) == [f"What was before ran under {POOR}: ratios with it are not fair."]


def test_an_interpreter_that_does_not_run_is_one_sentence(tmp_path):
    with pytest.raises(Unmeasured, match="no-python cannot be run: No such file or directory"):
        build_of(tmp_path / "no-python")


def test_benchmarks_need_no_module_that_the_code_of_before_lacks():
    """Bars against before mean 5b71a59, which may not be here. `builds.py` runs in the process of the command."""
    needed = set()
    for path in Path(variants.__file__).parent.glob("*.py"):
        if path.name not in ("builds.py", "calls.py") and not path.name.startswith("test_"):
            needed |= set(re.findall(r"^(?:from|import) (supervisor\S*)", path.read_text(), re.MULTILINE))
    assert needed <= OF_BEFORE


def test_code_that_the_benchmarks_do_not_fit_is_told(tmp_path, capfd):
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor/__init__.py").touch()
    with started(Variant(BEFORE, OURS, tmp_path), True, None) as measurer, pytest.raises(Unmeasured, match="has ended"):
        measurer.begin("put")
    assert f"these benchmarks do not fit the code in {tmp_path}: No module named 'supervisor" in capfd.readouterr().err
