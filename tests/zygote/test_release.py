"""The release of code is its git commit, however git keeps it."""

import shutil
import subprocess

import pytest

from supervisor.zygote.release import commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({"HEAD": f"{COMMIT}\n"}, "0123456789ab"),
        ({"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"}, "0123456789ab"),
        ({"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack\n{COMMIT} refs/heads/main\n"}, "0123456789ab"),
        ({"HEAD": "ref: refs/heads/new\n", "packed-refs": "# pack\n"}, ""),
        ({"HEAD": "ref: refs/heads/new\n"}, ""),
        ({}, ""),
    ],
)
def test_commit_is_read_from_the_folder_above(tmp_path, files, commit):
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        path = tmp_path / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = tmp_path / "app/handlers"
    folder.mkdir(parents=True)
    assert commit_of(folder) == commit


def git(folder, *arguments):
    settings = ("user.name=A", "user.email=a@example.org", "protocol.file.allow=always", "commit.gpgSign=false")
    command = ["git", *(part for one in settings for part in ("-c", one)), *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_is_read_in_a_worktree_and_a_submodule(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    git(app, "init", "-q")
    git(app, "commit", "-q", "--allow-empty", "-m", "first")
    git(app, "worktree", "add", "-q", "-b", "new", "../beside")
    git(tmp_path / "beside", "commit", "-q", "--allow-empty", "-m", "second")
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "add", "-q", str(app), "sub")
    first, second = git(app, "rev-parse", "HEAD"), git(tmp_path / "beside", "rev-parse", "HEAD")
    assert [commit_of(app), commit_of(tmp_path / "beside"), commit_of(outer / "sub")] == [
        first[:12], second[:12], first[:12]
    ]  # fmt: skip
