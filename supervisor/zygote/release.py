"""Names the release of the handlers' code by its git commit. Runs in the zygote."""

from pathlib import Path
from typing import Final

_DIGITS: Final = 12


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out in a folder or above it. Empty: there is none, or it cannot be read."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_dir():
            try:
                return _commit(git)[:_DIGITS]
            except (OSError, UnicodeDecodeError):
                return ""
    return ""


def _commit(git: Path) -> str:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    if (git / ref).is_file():
        return (git / ref).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
