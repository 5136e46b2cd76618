"""What children print, line by line and with a memory of the last lines. Runs in master. Must not block."""

import os
from collections.abc import Callable
from typing import Final

from supervisor import clock

#: How much of a job's output stays with it when it fails.
KEPT_BYTES: Final = 16 * 1024
#: Lines of one child that go to the log in one second; the rest is counted.
LINES_PER_S: Final = 200
_LONGEST_LINE_BYTES: Final = 8 * 1024
_READ_BYTES: Final = 64 * 1024
_MARK: Final = b"\x1e"
_LONGEST_TOKEN: Final = 20  # digits


class Output:
    """The reading end of one child's stdout and stderr.

    Between two jobs of one child its stream carries a mark, `\\x1e<token>\\n`, so that what was printed is never taken
    for another job's, however late it is read.
    """

    def __init__(self, fd: int, on_line: Callable[[int, bytes], None], is_open: Callable[[int], bool]) -> None:
        """`fd`: non-blocking, owned from now on. `on_line(token, line)`; token 0: no mark yet, so the job that runs.

        `is_open(token)`: whether what that job printed may still be asked for.
        """
        self.fd = fd
        self._on_line = on_line
        self._is_open = is_open
        self._open_line = b""
        self._unmarked = bytearray()  # printed since the last mark
        self._marked: dict[int, bytes] = {}  # token -> what that job printed, until `forget`
        self._window_at = 0.0
        self._lines_left = LINES_PER_S
        self.lines_dropped = 0  # that have not been told of
        self.dropped = 0  # lines, so far
        self.ended = 0  # the token of the last mark
        self.at_end = False  # nobody can print any more: it stays readable for ever

    def read(self) -> bool:
        """Take what is there, at most 64 KiB; True where there may be more."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.at_end = not chunk
        *lines, self._open_line = (self._open_line + chunk).split(b"\n")
        if self.at_end:
            lines, self._open_line = [self._open_line] if self._open_line else [], b""
        elif len(self._open_line) > _LONGEST_LINE_BYTES:
            lines.append(self._end_open_line())
        self._take(lines)
        return len(chunk) == _READ_BYTES

    def read_to_end(self) -> None:
        """Take everything printed so far; bounded, as a descendant may go on printing."""
        for _ in range(64):
            if not self.read():
                break

    def last_of(self, token: int) -> str:
        """The last 16 KiB that the job with this token has printed."""
        self.read_to_end()
        printed = self._marked.get(token)
        if printed is None:
            printed = bytes(self._unmarked) + self._open_line
        return printed[-KEPT_BYTES:].decode(errors="replace")

    def forget(self, token: int) -> None:
        """The job that ran has been answered: its output is needed no more, and must not become the next one's."""
        if self._open_line:
            self.read_to_end()  # the rest of a line that was read in the middle
        if self._marked.pop(token, None) is None:
            if line := self._end_open_line():
                self._take_lines(token, [line])
            self._unmarked.clear()

    def close(self) -> None:
        self._say_dropped(0)
        os.close(self.fd)

    def _say_dropped(self, token: int) -> None:
        if self.lines_dropped:
            self._on_line(
                token, b"leasehold: %d lines are left out: more than %d/s" % (self.lines_dropped, LINES_PER_S)
            )
            self.lines_dropped = 0

    def _end_open_line(self) -> bytes:
        """What there is of a line whose end has not come. The beginning of a mark stays."""
        line, mark, start = self._open_line.rpartition(_MARK)
        if not mark or (start and not _is_token(start)):
            line, mark, start = self._open_line, b"", b""
        self._open_line = mark + start
        return line

    def _take(self, lines: list[bytes]) -> None:
        start = 0
        for index, line in enumerate(lines):
            unended, mark, token = line.rpartition(_MARK)
            if mark and _is_token(token):
                self._take_lines(int(token), lines[start:index] + ([unended] if unended else []))
                self.ended = int(token)
                if self._is_open(int(token)):
                    self._marked[int(token)] = bytes(self._unmarked)
                self._unmarked.clear()
                start = index + 1
        self._take_lines(0, lines[start:])

    def _take_lines(self, token: int, lines: list[bytes]) -> None:
        now_at = clock.monotonic()
        if now_at - self._window_at >= 1.0:
            self._say_dropped(token)
            self._window_at, self._lines_left = now_at, LINES_PER_S
        for line in lines:
            self._unmarked += line + b"\n"
        if len(self._unmarked) > 2 * KEPT_BYTES:
            del self._unmarked[:-KEPT_BYTES]
        for line in lines[: self._lines_left]:
            self._on_line(token, line[:_LONGEST_LINE_BYTES])
        over = max(0, len(lines) - self._lines_left)
        self.lines_dropped += over
        self.dropped += over
        self._lines_left -= min(len(lines), self._lines_left)


def _is_token(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _LONGEST_TOKEN
