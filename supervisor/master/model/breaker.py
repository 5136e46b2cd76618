"""Counts failures in a row: how long to wait after each, and when to give up. Runs in the master. No I/O, no clock."""

from typing import Final

#: This many failures in a row are no accident.
MOST: Final = 6
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 10.0


class Breaker:
    def __init__(self) -> None:
        self.in_a_row = 0

    def fail(self) -> float:
        """Count one more failure. Return the seconds to wait before the next try."""
        self.in_a_row += 1
        return backoff_s(self.in_a_row)

    def succeed(self) -> None:
        self.in_a_row = 0

    @property
    def in_words(self) -> str:
        """The number of failures, to be appended to the message of the last one."""
        return f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""

    @property
    def broken(self) -> bool:
        return self.in_a_row >= MOST


def backoff_s(times: int) -> float:
    """0.1 s after the first failure, doubled with each, at most 10 s."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(times - 1, 10))
