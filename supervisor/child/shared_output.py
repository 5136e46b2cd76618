"""Tells apart what jobs of a shared child print. Runs in shared children.

Each line goes out at once, with the mark of the job whose code has printed it. What C code and other programs print
has no mark, so the master knows only the child. Owns copies of descriptors 1 and 2, which a handler may close.
"""

import io
import os
import sys
from typing import Any, BinaryIO, Final

from supervisor.child.printing import MARK
from supervisor.child.shared_run import current

#: A longer line goes out in pieces.
_LONGEST_CHARS: Final = 8192


class SharedOutput(io.TextIOBase):
    """A text stream for sys.stdout or sys.stderr."""

    def __init__(self, fd: int, beneath: Any, has_marks: bool) -> None:
        """`beneath`: the stream in whose place it is. Bytes go to its buffer, and have no mark."""
        self._fd = fd
        self._own_fd = os.dup(fd)
        self._identity = _identity_of(fd)
        self._beneath = beneath
        self._has_marks = has_marks
        self._unfinished: dict[int, str] = {}  # lines, by the token of their job; 0: of no job

    def write(self, text: str) -> int:
        run = current.get()
        token = 0 if run is None else run.job.token
        lines, newline, rest = (self._unfinished.pop(token, "") + text).rpartition("\n")
        if len(rest) > _LONGEST_CHARS:
            lines, rest = lines + newline + rest, ""
        if rest:
            self._unfinished[token] = rest
        if lines or newline:
            self._send(lines + "\n", token)
        return len(text)

    def end(self, token: int) -> None:
        """The job has ended: its unfinished line goes out, and the descriptor leads where it did before."""
        if (rest := self._unfinished.pop(token, "")) != "":
            self._send(rest + "\n", token)
        if _identity_of(self._fd) != self._identity:
            os.dup2(self._own_fd, self._fd)

    def _send(self, lines: str, token: int) -> None:
        piece = lines.encode(errors="backslashreplace") + (MARK % token if token and self._has_marks else b"")
        while piece:
            piece = piece[os.write(self._own_fd, piece) :]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def reconfigure(self, **_options: object) -> None:
        """Do nothing: lines always go out at once, as UTF-8."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def buffer(self) -> BinaryIO:
        buffer: BinaryIO = self._beneath.buffer
        return buffer


def _identity_of(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:  # EBADF: a handler has closed it
        return None
    return found.st_dev, found.st_ino


def install(has_marks: bool) -> tuple[SharedOutput, SharedOutput]:
    """Put such streams in the place of sys.stdout and sys.stderr, also where logging writes to these."""
    out, err = SharedOutput(1, sys.stdout, has_marks), SharedOutput(2, sys.stderr, has_marks)
    replaced = {id(sys.stdout): out, id(sys.stderr): err}
    logging = sys.modules.get("logging")
    if logging is not None:
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
            ours = replaced.get(id(getattr(handler, "stream", None)))
            if ours is not None and isinstance(handler, logging.StreamHandler):
                handler.setStream(ours)
    sys.stdout, sys.stderr = out, err
    return out, err
