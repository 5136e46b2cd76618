"""The release of code is its git commit, however git keeps it."""

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
