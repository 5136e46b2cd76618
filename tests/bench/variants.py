"""Chooses the versions of our code that a run measures, and the interpreter of each."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.benchmark import BEFORE, Unmeasured
from tests.bench.builds import build_of
from tests.bench.pool import SOURCE

SOURCE_OF = "import supervisor, sys; sys.stdout.write(next(iter(supervisor.__path__)))"


@dataclass(frozen=True)
class Variant:
    """`suffix` is what its rows are called beyond their name; the one that a run is about has none."""

    suffix: str
    python: Path
    source: Path  # the folder in which the package lies

    @property
    def build(self) -> str:
        """Describe the build of the interpreter."""
        return build_of(self.python)

    @property
    def is_compiled(self) -> bool:
        """Parts of it are machine code, not Python."""
        return any((self.source / "supervisor").rglob("*.so"))

    @property
    def revision(self) -> str:
        """Return the revision of the checkout, with a + if files have been changed. "unknown": it is no checkout."""
        command = ["git", "-C", str(self.source), "describe", "--always", "--dirty=+"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except OSError:  # ENOENT: there is no git
            return "unknown"
        return told.stdout.strip() or "unknown"

    def __str__(self) -> str:
        return f"{self.revision}, {'compiled' if self.is_compiled else 'pure'}, {self.build}"


def chosen(python: Path | None, before: Path | None) -> list[Variant]:
    """The variant that a run is about, then the others: this interpreter, where another one was asked for; what was
    `before`, a clone or a virtual environment.
    """
    ours = Path(sys.executable)
    variants = [Variant("", python or ours, SOURCE)]
    if python is not None and (build := build_of(ours)) != build_of(python):
        variants.append(Variant(f", {build}", ours, SOURCE))
    if before is not None:
        variants.append(_before(before, python or ours, is_given=python is not None))
    return variants


def _before(folder: Path, python: Path, is_given: bool) -> Variant:
    """A clone is measured under the interpreter that was given, else that of its own virtual environment, else ours."""
    own = next((path for path in (folder / ".venv/bin/python", folder / "bin/python") if path.exists()), None)
    if (folder / "supervisor").is_dir():
        return Variant(BEFORE, python if is_given or own is None else own, folder)
    if own is None:
        raise Unmeasured(f"{folder} is neither a clone nor a virtual environment")
    found = subprocess.run([own, "-P", "-c", SOURCE_OF], cwd="/", capture_output=True, text=True, timeout=60)
    if found.returncode:
        raise Unmeasured(f"there is no Leasehold in {folder}")
    return Variant(BEFORE, own, Path(found.stdout).parent)


def notes(variants: Sequence[Variant], builds_of_peers: Sequence[str]) -> list[str]:
    """Return the sentences that a reader must know before comparing figures."""
    ours = variants[0].build
    found = []
    if "without" in ours:
        found.append(
            f"Leasehold ran under {ours}. Such an interpreter takes more processor time than those of distributions:"
            " name an optimised one with `--python`."
        )
    if others := sorted({build for build in builds_of_peers if build != ours}):
        found.append(f"Leasehold ran under {ours}, peers under {'; '.join(others)}: ratios between them are not fair.")
    for variant in variants[1:]:
        if variant.suffix == BEFORE and variant.build != ours:
            found.append(f"What was before ran under {variant.build}: ratios with it are not fair.")
    return found
