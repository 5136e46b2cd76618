"""Writes rows as CSV. Runs in the web server's process."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from supervisor.web.packing import packed

#: A spreadsheet takes a cell that begins with one of these for a formula, and would run it.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with a line of headings. Values that are no single value are written as JSON."""
    rows = list(rows)
    heads = list(dict.fromkeys(name for row in rows for name in row))
    return csv_lines(heads, [dict(zip(heads, heads, strict=True)), *rows])


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return lines of a table, without headings."""
    text = io.StringIO()
    csv.writer(text).writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = value if isinstance(value, str) else packed(value).decode()
    return f"'{text}" if text.startswith(_FORMULA) else text
