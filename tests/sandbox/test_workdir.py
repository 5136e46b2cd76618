"""Each job finds its child's working directory empty, however the job before left it."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from supervisor.linux import removal
from supervisor.sandbox.workdir import Workdir
from tests.parts import in_fork


@pytest.fixture
def outside(tmp_path):
    """A directory with content that must stay untouched."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "precious").write_text("x")
    (outside / "sub" / "precious").write_text("x")
    yield outside
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == ["precious", "sub", "sub/precious"]


def claimed(workdir):
    def run():
        Workdir(str(workdir)).claim()
        assert os.getcwd() == str(workdir)
        assert os.listdir(".") == []

    in_fork(run)
    assert workdir.is_dir()
    assert not workdir.is_symlink()
    assert list(workdir.iterdir()) == []


def test_claim_removes_everything_and_follows_no_link(tmp_path, outside):
    workdir = tmp_path / "w"
    (workdir / "deep" / "er").mkdir(parents=True)
    (workdir / "deep" / "er" / "file").write_text("x")
    (workdir / "deep" / "link").symlink_to(outside)
    (workdir / ".hidden").write_text("x")
    (workdir / "to-directory").symlink_to(outside)
    (workdir / "to-file").symlink_to(outside / "precious")
    (workdir / "to-nothing").symlink_to("nowhere")
    (workdir / "hard").hardlink_to(outside / "precious")
    (workdir / "read-only").mkdir()
    (workdir / "read-only" / "file").write_text("x")
    (workdir / "read-only").chmod(0o500)
    os.mkfifo(workdir / "fifo")
    claimed(workdir)


def test_file_removed_meanwhile_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "real").write_text("x")
    monkeypatch.setattr("os.listdir", lambda path: ["gone", "real"])
    in_fork(lambda: Workdir(str(tmp_path)).claim())
    assert not (tmp_path / "real").exists()


def test_claim_makes_a_missing_directory(tmp_path):
    claimed(tmp_path / "w")
    assert (tmp_path / "w").stat().st_mode & 0o777 == 0o700


def test_claim_makes_missing_directories_above(tmp_path):
    claimed(tmp_path / "leasehold-w" / "zygote-1" / "child-1")
    for above in ("leasehold-w", "leasehold-w/zygote-1"):
        assert (tmp_path / above).stat().st_mode & 0o777 == 0o711


def test_claim_below_a_foreign_directory_is_refused(tmp_path):
    def run():
        with pytest.raises(PermissionError, match="another user"):
            Workdir(str(tmp_path / "leasehold-w" / "zygote-1" / "child-1")).claim()

    if os.geteuid() != 0:
        pytest.skip("nobody else without root")
    (tmp_path / "leasehold-w").mkdir()
    os.chown(tmp_path / "leasehold-w", 65534, 65534)
    in_fork(run)


def test_claim_empties_an_earlier_childs_directory(tmp_path):
    (tmp_path / "w" / "sub").mkdir(parents=True)
    (tmp_path / "w" / "file").write_text("x")
    claimed(tmp_path / "w")


@pytest.mark.parametrize("what", ["link to a directory", "link to nothing", "file", "fifo"])
def test_claim_replaces_files_and_follows_no_link(tmp_path, outside, what):
    workdir = tmp_path / "w"
    match what:
        case "link to a directory":
            workdir.symlink_to(outside)
        case "link to nothing":
            workdir.symlink_to("nowhere")
        case "file":
            workdir.write_text("x")
        case "fifo":
            os.mkfifo(workdir)
    claimed(workdir)


def test_unprivileged_user_claims_an_unreadable_directory():
    def run():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        workdir.mkdir()
        (workdir / "file").write_text("x")
        workdir.chmod(0)
        Workdir(str(workdir)).claim()
        assert os.listdir(".") == []

    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o777)
        workdir = Path(open_to_all) / "w"
        in_fork(run)


# job after job


def write():
    Path("file").write_text("x")


def write_and_remove():
    write()
    os.unlink("file")


def make_directory():
    os.mkdir("sub")


def make_read_only():
    os.chmod(".", 0o500)


def go_away():
    os.chdir("/")


def remove_it():
    os.rmdir(os.getcwd())


def move_it():
    os.rename(os.getcwd(), "../elsewhere")


def put_another_in_its_place():
    here = os.getcwd()
    move_it()
    os.mkdir(here)
    Path(here, "file").write_text("x")


def put_a_link_in_its_place():
    here = os.getcwd()
    move_it()
    os.symlink("elsewhere", here)


def make_it_look_old():
    write()
    os.utime(".", (0, 0))


CHANGES = [
    write, write_and_remove, make_directory, make_read_only, go_away, remove_it, move_it, put_another_in_its_place,
    put_a_link_in_its_place, make_it_look_old,
]  # fmt: skip


def known(path):
    """A claimed directory, old enough to be known as empty without a look into it."""
    workdir = Workdir(str(path))
    while workdir._empty is None:
        workdir.claim()
        time.sleep(0.01)
    return workdir


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_next_job_finds_the_directory_empty(tmp_path, change):
    def run():
        workdir = known(tmp_path / "w")
        for _ in range(3):
            change()
            workdir.claim()
            assert os.getcwd() == str(tmp_path / "w")
            assert not Path(tmp_path / "w").is_symlink()
            assert os.listdir(tmp_path / "w") == []
            assert os.stat(".").st_ino == os.stat(tmp_path / "w").st_ino
            assert os.stat(".").st_mode & 0o777 == 0o700
            if os.path.exists("../elsewhere"):
                removal.remove(str(tmp_path / "elsewhere"))

    in_fork(run)


def test_file_written_at_the_start_is_gone_afterwards(tmp_path):
    """A change right after a look may have the same timestamp: the kernel's ticks are longer than some jobs."""

    def run():
        workdir = Workdir(str(tmp_path / "w"))
        for _ in range(300):
            workdir.claim()
            write()
            workdir.claim()
            assert os.listdir(".") == []

    in_fork(run)


def test_untouched_directory_is_not_opened(tmp_path, monkeypatch):
    def run():
        workdir = known(tmp_path / "w")
        monkeypatch.setattr("os.listdir", lambda _path: pytest.fail("it was"))
        workdir.claim()

    in_fork(run)
