"""A zygote distrusts young bytecode of the handlers, because an edit within a second does not change its time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOAD = """
import sys
from supervisor import clock
from supervisor.zygote import sources
clock.unix = lambda: float(sys.argv[1])
sources.distrust_young_bytecode()
sys.path.insert(0, sys.argv[2])
import edited
print(edited.VERSION)
"""


def load(directory, now_unix):
    """Return what a process finds that imports the module at that time."""
    line = [sys.executable, "-P", "-c", LOAD, str(now_unix), str(directory)]
    return int(subprocess.run(line, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True).stdout)


def write(directory, version, changed_unix):
    source = directory / "edited.py"
    source.write_text(f"VERSION = {version}\n")
    os.utime(source, (changed_unix, changed_unix))


@pytest.mark.parametrize("later_s", [0.0, 0.9, 1.9])
def test_two_edits_of_one_size_within_a_second_are_seen(tmp_path, later_s):
    write(tmp_path, 1, 1000.0)
    assert load(tmp_path, 1000.0 + later_s) == 1
    write(tmp_path, 2, 1000.0)
    assert load(tmp_path, 1000.0 + later_s) == 2
    assert load(tmp_path, 5000.0) == 2


def test_bytecode_is_kept_for_rested_sources(tmp_path):
    write(tmp_path, 1, 1000.0)
    load(tmp_path, 1001.0)
    assert not list(tmp_path.rglob("*.pyc"))
    load(tmp_path, 1003.0)
    assert len(list(tmp_path.rglob("*.pyc"))) == 1
