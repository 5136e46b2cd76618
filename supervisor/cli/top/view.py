"""How `leasehold top` looks: lines of text of the model, for a width and a height. Runs in the command's process.

Must not do I/O, and must not decide what is wrong: that is model.py.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import local_time
from supervisor.cli.top.columns import COLUMNS, Column, fitted
from supervisor.cli.top.desk import Desk, Page
from supervisor.cli.top.model import LATE_S, Head, Model, Pane, Row, Tone, is_number, number
from supervisor.ops.visible import visible

STYLES: Final = {Tone.PLAIN: "", Tone.QUIET: "dim", Tone.NOTICE: "yellow", Tone.ALARM: "bold red"}
#: Where the panes do not all fit these fall away first, but for the one that is chosen.
_FALLING: Final = (Pane.ENDS, Pane.CHILDREN, Pane.QUEUES)
#: Lines of a pane, so that it is worth its headings.
_LEAST_ROWS: Final = 2
_BAR: Final = 10
_DETAIL: Final = 12
#: From so many lines on the head says why jobs have failed and died.
_TALL: Final = 30
_MOST_REASONS: Final = 4
_SPARKS: Final = 24
#: Of clocks that can be drawn; in the year 3058.
_LAST_UNIX: Final = 2**35
_HINTS: Final = (
    "? keys", "q quit", "d drain", "+ - scale", "p pause", "c cancel", "s stacks", "r reload", "f filter", "Tab pane",
    "space freeze",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Marks:
    """What is drawn beside words and numbers."""

    rule: str
    chosen_rule: str
    chosen: str
    full: str
    empty: str
    more: str
    sparks: str


UNICODE: Final = Marks("─", "━", "▸", "█", "░", "…", "▁▂▃▄▅▆▇█")
ASCII: Final = Marks("-", "=", ">", "#", ".", "~", "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is looked at, and when."""

    namespace: str
    url: str
    clock: str
    now_at: float
    every_s: float


@dataclass(frozen=True, slots=True)
class Screen:
    """The lines, and the queues whose rows are among them."""

    lines: list[Text]
    queues: list[str]


class View:
    def __init__(self, model: Model, desk: Desk, marks: Marks) -> None:
        self._model = model
        self._desk = desk
        self._marks = marks

    def screen(self, place: Place, width: int, height: int) -> Screen:
        """As it is on a terminal of this size."""
        head = self._head(place, width, height >= _TALL)
        room = height - len(head) - 1
        page, queues = self._desk.page, list[str]()
        if page is not None:
            body = self._page(page, width, room)
        else:
            body = []
            for pane, count in self._rooms(room).items():
                rows = self._window(pane, count)
                body += [self._rule(pane, len(rows), width), *self._table(pane, rows, width, self._desk.row(pane))]
                queues += [row.key for row in rows] if pane is Pane.QUEUES else []
        body += [Text()] * (room - len(body))
        lines = [*head, *body[: max(0, room)], self._foot(width)][:height]
        for line in lines:
            line.truncate(width)
        return Screen(lines, queues)

    def sheet(self, place: Place, width: int) -> list[Text]:
        """All of it on end, for where nothing can be drawn twice."""
        lines = self._head(place, width, whole=True)
        for pane in (Pane.QUEUES, Pane.SUPERVISORS, Pane.ENDS):
            lines += [Text(), Text(pane.value), *self._table(pane, self._desk.rows(pane), width)]
            if pane is Pane.SUPERVISORS:
                for row in self._desk.rows(pane):
                    children = self._model.rows(Pane.CHILDREN, row.key)
                    if children:
                        lines += [Text(), Text(f"children of {row.key}")]
                        lines += self._table(Pane.CHILDREN, children, width)
        return lines

    # the head

    def _head(self, place: Place, width: int, whole: bool) -> list[Text]:
        head = self._model.head()
        lines = [self._first(place, head, width), self._figures(head, width)]
        return [*lines, self._reasons(head, width)] if whole else lines

    def _first(self, place: Place, head: Head, width: int) -> Text:
        left = [(0, Text("leasehold", "bold")), (0, Text(visible(place.namespace)))]
        trouble = self._trouble(place)
        if trouble is not None:
            left.append((0, trouble))
        else:
            left += [(2, Text(visible(place.url), "dim")), (1, Text(visible(head.server or ""), "dim"))]
        right = Text(place.clock)
        if self._desk.frozen:
            right = Text.assemble(("frozen", "yellow"), "  ", place.clock)
        line = _joined(left, width - cell_len(right.plain) - 2)
        line.truncate(max(0, width - cell_len(right.plain) - 2), pad=True)
        return Text.assemble(line, "  ", right)

    def _trouble(self, place: Place) -> Text | None:
        model = self._model
        if model.lost_since_at is not None:
            what = "Redis is away" if model.why_lost.is_away else "Redis refuses"
            lost_s = place.now_at - model.lost_since_at
            return Text(f"{what} since {_span(round(lost_s))}: {_one_line(model.why_lost.why)}", STYLES[Tone.ALARM])
        look = model.look
        if look is None or self._desk.frozen or place.now_at - look.at < 3 * place.every_s + 2:
            return None
        return Text(f"no answer from Redis for {_span(round(place.now_at - look.at))}", STYLES[Tone.NOTICE])

    def _figures(self, head: Head, width: int) -> Text:
        supervisors = f"{head.supervisors} supervisor{'' if head.supervisors == 1 else 's'}"
        parts: list[tuple[int, Text]] = [(4, Text(supervisors))]
        if head.silent:
            parts.append((0, Text(f"{head.silent} silent", STYLES[Tone.ALARM])))
        parts.append((0, Text(f"{head.busy}/{head.processes} busy")))
        parts.append((5, Text(self._bar(head.busy, head.processes))))
        parts.append((0, Text(f"{_rate(head.completed_per_s)} jobs/s")))
        if self._marks.sparks and len(head.rates) > 1:
            parts.append((6, Text(_sparks(head.rates[-_SPARKS:], self._marks.sparks), "dim")))
        parts += [
            (3, Text(f"{_rate(head.failed_per_s)} failed/s", STYLES[Tone.ALARM if head.failed_per_s else Tone.QUIET])),
            (5, Text(f"{_rate(head.died_per_s)} died/s", STYLES[Tone.ALARM if head.died_per_s else Tone.QUIET])),
            (1, Text(f"{_count(head.waiting)} waiting")),
        ]
        if head.oldest_s is not None:
            late = Tone.NOTICE if head.oldest_s >= LATE_S else Tone.PLAIN
            parts.append((2, Text(f"oldest {_span(head.oldest_s)}", STYLES[late])))
        if head.stalled:
            parts.append((0, Text(f"{_count(head.stalled)} stalled", STYLES[Tone.ALARM])))
        return _joined(parts, width)

    def _reasons(self, head: Head, width: int) -> Text:
        """Of what has failed and died, so far."""
        parts = [
            Text(f"{_count(sum(count for _, count in counts))} {what}: {_most_of(counts)}", "dim")
            for what, counts in (("failed", head.groups), ("died", head.deaths))
            if counts
        ]
        return _joined([(at, part) for at, part in enumerate(parts)] or [(0, Text("no failed jobs", "dim"))], width)

    def _bar(self, some: float, of: float) -> str:
        if not of:
            return ""
        full = max(0, min(_BAR, round(_BAR * some / of)))
        return self._marks.full * full + self._marks.empty * (_BAR - full)

    # panes

    def _rooms(self, room: int) -> dict[Pane, int]:
        """Which panes there are, and how many rows each of them has."""
        wanted = {pane: max(1, len(self._desk.rows(pane))) for pane in Pane}
        for pane in _FALLING:
            least = sum(2 + min(count, _LEAST_ROWS) for count in wanted.values())
            if least > room and pane is not self._desk.pane:
                del wanted[pane]
        rooms = {pane: min(count, _LEAST_ROWS) for pane, count in wanted.items()}
        left = room - sum(2 + count for count in rooms.values())
        while left > 0 and rooms != wanted:
            for pane, count in wanted.items():
                if rooms[pane] < count and left > 0:
                    rooms[pane] += 1
                    left -= 1
        return rooms

    def _window(self, pane: Pane, count: int) -> list[Row]:
        """The rows that fit, with the chosen one in their middle where there are more."""
        rows = self._desk.rows(pane)
        chosen = self._desk.row(pane)
        at = next((at for at, row in enumerate(rows) if chosen is not None and row.key == chosen.key), 0)
        first = max(0, min(at - count // 2, len(rows) - count))
        return rows[first : first + count]

    def _rule(self, pane: Pane, shown: int, width: int) -> Text:
        desk, marks = self._desk, self._marks
        is_chosen = pane is desk.pane
        title = pane.value
        if pane is Pane.CHILDREN and desk.worker:
            title += f" of {visible(desk.worker)}"
        total = len(desk.rows(pane))
        if shown < total:
            title += f", {shown} of {_count(total)}"
        text = desk.filters[pane]
        if text or (is_chosen and desk.typing is not None):
            title += f", only: {visible(text)}" + ("_" if is_chosen and desk.typing is not None else "")
        title = _cut(title, max(0, width - 6), marks)
        rule, styles = (marks.chosen_rule, ("", "bold")) if is_chosen else (marks.rule, ("dim", ""))
        line = Text.assemble((f"{rule * 2} ", styles[0]), (title, styles[1]), " ")
        return line.append(rule * max(0, width - cell_len(line.plain)), styles[0])

    def _table(self, pane: Pane, rows: Sequence[Row], width: int, chosen: Row | None = None) -> list[Text]:
        columns = fitted(pane, width - 2)
        heads = [_aligned(column.name, column, size, self._marks) for column, size in columns]
        lines = [Text("  " + " ".join(heads).rstrip(), "dim")]
        if not rows:
            return [*lines, Text(f"  {self._nothing(pane)}", "dim")]
        return lines + [self._line(pane, row, columns, chosen is not None and row.key == chosen.key) for row in rows]

    def _line(self, pane: Pane, row: Row, columns: Sequence[tuple[Column, int]], is_chosen: bool) -> Text:
        cells = self._cells(pane, row)
        line = Text(f"{self._marks.chosen} " if is_chosen and pane is not Pane.ENDS else "  ")
        for at, (column, size) in enumerate(columns):
            text = _aligned(cells.get(column.name, ""), column, size, self._marks)
            tone = row.tones.get(column.name, Tone.PLAIN) if text.strip() else Tone.PLAIN
            quiet = "dim" if text.strip() in ("0", "-") else ""
            line.append((" " if at else "") + text, STYLES[tone] or quiet)
        if is_chosen and pane is self._desk.pane:
            line.stylize("reverse")
        return line

    def _nothing(self, pane: Pane) -> str:
        if self._desk.filters[pane]:
            return "nothing contains that; Escape shows all"
        match pane:
            case Pane.QUEUES:
                return "no job was ever put here"
            case Pane.SUPERVISORS:
                return "no supervisor is running here"
            case Pane.CHILDREN:
                return "none"
            case Pane.ENDS:
                return "none that did not complete"

    def _cells(self, pane: Pane, row: Row) -> Mapping[str, str]:
        values = row.values
        match pane:
            case Pane.QUEUES:
                return {name: _queue_cell(name, value) for name, value in values.items()}
            case Pane.SUPERVISORS:
                left = "" if values["left"] is None else f" {_span(values['left'])}"
                return {
                    **{name: _word(value) for name, value in values.items()},
                    "state": f"{_word(values['state'])}{left}",
                    "busy": _busy(values), "": self._bar(number(values["busy"]), values["most"]),
                    "jobs/s": _rate(values["jobs/s"]), "died": _number(values["died"]),
                    "memory": _size(values["memory"]), "up": _span(values["up"]),
                }  # fmt: skip
            case Pane.CHILDREN:
                return {
                    **{name: _word(value) for name, value in values.items()},
                    "runs": _span(values["runs"]), "try": _word(values["attempt"]), "memory": _size(values["memory"]),
                }  # fmt: skip
            case Pane.ENDS:
                return {**{name: _word(value) for name, value in values.items()}, "at": _clock(values["at"])}

    # the rest

    def _page(self, page: Page, width: int, room: int) -> list[Text]:
        # By these keys turn it.
        page.lines = _wrapped(page.text, width - 4) if page.row is None else self._details(page.row, width - 4)
        shown = page.lines[page.first :][: max(0, room - 1)]
        words = visible(page.title if page.row is None else _title(*page.row))
        if len(shown) < len(page.lines):
            words += f", lines {page.first + 1:,} to {page.first + len(shown):,} of {len(page.lines):,}"
        title = Text.assemble((f"{self._marks.rule * 2} ", "dim"), (words, "bold"), " ")
        title.append(self._marks.rule * max(0, width - cell_len(title.plain)), "dim")
        return [title, *(Text(f"  {_one_line(line)}") for line in shown)]

    def _details(self, row: tuple[Pane, Row], width: int) -> list[str]:
        """All of a row, also what is cut or has fallen away from its line."""
        cells = self._cells(*row)
        lines = []
        for column in COLUMNS[row[0]]:
            words = textwrap.wrap(cells.get(column.name, ""), max(10, width - _DETAIL)) if column.name else []
            heads = [column.name] + [""] * (len(words) - 1)
            lines += [f"{head.ljust(_DETAIL)}{line}" for head, line in zip(heads, words, strict=False)]
        return lines

    def _foot(self, width: int) -> Text:
        desk = self._desk
        if desk.question is not None:
            return Text(f"{_cut(_one_line(desk.question.text), width - 4, self._marks)} y/n", "bold")
        if desk.typing is not None:
            return Text(f"only what contains: {visible(desk.typing)}_   Enter: done, Escape: all")
        if desk.page is not None:
            return Text("Escape or q goes back", "dim")
        text, tone = desk.said
        if text:
            return Text(_one_line(text), STYLES[tone])
        return _joined([(at, Text(hint, "dim")) for at, hint in enumerate(_HINTS)], width)


def _wrapped(text: Sequence[str], width: int) -> list[str]:
    """Of a stack the end of a line says most: the function."""
    lines, width = [], max(20, width)
    for line in text:
        margin = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
        lines += textwrap.wrap(line, width, subsequent_indent=margin, drop_whitespace=False) or [""]
    return lines


def _title(pane: Pane, row: Row) -> str:
    """Return the title of a row's page."""
    if pane is Pane.ENDS:
        return f"{pane.value}: {row.values['jid']} at {_clock(row.values['at'])}"
    return f"{pane.value}: {row.key}"


# Cells.


def _queue_cell(name: str, value: Any) -> str:
    if name in ("oldest", "wait", "run"):
        return _span(value)
    if name in ("in/s", "out/s"):
        return _rate(value)
    return _number(value) if isinstance(value, int) else _word(value)


def _busy(values: Mapping[str, Any]) -> str:
    if values["busy"] is None:
        return "-"
    return f"{values['busy']}/{values['most']}" if values["most"] else _number(values["busy"])


def _word(value: Any) -> str:
    return "" if value is None else _one_line(str(value))


def _number(value: Any) -> str:
    return _count(value) if is_number(value) else "-"


def _count(value: float) -> str:
    """12,345; from a million on three digits of it."""
    for least, unit in ((1e9, "G"), (1e6, "M")):
        if value >= least:
            return f"{value / least:.3g}{unit}" if value < 1000 * least else f"{value / least:,.0f}{unit}"
    return f"{value:,.0f}"


def _most_of(counts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{_word(what)} {_count(count)}" for what, count in counts[:_MOST_REASONS])


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return "-"
    if per_s < 0.05:
        return "0"
    return f"{per_s:.1f}" if per_s < 10 else _count(per_s)


def _span(seconds: Any) -> str:
    """Two digits are enough for what changes every second."""
    if not is_number(seconds):
        return "-"
    return span(float(f"{seconds:.2g}") if seconds < 60 else seconds)


def _clock(unix: Any) -> str:
    return local_time(unix)[11:19] if is_number(unix) and 0 < unix < _LAST_UNIX else "-"


def _size(size_bytes: Any) -> str:
    if not is_number(size_bytes):
        return "-"
    for least, unit in ((2**30, "GB"), (2**20, "MB"), (2**10, "KB")):
        if size_bytes >= least:
            amount = size_bytes / least
            return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"
    return f"{size_bytes:.0f}"


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()) if "\n" in text or "\t" in text else text)


def _cut(text: str, width: int, marks: Marks) -> str:
    """At most so many cells, of which a wide character takes two."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + marks.more if width > 0 else ""


def _aligned(text: str, column: Column, width: int, marks: Marks) -> str:
    text = _cut(text, width, marks)
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.right else text + blanks


def _joined(parts: Sequence[tuple[int, Text]], width: int) -> Text:
    """Three blanks between parts; the highest number falls away first where they do not fit."""
    left = [part for part in parts if part[1].plain]
    while sum(cell_len(text.plain) for _, text in left) + 3 * (len(left) - 1) > width:
        last = max(left, key=lambda part: part[0])
        if not last[0]:
            break
        left.remove(last)
    return Text("   ").join(text for _, text in left)


def _sparks(rates: Sequence[float], marks: str) -> str:
    most = max(rates)
    return "".join(marks[min(len(marks) - 1, int(rate / most * len(marks)))] if most else marks[0] for rate in rates)
