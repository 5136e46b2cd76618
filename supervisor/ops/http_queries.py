"""Queries of the HTTP thread to the master's loop, and the answers. Runs in the master, in two threads.

Owns all that both threads touch. Neither waits for the other here: each has a descriptor that becomes readable. Must
not know the content of an answer.
"""

import contextlib
import os
from collections import deque
from typing import Any, Final

#: A problem that the HTTP thread reports for the log, in `detail`. Has no answer.
COMPLAINT: Final = "complaint"


class HttpQuery:
    """One query, shared by all clients that ask the same before it is answered."""

    __slots__ = ("answer", "answered", "asked_at", "detail", "taken", "what")

    def __init__(self, what: str, asked_at: float, detail: str = "") -> None:
        self.what = what
        self.asked_at = asked_at
        self.detail = detail
        self.taken = False  # the loop turns, and has seen it
        self.answered = False
        self.answer: Any = None


class HttpQueries:
    """At most one open query of each kind, so that many clients cannot burden a loop that stands still."""

    def __init__(self) -> None:
        self._asked: deque[HttpQuery] = deque()  # append and popleft are atomic
        self._answered: deque[HttpQuery] = deque()
        self._open: dict[str, HttpQuery] = {}  # touched by the asking thread alone
        self._asked_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._answered_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # the thread that asks

    def ask(self, what: str, now_at: float) -> HttpQuery:
        """Return the open query of this kind, or a new one."""
        query = self._open.get(what)
        if query is None:
            query = self._open[what] = HttpQuery(what, now_at)
            self._put(query)
        return query

    def complain(self, message: str, now_at: float) -> None:
        """Have the loop, which owns the log, report a problem."""
        self._put(HttpQuery(COMPLAINT, now_at, message))

    def _put(self, query: HttpQuery) -> None:
        self._asked.append(query)
        os.eventfd_write(self._asked_fd, 1)

    @property
    def answered_fd(self) -> int:
        """Readable when there is something to collect."""
        return self._answered_fd

    def collect(self) -> None:
        """Forget the answered queries, so that later clients ask anew."""
        _empty(self._answered_fd)
        while self._answered:
            self._open.pop(self._answered.popleft().what, None)

    def unheard_s(self, now_at: float) -> float:
        """Return for how long the loop has not taken the oldest query."""
        return now_at - min((each.asked_at for each in self._open.values() if not each.taken), default=now_at)

    def forgive(self, lost_s: float) -> None:
        """Do not count a time in which the whole process was stopped."""
        for query in self._open.values():
            query.asked_at += lost_s

    # the loop

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._asked_fd

    def take(self) -> list[HttpQuery]:
        """Return all queries since the last call."""
        _empty(self._asked_fd)
        taken = []
        while self._asked:
            query = self._asked.popleft()
            query.taken = True
            taken.append(query)
        return taken

    def answer(self, query: HttpQuery, answer: Any) -> None:
        """Answer a query once. The loop must not touch `answer` afterwards."""
        query.answer, query.answered = answer, True
        self._answered.append(query)
        os.eventfd_write(self._answered_fd, 1)

    def close(self) -> None:
        """Close the descriptors, after the last query."""
        os.close(self._asked_fd)
        os.close(self._answered_fd)


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # the other end was notified twice
        os.eventfd_read(fd)
