"""Takes the terminal for `leasehold top`, and restores it. Runs in the command's process.

Must leave the terminal as it was found, whatever happens.
"""

import contextlib
import errno
import io
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.text import Text

#: Enter the alternate screen, hide the cursor and stop wrapping; and back. The terminal restores its old content.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
#: Synchronised update: a terminal that knows it never shows half a screen.
_BEGIN: Final = "\x1b[?2026h\x1b[H"
_END: Final = "\x1b[?2026l"
#: Erasing comes before the text: after a full line the cursor is on the last cell, and would erase that.
_ERASE_LINE: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"


def is_live() -> bool:
    """Return True if the terminal can be redrawn and sends keys."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def is_unicode() -> bool:
    """Return True if the terminal shows more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class TerminalGone(Exception):
    """The terminal has hung up."""


class Terminal:
    """The terminal as a context manager."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def take(self) -> None:
        """Take the terminal. Idempotent, as another program may have had it meanwhile. Raises TerminalGone."""
        with _gone():
            if self._before is None:
                self._before = termios.tcgetattr(self._in)
            tty.setcbreak(self._in, termios.TCSANOW)
            mode = termios.tcgetattr(self._in)
            mode[0] &= ~termios.IXON  # a Ctrl-S would block a write, and with it keys and signals
            termios.tcsetattr(self._in, termios.TCSANOW, mode)
            self._write(_ENTER)

    def give_back(self) -> None:
        """Restore the terminal. Idempotent."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSANOW, before)
        except (OSError, termios.error):
            pass  # the terminal is gone

    def read(self) -> bytes:
        """Return what was typed. Raises TerminalGone."""
        with _gone():
            sent = os.read(self._in, 4096)
        if not sent:
            raise TerminalGone
        return sent

    @property
    def fd(self) -> int:
        """The descriptor that keys come from."""
        return self._in

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[Text], width: int) -> None:
        """Replace the screen's content without flicker. Raises TerminalGone."""
        *above, last = drawn(lines, width).split("\n")
        with _gone():
            picture = "".join(f"{_ERASE_LINE}{line}\r\n" for line in above)
            self._write(f"{_BEGIN}{picture}{_ERASE_BELOW}{last}{_END}")

    def _write(self, text: str) -> None:
        left = memoryview(text.encode(self._encoding, "replace"))
        while left:
            try:
                left = left[os.write(self._out, left) :]
            except BlockingIOError:  # a previous program left it non-blocking, and it is read slowly
                select.select([], [self._out], [])


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except (OSError, termios.error) as error:
        if error.args[0] == errno.EIO:  # terminals report a hang-up by EIO
            raise TerminalGone from error
        raise


def drawn(lines: Sequence[Text], width: int) -> str:
    """Return the lines with the terminal's colours. Renders into memory: the terminal may have hung up."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width + 1, legacy_windows=False, highlight=False)
    with console.capture() as captured:
        console.print(Text("\n").join(lines), end="", soft_wrap=True)
    return captured.get()
