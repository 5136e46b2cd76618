"""Names the release of the handlers' code by its git commit. Runs in the zygote."""

from pathlib import Path
from typing import Final

_DIGITS: Final = 12


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out in a folder or above it. Empty: there is none, or it cannot be read."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.exists():
            try:
                return _commit(_directory(git))[:_DIGITS]
            except (OSError, UnicodeDecodeError):
                return ""
    return ""


def _directory(git: Path) -> Path:
    """Return the directory of git's data. In a worktree and in a submodule `.git` is a file that names it."""
    return git if git.is_dir() else git.parent / git.read_text().strip().removeprefix("gitdir: ")


def _commit(git: Path) -> str:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    shared = git / "commondir"
    if shared.is_file():  # a worktree, whose branches lie with those of its repository
        git /= shared.read_text().strip()
    if (git / ref).is_file():
        return (git / ref).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
