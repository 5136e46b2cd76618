"""Reads what one child prints, line by line, and keeps each job's last lines. Runs in the master. Never blocks."""

import contextlib
import fcntl
import math
import os
import re
from collections.abc import Callable
from typing import Final

from supervisor import clock
from supervisor.linux import kernel

#: A failed job keeps this much of its output.
KEPT_BYTES: Final = 16 * 1024
#: Jobs that share a child keep so much together, and each at least a little.
_SHARED_BYTES: Final = 4 * 1024 * 1024
_LEAST_KEPT_BYTES: Final = 512
#: Per child and second, this much goes to the log. Further lines are only counted.
LINES_PER_S: Final = 200
LOGGED_BYTES_PER_S: Final = 64 * 1024
#: After this many reads in one second, or once no more goes to the log, the child is read less often and waits in its
#: writes. Output that is dropped must cost neither the master nor other children much time.
READS_PER_S: Final = 500
_REST_S: Final = 0.008
#: The pause is this many times the time that the last read took, if that is longer than _REST_S. It is bounded, because
#: a slow read may not be the child's fault.
_REST_RATIO: Final = 10
LONGEST_REST_S: Final = 0.5
_LONGEST_LINE_BYTES: Final = 8 * 1024
_READ_BYTES: Final = 64 * 1024
#: Size of a read, and of the pipe, of a child that prints too much: reads and waits are then few.
_LONG_READ_BYTES: Final = 256 * 1024
#: After a read that took longer, smaller pieces are read. Many forged marks make a read slow.
_LONG_S: Final = 0.005
_SHORT_READ_BYTES: Final = 8 * 1024
_LEFT_OUT: Final = b"leasehold: %d lines (%d bytes) are left out: more than %d lines or %d KiB in a second"
_MARK: Final = re.compile(rb"\x1e([0-9]{1,20})\n")
_MARK_BEGUN: Final = re.compile(rb"\x1e[0-9]{0,20}\Z")
_LONGEST_BEGUN: Final = 21


class Output:
    """The reading end of one child's stdout and stderr.

    After each job the child writes a mark, `\\x1e<token>\\n`, and after each line if jobs share it. So each line
    belongs to its own job, however late the line is read.
    """

    def __init__(self, fd: int, on_line: Callable[[int, bytes], None], is_open: Callable[[int], bool]) -> None:
        """`fd`: non-blocking, owned from now on. `on_line(token, line)` gets each line for the log; token 0 means
        that no mark has followed the line yet.

        `is_open(token)`: whether `last_of` may still be called for that job.
        """
        self.fd = fd
        self._on_line = on_line
        self._is_open = is_open
        self._kept_bytes = KEPT_BYTES
        self._mark_begun = b""  # bytes at the end that may begin a mark
        self._open_line = b""  # the unfinished line before them
        self._unmarked = bytearray()  # printed since the last mark
        self._marked: dict[int, bytes] = {}  # token -> the job's output, until `forget`
        self._window_at = 0.0
        self._lines_left, self._bytes_left, self._reads_left = LINES_PER_S, LOGGED_BYTES_PER_S, READS_PER_S
        self._may_say = True  # lines left out are reported once per window
        self.lines_dropped = self.bytes_dropped = 0  # since the last report
        self.dropped = 0  # lines, in total
        self.ended = 0  # the token of the last mark
        self.rests_until_at = 0.0  # the next read (monotonic s)
        self._read_bytes = _READ_BYTES
        self.at_end = False  # all writers have closed it; it stays readable for ever

    def read(self) -> int:
        """Read what is there, at most 256 KiB. Return the number of bytes."""
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
                with contextlib.suppress(OSError):  # not a pipe, or its user has too many large ones
                    fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _LONG_READ_BYTES)

    def read_to_end(self) -> None:
        """Read everything printed before this call. A child that prints on cannot prolong it."""
        left_bytes = kernel.unread_bytes(self.fd)
        while left_bytes >= 0 and (taken_bytes := self.read()):
            left_bytes -= taken_bytes

    def last_of(self, token: int) -> str:
        """Return the last 16 KiB that the job with this token printed."""
        self.read_to_end()
        printed = self._marked.get(token)
        if printed is None:
            printed = bytes(self._unmarked) + self._mark_begun
        text = printed[-KEPT_BYTES:].decode(errors="replace").encode()  # a byte that is not UTF-8 becomes three
        return text[-KEPT_BYTES:].decode(errors="ignore")

    def forget(self, token: int) -> None:
        """The job has been answered. Drop its output, which must not become the next job's."""
        if self._open_line or self._mark_begun or self.rests_until_at:
            self.read_to_end()  # an unfinished line, or bytes left unread in a pause
        if self._marked.pop(token, None) is None:
            if self._open_line:
                self._tell(token, b"", ends=True)
            self._unmarked.clear()

    def share(self, jobs: int) -> None:
        """Keep less of each job: up to `jobs` of them print beside each other."""
        self._kept_bytes = min(KEPT_BYTES, max(_LEAST_KEPT_BYTES, _SHARED_BYTES // jobs))

    def drop(self, token: int) -> None:
        """A job beside others has been answered. Output of it that is unread is only logged."""
        self._marked.pop(token, None)

    def close(self) -> None:
        self._say_dropped(0)
        os.close(self.fd)

    @property
    def untold_at(self) -> float:
        """When to report left out lines even if the child prints no more. Infinity: there are none."""
        return self._window_at + 1.0 if self.lines_dropped else math.inf

    def open_window(self, now_at: float) -> None:
        """Start a new window of one second if the last one is over."""
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
            before = self._marked.get(token, b"")  # jobs that share the child have a mark behind each line
            self._marked[token] = (before + self._unmarked)[-self._kept_bytes :] if before else bytes(self._unmarked)
        if self._unmarked:
            self._unmarked.clear()
        if self.lines_dropped and self._may_say:
            self._may_say = False
            self._say_dropped(token)

    def _add(self, token: int, text: bytes, ends: bool) -> None:
        """`ends`: the last line ends here, although no newline follows."""
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
        """Only count the lines from `start` on. An unfinished last line may still reach the log."""
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
    """Return the end of the line that begins at `start`, and the start of the next one. -1: the line is unfinished.

    A line that is too long is cut.
    """
    end = text.find(b"\n", start, start + _LONGEST_LINE_BYTES + 1)
    if end >= 0:
        return end, end + 1
    if len(text) - start <= _LONGEST_LINE_BYTES:
        return len(text), len(text) if ends else -1
    end = start + _LONGEST_LINE_BYTES
    for _ in range(3):  # do not cut a UTF-8 character
        end -= text[end] & 0xC0 == 0x80
    return end, end
