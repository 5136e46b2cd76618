"""What the master's listener asks its loop, and the answers. Runs in master, in two threads: one asks, one answers.

Owns all that both of them touch. Neither waits for the other here: each has a descriptor that is readable when the
other has said something. Must not know what an answer is made of.
"""

import contextlib
import os
from collections import deque
from typing import Any, Final

#: Of the listener: something that people should be told, in `detail`. Wants no answer.
COMPLAINT: Final = "complaint"


class Question:
    """One thing that is asked, by all who want to know it before it is answered."""

    __slots__ = ("answer", "answered", "asked_at", "detail", "taken", "what")

    def __init__(self, what: str, asked_at: float, detail: str = "") -> None:
        self.what = what
        self.asked_at = asked_at
        self.detail = detail
        self.taken = False  # the loop turns, and has seen it
        self.answered = False
        self.answer: Any = None


class Questions:
    """At most one of each kind is under way, so that whoever asks however often, a loop that stands still is left with
    no more than that.
    """

    def __init__(self) -> None:
        self._asked: deque[Question] = deque()  # append and popleft are atomic
        self._answered: deque[Question] = deque()
        self._open: dict[str, Question] = {}  # the asking thread's own
        self._asked_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._answered_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # the thread that asks

    def ask(self, what: str, now_at: float) -> Question:
        """The question of this kind that is under way, or a new one."""
        question = self._open.get(what)
        if question is None:
            question = self._open[what] = Question(what, now_at)
            self._put(question)
        return question

    def complain(self, message: str, now_at: float) -> None:
        """Have the loop, which owns the log, say something."""
        self._put(Question(COMPLAINT, now_at, message))

    def _put(self, question: Question) -> None:
        self._asked.append(question)
        os.eventfd_write(self._asked_fd, 1)

    @property
    def answered_fd(self) -> int:
        """Readable when there is something to collect."""
        return self._answered_fd

    def collect(self) -> None:
        """Forget what has been answered: whoever asks from now on asks anew."""
        _empty(self._answered_fd)
        while self._answered:
            self._open.pop(self._answered.popleft().what, None)

    def unheard_s(self, now_at: float) -> float:
        """For how long the loop has not even looked at what it is asked."""
        return now_at - min((each.asked_at for each in self._open.values() if not each.taken), default=now_at)

    def forgive(self, lost_s: float) -> None:
        """For so long nobody could have answered: the whole process was stopped."""
        for question in self._open.values():
            question.asked_at += lost_s

    # the loop

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._asked_fd

    def take(self) -> list[Question]:
        """All that was asked since the last call."""
        _empty(self._asked_fd)
        taken = []
        while self._asked:
            question = self._asked.popleft()
            question.taken = True
            taken.append(question)
        return taken

    def answer(self, question: Question, answer: Any) -> None:
        """Once for each that was taken; the loop must not touch `answer` any more."""
        question.answer, question.answered = answer, True
        self._answered.append(question)
        os.eventfd_write(self._answered_fd, 1)

    def close(self) -> None:
        """Once nobody asks any more."""
        os.close(self._asked_fd)
        os.close(self._answered_fd)


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # somebody was told twice
        os.eventfd_read(fd)
