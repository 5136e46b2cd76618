"""Marks the end of each job's output, and notices a job that has redirected it. Runs in children.

Owns the knowledge of where descriptors 1 and 2 led at first. The master reads what is printed.
"""

import os
import sys
from typing import Final

from supervisor.linux import kernel

#: Ends one job's output in a child that runs several: a record separator, the token, a newline.
MARK: Final = b"\x1e%d\n"


class Printing:
    def __init__(self) -> None:
        self._inodes = _inode_of(1), _inode_of(2)

    def end(self, token: int, must_mark: bool) -> bool:
        """Mark the end of this job's output. A failure (`must_mark`) has a mark even if its output was read already.

        Returns False if the job has redirected or closed its output: the next job would print into this one's file, or
        fail to print. Such a file gets no mark.
        """
        prints, complains = _inode_of(1) == self._inodes[0], _inode_of(2) == self._inodes[1]
        if prints:
            _mark(token, must_mark)
        return prints and complains and not (_is_closed(sys.stdout) or _is_closed(sys.stderr))


def _mark(token: int, in_any_case: bool) -> None:
    try:
        if in_any_case or kernel.unread_bytes(1):
            os.write(1, MARK % token)
    except OSError:
        return  # a hook of the handlers has redirected it to a file, where no reader tells jobs apart


def _is_closed(stream: object) -> bool:
    return getattr(stream, "closed", False)


def _inode_of(fd: int) -> int:
    """Return the inode of the file that `fd` leads to. 0: it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:  # EBADF: handlers and their hooks may close it
        return 0


def write_lines_at_once() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text streams on descriptors 1 and 2


def flush() -> None:
    """Write out what the streams still hold. A handler may have closed them, or have put anything in their place."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001  foreign code
            continue
