"""Which files the handlers were loaded from, and when bytecode is taken for their source. Runs in the zygote.

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

#: A source must have rested so long before bytecode is kept for it, or believed.
_RESTED_S: Final = 2.0
_OURS: Final = str(Path(__file__).parents[1])
_INSTALLED: Final = ("site-packages", "dist-packages")


def distrust_young_bytecode() -> None:
    """Python takes bytecode for that of a source if whole second of change and size agree. Of two edits within a second
    the first one's code would be run for the second: while a source is young none is written for it, and none read.
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
    """The files of all modules but Python's own, installed ones and ours."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    outside = tuple(f"{directory}{os.sep}" for directory in (*standard, _OURS))
    found = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    return sorted(
        file for file in found
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(outside)
        and not any(part in _INSTALLED for part in Path(file).parts)
    )  # fmt: skip


def named_by(error: BaseException) -> list[str]:
    """The files in which it went wrong."""
    files = {*_frames(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename:
        files.add(error.filename)
    return sorted(file for file in files if os.path.isfile(file) and not file.startswith(_OURS))


def _frames(frames: TracebackType | None) -> Iterator[str]:
    while frames is not None:
        yield os.path.abspath(frames.tb_frame.f_code.co_filename)
        frames = frames.tb_next
