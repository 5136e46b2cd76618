"""Counts the local variables that live at once in each Lua function, and its outer names, from the bytecode of Lua 5.1.

`string.dump` makes the bytecode. Its numbers have the sizes and the order of a 64-bit machine.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00"
NIL, BOOLEAN, NUMBER, STRING = 0, 1, 3, 4
SIZES = {NIL: 0, BOOLEAN: 1, NUMBER: 8}


class Function(NamedTuple):
    """A function: the line where it begins, its most local variables at once, and the outer ones that it references."""

    line: int
    most_locals: int
    outer_names: int


class _Reader:
    def __init__(self, data: bytes) -> None:
        assert data.startswith(HEADER), data[: len(HEADER)]
        self._data, self._at = data, len(HEADER)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self) -> int:
        (value,) = struct.unpack("<i", self.take(4))
        return int(value)

    def skip_text(self) -> None:
        (size,) = struct.unpack("<Q", self.take(8))
        self.take(size)

    def skip_constant(self) -> None:
        kind = self.take(1)[0]
        if kind == STRING:
            self.skip_text()
        else:
            self.take(SIZES[kind])


def functions(data: bytes) -> list[Function]:
    """Return all functions of a chunk, the chunk itself among them."""
    return list(_functions(_Reader(data)))


def _functions(reader: _Reader) -> Iterator[Function]:
    reader.skip_text()  # the source
    line, _ = reader.integer(), reader.integer()
    outer_names, *_ = reader.take(4)
    reader.take(4 * reader.integer())  # the code
    for _ in range(reader.integer()):
        reader.skip_constant()
    for _ in range(reader.integer()):
        yield from _functions(reader)
    reader.take(4 * reader.integer())  # the lines
    lives = []
    for _ in range(reader.integer()):
        reader.skip_text()
        lives.append((reader.integer(), reader.integer()))
    for _ in range(reader.integer()):
        reader.skip_text()  # the outer names
    yield Function(line, _most_at_once(lives), outer_names)


def _most_at_once(lives: list[tuple[int, int]]) -> int:
    """Return how many of these spans share an instruction, at the most."""
    changes = sorted([(start, 1) for start, _ in lives] + [(end, -1) for _, end in lives])
    most = living = 0
    for _, change in changes:
        living += change
        most = max(most, living)
    return most
