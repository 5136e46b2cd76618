"""Directories are emptied, however handlers left them, and nothing else is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import clock
from supervisor.linux import removal
from tests.lengths import LONG, SOON_S
from tests.parts import in_fork, open_fds


def dig(root, depth, name="d"):
    """Nested directories, deeper than Python recurses and paths reach."""

    def down():
        os.chdir(root)
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        Path("f").touch()

    in_fork(down)


def test_directory_is_removed_beside_the_caller(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        dig(tmp_path / name, 50)
        removal.remove_beside(str(tmp_path / name))
    removal.remove_beside(str(tmp_path / "nowhere"))
    removal.finish(SOON_S)
    assert list(tmp_path.iterdir()) == []


def test_directory_stays_if_no_thread_can_start(tmp_path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(removal.Thread, "start", refuse)
    removal.remove_beside(str(tmp_path))
    removal.finish(SOON_S)
    assert tmp_path.is_dir()


def as_owner(run):
    """A user without root's rights, where there is one."""

    def inside():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        run()

    in_fork(inside)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A current directory of `as_owner`'s: directories above it may be closed to that user."""
    own = tmp_path / "own"
    own.mkdir()
    if os.geteuid() == 0:
        os.chown(own, 65534, 65534)
    monkeypatch.chdir(own)
    return own


@pytest.mark.parametrize(("depth", "name"), [(1010, "d"), (60, "d" * 250)])
def test_tree_deeper_than_recursion_and_paths_is_removed(tmp_path, depth, name):
    dig(tmp_path, depth, name)
    before = open_fds()
    removal.empty(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert open_fds() == before


def test_directories_closed_to_their_owner_are_emptied(own):
    def run():
        for top in ("a", "b"):
            Path(top, "x", "y").mkdir(parents=True)
            Path(top, "x", "y", "f").touch()
            Path(top, "f").touch()
            for closed in (f"{top}/x/y", f"{top}/x", top):
                os.chmod(closed, 0 if top == "a" else 0o500)
        removal.empty(".")
        assert os.listdir(".") == []

    as_owner(run)


def test_every_kind_of_entry_is_removed_and_no_link_followed(tmp_path):
    treasure = tmp_path / "treasure"
    (treasure / "chest").mkdir(parents=True)
    (treasure / "chest" / "gold").touch()
    treasure.chmod(0o500)
    root = tmp_path / "root"
    root.mkdir()
    for name in (b"\xff\xfe", b"-rf", b"..x", b" ", b"\n", b"a" * 255):
        os.close(os.open(os.path.join(bytes(root), name), os.O_CREAT))
    os.mkfifo(root / "fifo")
    (root / "link").symlink_to(treasure)
    (root / "below").mkdir()
    (root / "below" / "link").symlink_to(treasure)
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    os.link(treasure / "chest" / "gold", root / "gold")
    removal.empty(str(root))
    assert os.listdir(root) == []
    assert (treasure / "chest" / "gold").exists()
    assert treasure.stat().st_mode & 0o777 == 0o500
    treasure.chmod(0o700)


def test_more_directories_than_one_listing_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(removal, "_MOST_NAMES", 10)
    for number in range(35):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "f").touch()
    removal.empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_many_files_are_removed_in_seconds(tmp_path, measured):
    count = 100_000 if LONG else 500
    for number in range(count):
        os.mknod(tmp_path / str(number))
    began_at = clock.monotonic()
    removal.empty(str(tmp_path))
    measured(f"{count} files removed in {clock.monotonic() - began_at:.2f} s")
    assert os.listdir(tmp_path) == []


def test_rest_is_removed_beside_what_cannot_be(own):
    (own / "not-his").mkdir()
    (own / "not-his" / "f").touch()
    (own / "not-his").chmod(0o755)
    if os.geteuid():
        pytest.skip("only root can make what its owner cannot remove")

    def run():
        Path("his", "own").mkdir(parents=True)
        removal.empty(".")
        assert os.listdir(".") == ["not-his"]

    as_owner(run)


def test_other_file_systems_are_left_alone(tmp_path):
    code = (
        "import os; from supervisor.linux import removal; removal.empty('.');"
        "print(os.listdir('.'), os.listdir('mounted'))"
    )
    (tmp_path / "mounted").mkdir()
    (tmp_path / "f").touch()
    mount = 'mount -t tmpfs none mounted && touch mounted/f && exec "$@"'
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": str(Path(removal.__file__).parents[2])},
    )  # fmt: skip
    if ran.returncode:
        pytest.skip(f"this machine lets us mount nothing: {ran.stderr.strip()[-200:]}")
    assert ran.stdout.strip() == "['mounted'] ['f']"


def test_directory_moved_meanwhile_leads_nowhere_else(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "f").touch()
    sweep, swept = removal._sweep, []

    def moving(fd):
        swept.append(os.readlink(f"/proc/self/fd/{fd}"))
        if len(swept) == 3:
            (root / "a" / "b").rename(elsewhere / "b")
        return sweep(fd)

    monkeypatch.setattr(removal, "_sweep", moving)
    removal.empty(str(root))
    assert os.listdir(root) == []
    assert sorted(os.listdir(elsewhere)) == ["b", "kept"]


def test_directory_is_removed_and_a_missing_one_is_fine(tmp_path):
    dig(tmp_path, 50)
    removal.remove(str(tmp_path / "d"))
    assert os.listdir(tmp_path) == []
    removal.remove(str(tmp_path / "d"))
    (tmp_path / "file").touch()
    removal.remove(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == ["file"]
