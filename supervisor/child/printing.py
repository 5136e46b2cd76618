"""Where a child prints: which job's words those are, and whether a job has left it as it was. Runs in children.

Owns nothing but the knowledge of where descriptors 1 and 2 led at first; what is printed the master reads.
"""

import os
import select
import sys
from typing import Final

from supervisor.linux import kernel

#: Ends what one job printed in the output of a child that runs several. A record separator, the token, a newline.
MARK: Final = b"\x1e%d\n"


class Printing:
    def __init__(self) -> None:
        self._leads = _Leads()

    def end(self, token: int, is_to_be_marked: bool) -> bool:
        """Say where this job's output ends: a failure (`is_to_be_marked`) keeps its last lines, whoever has read them.
        A file that it has put in place of its output is its own.

        Answers whether the job has left its output as it was: the next job's words would go into a file of this one's,
        or raise an error in it.
        """
        prints, complains = self._leads.as_before()
        if prints:
            _mark(token, is_to_be_marked)
        return prints and complains and not (_is_closed(sys.stdout) or _is_closed(sys.stderr))


def _mark(token: int, in_any_case: bool) -> None:
    try:
        if in_any_case or kernel.unread_bytes(1):
            os.write(1, MARK % token)
    except OSError:
        return  # where a hook of the handlers has it lead: nothing there is to be told apart


def _is_closed(stream: object) -> bool:
    return getattr(stream, "closed", False)


class _Leads:
    """Where descriptors 1 and 2 lead. An epoll knows its descriptors by number and open file: it does not find one that
    leads elsewhere, and says so in a third of the time that a look at the file takes.
    """

    def __init__(self) -> None:
        self._first = _number_of(1), _number_of(2)
        self._epoll = select.epoll()
        try:
            self._epoll.register(1, 0)
            self._epoll.register(2, 0)
        except OSError:  # EBADF: closed; EPERM: no file to wait for. A hook of the handlers has made it so
            self._epoll.close()

    def as_before(self) -> tuple[bool, bool]:
        """Whether each of them leads where it led."""
        try:
            self._epoll.modify(1, 0)
            self._epoll.modify(2, 0)
        except (OSError, ValueError):  # EBADF: closed; ENOENT, EPERM: it leads elsewhere; ValueError: nothing to ask
            return _number_of(1) == self._first[0], _number_of(2) == self._first[1]
        return True, True


def _number_of(fd: int) -> int:
    """Of the file that it leads to; 0: it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:  # EBADF: a hook of the handlers, or a handler, may close what it likes
        return 0


def write_lines_at_once() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text streams on descriptors 1 and 2


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a handler has closed it: nothing is left to flush
