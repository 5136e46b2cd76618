"""Renders templates. Runs in the web server's process.

Every value is escaped: names, outputs and failures come from anybody who can put a job. Must not mark any as safe.
"""

import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
import orjson

from supervisor import clock
from supervisor.cli.lib.shown import option_words, span
from supervisor.cli.top.model import is_number
from supervisor.units import megabytes
from supervisor.web.chart import chart
from supervisor.web.packing import packed

#: A text of this length is cut on pages. The API has all of it.
_MOST_CHARS: Final = 65_536


@cache
def environment() -> jinja2.Environment:
    """Return all templates, compiled, with the filters that they use."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("supervisor.web"),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,  # statuses and histories may be of another version
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "span": _span,
        "ago": _ago,
        "moment": _moment,
        "count": _count,
        "rate": _rate,
        "memory": _memory,
        "pretty": _pretty,
        "points": _points,
        "clock": _clock,
        "json": _json,
        "option": option_words,
        "dedent": textwrap.dedent,
    }
    made.globals |= {"query": _query, "chart": chart}
    for name in made.list_templates(extensions=["html"]):
        made.get_template(name)  # compiled now, which takes longer than most pages
    return made


def _query(parameters: Mapping[str, Any]) -> str:
    """Return the query of a link. As keywords, names from a request would clash with those that Jinja adds to calls."""
    return urlencode({name: value for name, value in parameters.items() if value not in (None, "")}, quote_via=quote)


def _span(seconds: Any) -> str:
    return span(seconds) if is_number(seconds) else ""


def _count(value: Any) -> Any:
    return f"{value:,}" if is_number(value) else value


def _rate(per_s: Any) -> str:
    return "" if not is_number(per_s) else f"{per_s:,.1f}" if per_s < 100 else f"{per_s:,.0f}"


def _memory(size_bytes: Any) -> str:
    return megabytes(int(size_bytes)) if is_number(size_bytes) and size_bytes else ""


def _moment(unix: Any) -> str:
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (TypeError, ValueError, OverflowError, OSError):  # another program may have written any number
        return ""


def _clock(unix: Any) -> str:
    """Return a time of the day; midnight is told by its day."""
    words = _moment(unix)
    return words[5:10] if words.endswith("00:00:00") else words[11:16]


def _ago(unix: Any) -> str:
    if not is_number(unix):
        return ""
    seconds = clock.unix() - unix
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def _pretty(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…\n({len(text):,} characters; the API has all)"


def _json(value: Any) -> str:
    """Return all of a value, to be edited."""
    return packed(value, orjson.OPT_INDENT_2).decode()


def _points(rates: list[float]) -> str:
    """Return the points of a line in a box of 120 by 32, the latest at its right edge."""
    most = max(rates, default=0) or 1
    first_x = 120 - len(rates) + 1
    return " ".join(f"{first_x + x},{31 - 30 * rate / most:.1f}" for x, rate in enumerate(rates))
