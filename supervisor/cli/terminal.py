"""What the commands write, in their own process: results to stdout, sentences to stderr. Must not log: that is ops."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson


def say(text: str) -> None:
    """A line of result."""
    sys.stdout.write(visible(text) + "\n")


def say_json(value: Any) -> None:
    """The result for a program: one line of JSON with sorted keys, so that it is the same each time."""
    sys.stdout.write(orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS).decode() + "\n")


def note(text: str) -> None:
    """A sentence for a person, beside the result."""
    sys.stderr.write(f"leasehold: {visible(text)}\n")
    sys.stderr.flush()


def visible(text: str) -> str:
    """The text without what would move a terminal's cursor, change its colours, or not be written at all."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings, numbers to the right, fitted to the terminal: drawn by rich if it is there, else plain."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    try:
        _rich_table(columns, cells, numeric)
    except ImportError:
        _plain_table(columns, cells, numeric)


def local_time(unix: float | None) -> str:
    """A moment in the local zone, to the second; a dash for none."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S") if unix else "-"


def counted(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _rich_table(columns: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        drawn.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(drawn)


def _plain_table(columns: Sequence[str], cells: list[list[str]], numeric: list[bool]) -> None:
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    while sum(widths) + 2 * (len(widths) - 1) > _columns() and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    for row in [list(columns), *cells]:
        parts = [_fitted(cell, width, right) for cell, width, right in zip(row, widths, numeric, strict=True)]
        say("  ".join(parts).rstrip())


def _columns() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


def _fitted(cell: str, width: int, right: bool) -> str:
    if len(cell) > width:
        cell = cell[: width - 1] + "…"
    return cell.rjust(width) if right else cell.ljust(width)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return visible(str(value)).replace("\n", " ")


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
