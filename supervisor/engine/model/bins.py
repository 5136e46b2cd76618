"""Reads the counters of `bins:` and `recent:`: how many times of jobs fell into each bin. Runs in every process that
speaks to Redis.

Must not do I/O. include/bins.lua counts. A bin lies in one cell of a histogram, so a histogram follows from bins.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

_S, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
#: Where the cells of a histogram begin, in ms: seconds, minutes, quarters of an hour, hours, days.
_CELLS: Final = (
    *range(0, _MINUTE, _S), *range(_MINUTE, _HOUR, _MINUTE), *range(_HOUR, _DAY, _HOUR // 4),
    *range(_DAY, 3 * _DAY, _HOUR), *range(3 * _DAY, 31 * _DAY, _DAY),
)  # fmt: skip
#: Where the bins begin, in ms: four for each doubling below a second; quarters of the first seconds and minutes.
BINS: Final[tuple[int, ...]] = (
    0, 1, 2, 3, *(part * 2**octave for octave in range(8) for part in range(4, 8)),
    *range(_S, 4 * _S, _S // 4), *range(4 * _S, _MINUTE, _S),
    *range(_MINUTE, 4 * _MINUTE, _MINUTE // 4), *_CELLS[_CELLS.index(4 * _MINUTE) :],
)  # fmt: skip
#: The cell of each bin.
_CELL_OF: Final = tuple(bisect_right(_CELLS, least) - 1 for least in BINS)
_COUNTERS: Final = 1 + 2 * len(BINS)


def parse_counters(raw: Iterable[bytes]) -> Sequence[int]:
    """Add up the counters of some keys: the failures, then waits and runs of each bin, as far as there are any."""
    unpacked = (struct.unpack_from(f">{min(len(text) // 4, _COUNTERS)}I", text) for text in raw)
    return [sum(each) for each in zip_longest(*unpacked, fillvalue=0)]


def add_counters(raws: Iterable[bytes | None]) -> bytes | None:
    """Add up the counters of some keys into those of one."""
    counters = parse_counters(filter(None, raws))
    return struct.pack(f">{len(counters)}I", *(min(number, 2**32 - 1) for number in counters)) if counters else None


def waits_in(counters: Sequence[int]) -> Sequence[int]:
    """Return the number of waits in each bin, as far as there are any."""
    return counters[1::2]


def runs_in(counters: Sequence[int]) -> Sequence[int]:
    """Return the number of runs in each bin, as far as there are any."""
    return counters[2::2]


def histogram(bins: Sequence[int]) -> list[int]:
    """Return the numbers of times in the cells of a histogram."""
    cells = [0] * len(_CELLS)
    for bin_number, times in enumerate(bins):
        cells[_CELL_OF[bin_number]] += times
    return cells


def percentile_s(bins: Sequence[int], share: float) -> float | None:
    """Return the time in seconds within which this share of all times lies; None if there are none.

    The times of a bin count as spread evenly over it.
    """
    wanted = share * sum(bins)
    for bin_number, times in enumerate(bins):
        if times and times >= wanted:
            least = BINS[bin_number]
            end = BINS[bin_number + 1] if bin_number + 1 < len(BINS) else least + _DAY
            return (least + (end - least) * wanted / times) / 1000
        wanted -= times
    return None
