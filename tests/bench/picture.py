"""The picture of the README: what a job costs beside other queues. Pure: figures go in, SVG comes out."""

import html
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.bench.benchmark import Result
from tests.bench.figures import number, series
from tests.bench.report import NOTE
from tests.bench.rivals import FORKED, RATE, REUSED, SUM

NAMES = {
    REUSED: "Leasehold", FORKED: "Leasehold", "sidekiq": "Sidekiq", "taskiq": "taskiq", "huey": "Huey", "saq": "SAQ",
    "dramatiq": "Dramatiq", "rwq": "redis-work-queue", "celery": "Celery", "arq": "arq", "bullmq": "BullMQ",
    "tasktiger": "TaskTiger", "rq": "RQ",
}  # fmt: skip
PANELS = {
    "workers live on": tuple(name for name in NAMES if name not in (FORKED, "tasktiger", "rq")),
    "a fork per job": (FORKED, "tasktiger", "rq"),
}
COMMAND = "leasehold bench peers --peers DIR --python DIR/ours/bin/python --out report"
WIDTH, MARGIN, LINE, BAR = 760, 12, 22, 13
NAME_X, TIME_X, RATE_X, LONGEST = 140, 150, 470, 210
#: Grey that can be read on white and on black, better where the reader's preference is known. The reader's own font.
STYLE = """\
text { font: 12px sans-serif; fill: #4d5761 }
.head { font-weight: bold }
.small { font-size: 11px }
.name { text-anchor: end }
rect { fill: #98a3ae }
.ours { fill: #1f7a5c; font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #c3cad2 }
  rect { fill: #69737d }
  .ours { fill: #4cc38a }
}"""


class Row(NamedTuple):
    """One queue: processor time of a job in µs, and jobs per second."""

    name: str
    is_ours: bool
    is_disturbed: bool
    spent_us: float
    rate: float


def draw(header: Mapping[str, str], result: Result) -> str:
    """Draw the result of the benchmark `peers` as SVG."""
    lines: list[str] = []
    is_disturbed = False
    y = MARGIN + LINE
    for title, names in PANELS.items():
        rows = sorted(_rows(result, names), key=lambda row: row.spent_us)
        is_disturbed |= any(row.is_disturbed for row in rows)
        if rows:
            lines += _panel(title, rows, y)
            y += LINE * (len(rows) + 2)
    for text in _caption(header, is_disturbed):
        lines.append(_text(MARGIN, y - LINE // 2, text, "small"))
        y += LINE * 3 // 4
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}">',
            "<title>Processor time of a job, and jobs per second, beside other queues</title>",
            f"<style>\n{STYLE}\n</style>",
            *lines,
            "</svg>\n",
        ]
    )


def _rows(result: Result, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of measured peers, with the medians of the rounds."""
    for name in names:
        if spent_us := series(result.rounds, name, SUM):
            rate = statistics.median(series(result.rounds, name, RATE))
            is_disturbed = result.disturbed_rounds([name]) > 0
            yield Row(NAMES[name], name in (REUSED, FORKED), is_disturbed, statistics.median(spent_us), rate)


def _panel(title: str, rows: Sequence[Row], y: int) -> Iterator[str]:
    yield _text(NAME_X, y, title, "head name")
    yield _text(TIME_X, y, "processor time of a job, µs (less is better)", "head")
    yield _text(RATE_X, y, "jobs per second (more is better)", "head")
    for row in rows:
        y += LINE
        kind = "ours" if row.is_ours else ""
        yield _text(NAME_X, y, row.name + (" *" if row.is_disturbed else ""), f"name {kind}".strip())
        yield from _bar(TIME_X, y, row.spent_us, max(each.spent_us for each in rows), kind)
        yield from _bar(RATE_X, y, row.rate, max(each.rate for each in rows), kind)


def _bar(x: int, y: int, value: float, most: float, kind: str) -> Iterator[str]:
    length = max(1, round(value / most * LONGEST))
    yield f'<rect x="{x}" y="{y - BAR + 2}" width="{length}" height="{BAR}"{_class(kind)}/>'
    yield _text(x + length + 5, y, number(value), kind)


def _caption(header: Mapping[str, str], is_disturbed: bool) -> Iterator[str]:
    yield "Jobs that do nothing, two worker processes; the time is that of workers and server together."
    yield f"Medians; rounds: {header['rounds']}. To repeat it: {COMMAND}"
    if is_disturbed:
        yield "* Measured while other programs used the machine."
    processors = header["processors"].replace(", ", " processors, ", 1)
    code = header["code"].partition(",")[0]
    same = "" if header.get(NOTE) else " (Python peers too)"
    yield ", ".join((header["date"][:10], f"code {code}", header["interpreter"] + same, header["server"]))
    yield f"{processors}, {header['kernel']}"


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}"{_class(kind)}>{html.escape(text)}</text>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
