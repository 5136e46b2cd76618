"""Writes results to stdout and sentences to stderr. Runs in the command's process. Must not log: `ops` does that."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from unicodedata import combining, east_asian_width

import orjson

from supervisor.ops.visible import visible, visible_json

GAP: Final = 2  # columns between two cells
LEAST: Final = 8  # texts are cut to no less than this
NOTHING: Final = ("-", "0", "")


def say(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(visible(text) + "\n")


def say_json(value: Any) -> None:
    """Print the result as one line of JSON. Sorted keys make the output reproducible."""
    line = orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS).decode()
    sys.stdout.write(f"{visible_json(line) if sys.stdout.isatty() else line}\n")


def note(text: str) -> None:
    """Print a sentence for a person to stderr."""
    sys.stderr.write(f"leasehold: {visible(text)}\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings, numbers aligned right. A terminal cuts them to its width; elsewhere nothing is cut."""
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    numeric = [len(cells) > 1 and all(_is_number(row[i]) for row in cells[1:]) for i in range(len(columns))]
    if not sys.stdout.isatty():
        _draw(cells, numeric, _widths(cells))
        return
    room = shutil.get_terminal_size().columns
    kept = _that_fit(cells, room)
    cells, numeric = [[row[i] for i in kept] for row in cells], [numeric[i] for i in kept]
    widths = _fitted(_widths(cells), cells[0], numeric, room)
    if not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb":
        _draw(cells[:1], numeric, widths, "\x1b[1m{}\x1b[0m\n")
    else:
        _draw(cells[:1], numeric, widths)
    say("─" * min(sum(widths) + GAP * (len(widths) - 1), room))
    _draw(cells[1:], numeric, widths)


def local_time(unix: float | None) -> str:
    """Format a time in the local zone, to the second, with the zone's name. A dash stands for none."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if unix else "-"


def counted(number: int, noun: str) -> str:
    """Return, for example, `1 job` or `2 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(_width(row[i]) for row in cells) for i in range(len(cells[0]))]


def _that_fit(cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the columns to show. While they do not fit, empty columns are dropped from the right."""
    widths = _widths(cells)
    kept = list(range(len(widths)))
    for i in reversed(range(1, len(widths))):
        if sum(widths[k] + GAP for k in kept) - GAP > room and all(row[i] in NOTHING for row in cells[1:]):
            kept.remove(i)
    return kept


def _fitted(widths: list[int], heads: Sequence[str], numeric: Sequence[bool], room: int) -> list[int]:
    """Return the widths after cutting texts to the room. Names are cut last, numbers never."""
    names = [i for i, head in enumerate(heads) if i == 0 or head == "jid"]
    texts = [i for i in range(len(heads)) if i not in names and not numeric[i]]
    for columns, least in ((texts, LEAST), (names, 2 * LEAST)):
        while columns and sum(widths) + GAP * (len(widths) - 1) > room:
            widest = max(columns, key=lambda i: widths[i])
            if widths[widest] <= least:
                break
            widths[widest] -= 1
    return widths


def _draw(rows: Iterable[Sequence[str]], numeric: Sequence[bool], widths: Sequence[int], form: str = "{}\n") -> None:
    for row in rows:
        parts = [_part(cell, width, right) for cell, width, right in zip(row, widths, numeric, strict=True)]
        sys.stdout.write(form.format((" " * GAP).join(parts).rstrip()))


def _part(cell: str, width: int, right: bool) -> str:
    if _width(cell) > width:
        while _width(cell) >= width:
            cell = cell[:-1]
        cell += "…"
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _width(text: str) -> int:
    """Return the cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in "WF" else 0 if combining(c) else 1 for c in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return visible(str(value)).replace("\n", " ").replace("\t", " ")


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
