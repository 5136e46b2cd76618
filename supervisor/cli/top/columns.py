"""Columns of each pane of `leasehold top`: order, widths, and which are dropped first. Used in the command's process.

Must not know the rows: model.py has the values, and view.py draws them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.cli.top.model import Pane

_GAP: Final = 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column. It gets `width` cells, and spare room up to `most`.

    Where not all columns fit, the highest `falls` is dropped first; 0 never is. `right` aligns numbers.
    """

    name: str
    width: int
    falls: int = 0
    right: bool = True
    most: int = 0


def _words(name: str, width: int, falls: int = 0, most: int = 0) -> Column:
    return Column(name, width, falls, right=False, most=most)


COLUMNS: Final[Mapping[Pane, Sequence[Column]]] = {
    Pane.QUEUES: (
        _words("queue", 10, most=44), Column("waiting", 7), Column("oldest", 6, 1), Column("running", 7),
        Column("stalled", 7, 2), Column("scheduled", 9, 6), Column("depends", 7, 8), Column("parked", 6, 7),
        Column("failed", 6, 4), Column("in/s", 6, 3), Column("out/s", 6, 1), Column("wait", 6, 3), Column("run", 6, 5),
        _words("state", 6), _words("paused by", 20, 9, most=44),
    ),
    Pane.BATCHES: (
        _words("batch", 12, most=44), _words("state", 7), Column("jobs", 7), Column("pending", 7),
        Column("complete", 8, 3), Column("failed", 6), Column("cancelled", 9, 4),
        _words("description", 12, 2, most=60), _words("inside", 12, 5, most=44), _words("paused by", 20, 6, most=44),
    ),
    Pane.SUPERVISORS: (
        _words("supervisor", 16, most=44), _words("state", 19), Column("busy", 5), _words("", 12, 6),
        Column("jobs/s", 6, 2), Column("died", 5, 1), Column("memory", 7, 3), Column("up", 6, 2),
        Column("processes", 9, 5), _words("reload", 9, 7), _words("version", 8, 8), _words("sandbox", 8, 9, most=20),
    ),
    Pane.CHILDREN: (
        Column("child", 5, 4), Column("pid", 7), _words("state", 8, 3), _words("klass", 12, most=36),
        _words("jid", 22, 1, most=36), Column("runs", 6), Column("try", 3, 3), Column("memory", 7, 2),
        _words("ends", 8, 7, most=40),
    ),
    Pane.ENDS: (
        _words("at", 8, 2), _words("what", 8), _words("why", 12, most=20), _words("klass", 12, most=28),
        _words("jid", 22, 3, most=36), _words("queue", 10, 5, most=16), _words("message", 24, 4, most=1000),
        _words("worker", 24, 6, most=32),
    ),
}  # fmt: skip


def fitted(pane: Pane, width: int) -> list[tuple[Column, int]]:
    """Return the columns that fit, with their widths."""
    columns = list(COLUMNS[pane])
    while _taken(columns) > width and any(each.falls for each in columns):
        columns.remove(max(columns, key=lambda each: each.falls))
    widths = [each.width for each in columns]
    left = width - _taken(columns)
    while left > 0:
        growing = [at for at, each in enumerate(columns) if widths[at] < each.most]
        if not growing:
            break
        share = max(1, left // len(growing))
        for at in growing:
            more = min(share, columns[at].most - widths[at], left)
            widths[at] += more
            left -= more
    return list(zip(columns, widths, strict=True))


def _taken(columns: Sequence[Column]) -> int:
    return sum(each.width for each in columns) + _GAP * (len(columns) - 1)
