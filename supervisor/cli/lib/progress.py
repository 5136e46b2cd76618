"""Draws a progress bar with rich, or a plain line without it. Runs in the command's process.

Must not write anything where stderr is not a terminal.
"""

import contextlib
import sys
from types import TracebackType
from typing import Any, Self

from supervisor import clock
from supervisor.ops.visible import visible

#: The fastest redraw that an eye can follow.
REDRAW_S = 0.1
#: A shorter run shows no progress.
PATIENCE_S = 0.5


class ProgressLine:
    """A line that is redrawn on a terminal. Draws nothing elsewhere."""

    def __init__(self, total: int | None, patience_s: float = PATIENCE_S) -> None:
        """`total` None: unknown. The first drawing comes after `patience_s`."""
        self._total = total
        self._draw_at = clock.monotonic() + patience_s
        self._bar: Any = None
        self._task: Any = None
        self._terminal = sys.stderr.isatty()
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._drawn:
            sys.stderr.write("\n")

    def show(self, done: int, words: str) -> None:
        """Redraw if enough time has passed."""
        now = clock.monotonic()
        if not self._terminal or (now < self._draw_at and not (self._drawn and done == self._total)):
            return
        self._draw_at = now + REDRAW_S
        if not self._drawn and self._total is not None:
            with contextlib.suppress(ImportError):  # without rich a plain line is drawn
                self._start_rich()
        self._drawn = True
        if self._bar is not None:
            self._bar.update(self._task, completed=done, words=visible(words))
            self._bar.refresh()
        else:
            sys.stderr.write(f"\r{visible(words)}\x1b[K")
            sys.stderr.flush()

    def _start_rich(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(None), TextColumn("{task.fields[words]}", markup=False), TimeElapsedColumn())
        # The caller's loop draws: rich's own thread would be unsafe beside fork.
        self._bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False, expand=True)
        self._task = self._bar.add_task("", total=self._total, words="")
        self._bar.start()
