"""How far the demo is, on the terminal of the demo's process: drawn by rich if it is there, else one plain line."""

import contextlib
import sys
from types import TracebackType
from typing import Any, Self

from supervisor import clock
from supervisor.cli.demo_pool import Log

#: No faster than an eye can follow.
REDRAW_S = 0.1


class Progress:
    """A line that is drawn again and again on a terminal, and not at all elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._draw_at = 0.0
        self._bar: Any = None
        self._task: Any = None
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        if self._terminal:
            with contextlib.suppress(ImportError):  # then it is the plain line
                self._start_rich()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._terminal:
            sys.stderr.write("\n")

    def show(self, log: Log) -> None:
        """Draw, if it is time to."""
        now = clock.monotonic()
        if not self._terminal or (now < self._draw_at and log.settled < self._total):
            return
        self._draw_at = now + REDRAW_S
        words = f"{sum(log.deaths.values())} deaths, {log.raised} exceptions" if log.ready else "importing the handlers"
        if self._bar is not None:
            self._bar.update(self._task, completed=log.settled, words=words)
            self._bar.refresh()
        else:
            sys.stderr.write(f"\r{log.settled:,} of {self._total:,} jobs, {words}\x1b[K")
            sys.stderr.flush()

    def _start_rich(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(None), MofNCompleteColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
        # Drawn by our loop: a thread of its own would be one too many beside fork.
        self._bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False, expand=True)
        self._task = self._bar.add_task("", total=self._total, words="")
        self._bar.start()
