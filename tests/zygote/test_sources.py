"""A reload's basis: the files that count, the bytecode that is believed, and the launch directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.master.processes.file_watcher import FileWatcher
from supervisor.master.processes.launch_directory import LaunchDirectory

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


# files


@pytest.fixture
def files(tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.fixture
def watching(files):
    watching = FileWatcher()
    watching.follow([str(files / "one.py")], os.stat(files).st_ctime + 1)
    assert not watching.is_edited()
    return watching


EDITS = {
    "written": lambda files: (files / "one.py").write_text("22"),
    "renamed over": lambda files: (files / "two.py").rename(files / "one.py"),
    "removed": lambda files: (files / "one.py").unlink(),
    "written beside it": lambda files: (files / "two.py").write_text("22"),
    "new beside it": lambda files: (files / "three.py").write_text("3"),
    "removed beside it": lambda files: (files / "two.py").unlink(),
    "all gone": lambda files: [*map(Path.unlink, files.iterdir()), files.rmdir()],
}


@pytest.mark.parametrize("how", EDITS)
def test_edit_is_seen_once(files, watching, how):
    EDITS[how](files)
    assert watching.is_edited()
    watching.note()
    assert not watching.is_edited()


def test_files_that_are_no_modules_do_not_count(files, watching):
    (files / ".one.py.swp").write_text("x")
    (files / ".#one.py").symlink_to("nobody")
    (files / "notes.txt").write_text("x")
    (files / "__pycache__").mkdir()
    assert not watching.is_edited()


def test_edit_during_the_load_is_seen(files):
    watching = FileWatcher()
    began_unix = os.stat(files / "two.py").st_ctime
    watching.follow([str(files / "one.py")], began_unix - 0.001)
    assert watching.is_edited()
    watching.note()
    watching.follow([str(files / "one.py")], began_unix + 1)
    assert not watching.is_edited()


def test_file_that_failed_a_reload_is_watched(files, watching):
    elsewhere = files / "below"
    elsewhere.mkdir()
    (elsewhere / "broken.py").write_text("(")
    watching.add([str(elsewhere / "broken.py")])
    assert not watching.is_edited()
    (elsewhere / "broken.py").write_text("()")
    assert watching.is_edited()


# the directory


@pytest.fixture
def releases(tmp_path, monkeypatch):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    (tmp_path / "current").symlink_to("1")
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    return tmp_path


def swap(releases):
    (releases / "current").unlink()
    (releases / "current").symlink_to("2")


def test_launch_directory_is_where_its_name_leads_now(releases):
    place = LaunchDirectory.here()
    assert (place.name, place.now()) == (str(releases / "current"), "")
    swap(releases)
    assert place.now() == str(releases / "2")
    (releases / "current").unlink()
    assert place.now() == str(releases / "current")


@pytest.mark.parametrize("said", ["", "relative", "{}/2", "{}/nowhere"])
def test_kernels_name_wins_over_a_different_pwd(releases, monkeypatch, said):
    monkeypatch.setenv("PWD", said.format(releases))
    place = LaunchDirectory.here()
    assert (place.name, place.now()) == (str(releases / "1"), "")
    swap(releases)
    assert place.now() == ""
