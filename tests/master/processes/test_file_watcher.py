"""The file watcher sees changes of the handlers' files."""

import os
from pathlib import Path

import pytest

from supervisor.master.processes.file_watcher import FileWatcher


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


def load(watching, files, write):
    """Load handlers that `write` a file meanwhile."""
    watching.note()
    write()
    watching.follow([str(files / "one.py")], os.stat(files).st_ctime + 1)


def test_file_that_each_load_writes_is_no_edit(files, watching):
    def write():
        (files / "two.py").write_text((files / "two.py").read_text() + "2")

    judged = []
    for _ in range(5):
        load(watching, files, write)
        judged.append(watching.is_edited())
    assert judged == [True] * 4 + [False]
    assert not watching.is_edited()


def test_loads_that_are_given_up_count_as_well(files, watching):
    judged = []
    for number in range(5):
        watching.note()
        (files / "two.py").write_text("2" * (number + 2))
        judged.append(watching.is_edited())
        assert judged[-1] == watching.outdates_load()
    assert judged == [True] * 4 + [False]
    (files / "two.py").write_text("2")
    assert not watching.is_edited(), "the load may write its file twice"
    watching.follow([str(files / "one.py")], os.stat(files).st_ctime + 1)
    assert not watching.is_edited()
    (files / "two.py").write_text("edited")
    assert watching.is_edited()


def test_load_counts_once_however_many_looks_there_are(files, watching):
    watching.note()
    for number in range(8):
        (files / "two.py").write_text("2" * (number + 2))
        assert watching.is_edited()


def test_edit_beside_a_file_that_each_load_writes_is_seen(files, watching):
    for number in range(5):
        load(watching, files, lambda number=number: (files / "two.py").write_text("2" * (number + 2)))
        if number == 4:
            (files / "one.py").write_text("edited")
        assert watching.is_edited()


def test_edits_of_different_files_are_all_seen(files, watching):
    for number in range(8):
        name = ("one.py", "two.py")[number % 2]
        load(watching, files, lambda name=name, number=number: (files / name).write_text("3" * (number + 2)))
        assert watching.is_edited()


def test_loads_that_follow_each_other_at_once_are_judged_too(files, watching):
    for number in range(6):
        load(watching, files, lambda number=number: (files / "two.py").write_text("2" * (number + 2)))
    assert not watching.is_edited()
