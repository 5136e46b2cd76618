"""Finds the files that handlers were loaded from, and distrusts young bytecode. Runs in the zygote.

Owns the rule of the import system that a reload depends on.
"""

import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from supervisor import clock

#: Bytecode is written and read only for sources that have not changed for this long.
_RESTED_S: Final = 2.0
_OURS: Final = str(Path(__file__).parents[1])
_INSTALLED: Final = ("site-packages", "dist-packages")


def distrust_young_bytecode() -> None:
    """Neither read nor write bytecode for a source that has just changed.

    Python matches bytecode with its source by size and whole second of change. After two edits of one size within a
    second it would run the first edit's code.
    """
    loader: Any = importlib.machinery.SourceFileLoader
    path_stats = loader.path_stats

    def of_rested(self: object, path: str) -> object:
        stats = path_stats(self, path)
        if abs(clock.unix() - stats["mtime"]) < _RESTED_S:
            raise OSError(f"{path} has been changed just now")  # the import system then reads the source itself
        return stats

    loader.path_stats = of_rested


def loaded() -> list[str]:
    """Return the files of all modules, without Python's own, installed ones and ours."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    outside = tuple(f"{directory}{os.sep}" for directory in (*standard, _OURS))
    found = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    return sorted(
        file for file in found
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(outside)
        and not any(part in _INSTALLED for part in Path(file).parts)
    )  # fmt: skip


def files_of(error: BaseException) -> list[str]:
    """Return the files that an exception went through."""
    files = {*_frames(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename:
        files.add(error.filename)
    return sorted(file for file in files if os.path.isfile(file) and not file.startswith(_OURS))


def _frames(frames: TracebackType | None) -> Iterator[str]:
    while frames is not None:
        yield os.path.abspath(frames.tb_frame.f_code.co_filename)
        frames = frames.tb_next
