"""Tells apart what jobs of a shared child print. Runs in shared children.

Each line goes out at once, with the mark of the job whose code has printed it. What C code and other programs print
has no mark, so the master knows only the child.
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

    def __init__(self, fd: int, beneath: Any) -> None:
        """`beneath`: the stream in whose place it is. Bytes go to its buffer, and have no mark."""
        self._fd = fd
        self._beneath = beneath
        self._open: dict[int, str] = {}  # unfinished lines, by the token of their job; 0: of no job

    def write(self, text: str) -> int:
        run = current.get()
        token = 0 if run is None else run.job.token
        lines, newline, rest = (self._open.pop(token, "") + text).rpartition("\n")
        if len(rest) > _LONGEST_CHARS:
            lines, rest = lines + newline + rest, ""
        if rest:
            self._open[token] = rest
        if lines or newline:
            self._send(lines + "\n", token)
        return len(text)

    def end(self, token: int) -> None:
        """The job has ended: its unfinished line goes out."""
        if (rest := self._open.pop(token, "")) != "":
            self._send(rest + "\n", token)

    def _send(self, lines: str, token: int) -> None:
        piece = lines.encode(errors="backslashreplace") + (MARK % token if token else b"")
        while piece:
            piece = piece[os.write(self._fd, piece) :]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

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


def install() -> tuple[SharedOutput, SharedOutput]:
    """Put such streams in the place of sys.stdout and sys.stderr, also where logging writes to these."""
    replaced = {id(sys.stdout): SharedOutput(1, sys.stdout), id(sys.stderr): SharedOutput(2, sys.stderr)}
    out, err = replaced[id(sys.stdout)], replaced[id(sys.stderr)]
    logging = sys.modules.get("logging")
    if logging is not None:
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
            ours = replaced.get(id(getattr(handler, "stream", None)))
            if ours is not None and isinstance(handler, logging.StreamHandler):
                handler.setStream(ours)
    sys.stdout, sys.stderr = out, err
    return out, err
