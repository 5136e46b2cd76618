"""What children print, line by line and with a memory of the last lines. Runs in master. Must not block."""

import contextlib
import fcntl
import math
import os
import re
from collections.abc import Callable
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

#: How much of a job's output stays with it when it fails.
KEPT_BYTES: Final = 16 * 1024
#: Of one child that go to the log in one second; the rest is counted.
LINES_PER_S: Final = 200
LOGGED_BYTES_PER_S: Final = 64 * 1024
#: After so many reads in one second, or once no more of it goes to the log, a child is read less often: it then waits
#: in its writes. Neither we nor its neighbours are to be busy with what nobody sees.
READS_PER_S: Final = 500
_REST_S: Final = 0.008
#: How much longer we rest than we have worked, if that is more; at most so long, as it may not be the child's fault.
_REST_RATIO: Final = 10
LONGEST_REST_S: Final = 0.5
_LONGEST_LINE_BYTES: Final = 8 * 1024
_READ_BYTES: Final = 64 * 1024
#: Of one that prints too much, so that our looks, and its waits, are few: its pipe then holds so much.
_LONG_READ_BYTES: Final = 256 * 1024
#: What takes us longer is read in smaller pieces: marks may be forged.
_LONG_S: Final = 0.005
_SHORT_READ_BYTES: Final = 8 * 1024
_LEFT_OUT: Final = b"leasehold: %d lines (%d bytes) are left out: more than %d lines or %d KiB in a second"
_MARK: Final = re.compile(rb"\x1e([0-9]{1,20})\n")
_MARK_BEGUN: Final = re.compile(rb"\x1e[0-9]{0,20}\Z")
_LONGEST_BEGUN: Final = 21


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
        self._mark_begun = b""  # what may be the beginning of a mark
        self._open_line = b""  # of what comes before that: the last line, as its end has not come
        self._unmarked = bytearray()  # printed since the last mark
        self._marked: dict[int, bytes] = {}  # token -> what that job printed, until `forget`
        self._window_at = 0.0
        self._lines_left, self._bytes_left, self._reads_left = LINES_PER_S, LOGGED_BYTES_PER_S, READS_PER_S
        self._may_say = True  # that something was left out: once in a window
        self.lines_dropped = self.bytes_dropped = 0  # since it was said last
        self.dropped = 0  # lines, so far
        self.ended = 0  # the token of the last mark
        self.rests_until_at = 0.0  # when it is to be read again (monotonic s)
        self._read_bytes = _READ_BYTES
        self.at_end = False  # nobody can print any more: it stays readable for ever

    def read(self) -> int:
        """Take what is there, at most 256 KiB. Answers how many bytes that were."""
        try:
            chunk = os.read(self.fd, self._read_bytes)
        except BlockingIOError:
            return 0
        began_at = clock.monotonic()
        self.open_window(began_at)
        self._reads_left -= 1
        self.at_end = not chunk
        self._take(self._mark_begun + chunk)
        busy_s = clock.monotonic() - began_at
        if busy_s > _LONG_S or not self._lines_left or self._bytes_left <= 0 or self._reads_left <= 0:
            self._rest(began_at + busy_s, busy_s)
        return len(chunk)

    def _rest(self, now_at: float, busy_s: float) -> None:
        self.rests_until_at = now_at + min(max(_REST_S, _REST_RATIO * busy_s), LONGEST_REST_S)
        if busy_s >= _LONG_S:
            self._read_bytes = max(self._read_bytes // 2, _SHORT_READ_BYTES)
        elif self._read_bytes < _LONG_READ_BYTES:
            self._read_bytes *= 2
            if self._read_bytes == _LONG_READ_BYTES:
                with contextlib.suppress(OSError):  # its user has too many of these, or it is no pipe: it waits more
                    fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _LONG_READ_BYTES)

    def read_to_end(self) -> None:
        """Take everything printed so far, and the end where it has come. No more: somebody may go on printing."""
        left_bytes = kernel.unread_bytes(self.fd)
        while left_bytes >= 0 and (taken_bytes := self.read()):
            left_bytes -= taken_bytes

    def last_of(self, token: int) -> str:
        """The last 16 KiB that the job with this token has printed."""
        self.read_to_end()
        printed = self._marked.get(token)
        if printed is None:
            printed = bytes(self._unmarked) + self._mark_begun
        text = printed[-KEPT_BYTES:].decode(errors="replace").encode()  # what is no text takes three times its bytes
        return text[-KEPT_BYTES:].decode(errors="ignore")

    def forget(self, token: int) -> None:
        """The job that ran has been answered: its output is needed no more, and must not become the next one's."""
        if self._open_line or self._mark_begun or self.rests_until_at:
            self.read_to_end()  # the rest of a line, or what was left for later, when nobody knows whose it is
        if self._marked.pop(token, None) is None:
            if self._open_line:
                self._tell(token, b"", ends=True)
            self._unmarked.clear()

    def close(self) -> None:
        self._say_dropped(0)
        os.close(self.fd)

    @property
    def untold_at(self) -> float:
        """When it is time to say that something was left out, though nobody prints on; inf: nothing was."""
        return self._window_at + 1.0 if self.lines_dropped else math.inf

    def open_window(self, now_at: float) -> None:
        """If its second is over."""
        if now_at >= self._window_at + 1.0:
            self._say_dropped(0)
            self._window_at, self._may_say = now_at, True
            self._lines_left, self._bytes_left, self._reads_left = LINES_PER_S, LOGGED_BYTES_PER_S, READS_PER_S

    def _say_dropped(self, token: int) -> None:
        if self.lines_dropped:
            dropped, most = (self.lines_dropped, self.bytes_dropped), (LINES_PER_S, LOGGED_BYTES_PER_S >> 10)
            self._on_line(token, _LEFT_OUT % (*dropped, *most))
            self.lines_dropped = self.bytes_dropped = 0

    def _take(self, text: bytes) -> None:
        start = 0
        for mark in _MARK.finditer(text):
            token = int(mark[1])
            if mark.start() > start or self._open_line:
                self._add(token, text[start : mark.start()], ends=True)
            self._end(token)
            start = mark.end()
        begun = None if self.at_end else _MARK_BEGUN.search(text, max(start, len(text) - _LONGEST_BEGUN))
        end = len(text) if begun is None else begun.start()
        self._mark_begun = text[end:]
        self._add(0, text[start:end], ends=self.at_end)

    def _end(self, token: int) -> None:
        self.ended = token
        if self._is_open(token):
            self._marked[token] = bytes(self._unmarked)
        if self._unmarked:
            self._unmarked.clear()
        if self.lines_dropped and self._may_say:
            self._may_say = False
            self._say_dropped(token)

    def _add(self, token: int, text: bytes, ends: bool) -> None:
        """`ends`: its last line does, although nothing says so."""
        self._unmarked += text[-KEPT_BYTES:]
        if len(self._unmarked) > 2 * KEPT_BYTES:
            del self._unmarked[:-KEPT_BYTES]
        if ends and self._unmarked and self._unmarked[-1] != 0x0A:
            self._unmarked += b"\n"
        if text or self._open_line:
            self._tell(token, text, ends)

    def _tell(self, token: int, text: bytes, ends: bool) -> None:
        text, self._open_line = self._open_line + text, b""
        start = 0
        while start < len(text) and self._lines_left and self._bytes_left > 0:
            end, next_start = _line_from(text, start, ends)
            if next_start < 0:
                self._open_line = text[start:]
                return
            self._on_line(token, text[start:end])
            self._lines_left -= 1
            self._bytes_left -= end - start
            start = next_start
        if start < len(text):
            self._drop(text, start, ends)

    def _drop(self, text: bytes, start: int, ends: bool) -> None:
        """It is too much: lines are only counted, however many there are. One that is open may be told yet."""
        end = len(text)
        if not ends:
            last = max(start, text.rfind(b"\n", start) + 1)
            end = last if len(text) - last <= _LONGEST_LINE_BYTES else end
        self._open_line = text[end:]
        if end > start:
            lines = text.count(b"\n", start, end) + (text[end - 1] != 0x0A)
            self.lines_dropped += lines
            self.dropped += lines
            self.bytes_dropped += end - start


def _line_from(text: bytes, start: int, ends: bool) -> tuple[int, int]:
    """Where the line ends that begins here, or the piece of one that is too long, and where the next one begins: -1 if
    nothing says yet that it has ended.
    """
    end = text.find(b"\n", start, start + _LONGEST_LINE_BYTES + 1)
    if end >= 0:
        return end, end + 1
    if len(text) - start <= _LONGEST_LINE_BYTES:
        return len(text), len(text) if ends else -1
    end = start + _LONGEST_LINE_BYTES
    for _ in range(3):  # not in the midst of a character of UTF-8
        end -= text[end] & 0xC0 == 0x80
    return end, end
