"""The layout of `leasehold top`: lines of text from the model, for a width and a height. Runs in the command's process.

Must not do I/O, nor decide what is wrong: model.py does.
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
from supervisor.cli.top.controller import Controller, TextPage
from supervisor.cli.top.model import LATE_S, Model, Pane, Row, Tone, Totals, is_number, number
from supervisor.cli.top.troubles import Complaint, troubles
from supervisor.ops.visible import visible

STYLES: Final = {Tone.PLAIN: "", Tone.QUIET: "dim", Tone.NOTICE: "yellow", Tone.ALARM: "bold red"}
#: Panes that are dropped first where not all fit. The chosen one stays.
_FALLING: Final = (Pane.ENDS, Pane.CHILDREN, Pane.BATCHES, Pane.QUEUES)
#: A pane with fewer rows is not worth its headings.
_LEAST_ROWS: Final = 2
_BAR: Final = 10
_DETAIL: Final = 12
#: From this height on the head shows why jobs have failed and died.
_TALL: Final = 30
_MOST_REASONS: Final = 4
_SPARKS: Final = 24
#: The last time that a clock can show, in the year 3058.
_LAST_UNIX: Final = 2**35
_HINTS: Final = (
    "? keys", "q quit", "d drain", "+ - scale", "p pause", "c cancel", "s stacks", "r reload", "f filter", "Tab pane",
    "space freeze", "o job", "g failed groups",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters that are drawn beside words and numbers."""

    rule: str
    chosen_rule: str
    chosen: str
    full: str
    empty: str
    more: str
    sparks: str


UNICODE: Final = Glyphs("─", "━", "▸", "█", "░", "…", "▁▂▃▄▅▆▇█")
ASCII: Final = Glyphs("-", "=", ">", "#", ".", "~", "")


@dataclass(frozen=True, slots=True)
class Context:
    """The namespace that is shown, and the time."""

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
    def __init__(self, model: Model, controller: Controller, glyphs: Glyphs) -> None:
        self._model = model
        self._controller = controller
        self._glyphs = glyphs

    def screen(self, context: Context, width: int, height: int) -> Screen:
        """Return the screen for a terminal of this size."""
        head = self._head(context, width, height >= _TALL)
        page, queues = self._controller.page, list[str]()
        if page is None and (wrong := troubles(self._model)):
            head.append(_worst(wrong, width, self._glyphs))
        room = height - len(head) - 1
        if page is not None:
            body = self._page(page, width, room)
        else:
            body = []
            for pane, count in self._rooms(room).items():
                rows = self._window(pane, count)
                body += [
                    self._rule(pane, len(rows), width),
                    *self._table(pane, rows, width, self._controller.row(pane)),
                ]
                queues += [row.key for row in rows] if pane is Pane.QUEUES else []
        body += [Text()] * (room - len(body))
        lines = [*head, *body[: max(0, room)], self._foot(width)][:height]
        for line in lines:
            line.truncate(width)
        return Screen(lines, queues)

    def sheet(self, context: Context, width: int) -> list[Text]:
        """Return everything as one listing, for output that cannot be redrawn."""
        lines = self._head(context, width, whole=True)
        if wrong := troubles(self._model):
            lines += [Text(), Text("wrong"), *(Text(f"  {_one_line(each.words)}", STYLES[each.tone]) for each in wrong)]
        for pane in self._controller.panes:
            if pane is Pane.CHILDREN:
                continue
            lines += [Text(), Text(pane.value), *self._table(pane, self._controller.rows(pane), width)]
            if pane is Pane.SUPERVISORS:
                for row in self._controller.rows(pane):
                    children = self._model.rows(Pane.CHILDREN, row.key)
                    if children:
                        lines += [Text(), Text(f"children of {row.key}")]
                        lines += self._table(Pane.CHILDREN, children, width)
        return lines

    # the head

    def _head(self, context: Context, width: int, whole: bool) -> list[Text]:
        head = self._model.head()
        lines = [self._first(context, head, width), self._figures(head, width)]
        return [*lines, self._reasons(head, width)] if whole else lines

    def _first(self, context: Context, head: Totals, width: int) -> Text:
        left = [(0, Text("leasehold", "bold")), (0, Text(visible(context.namespace)))]
        trouble = self._trouble(context)
        if trouble is not None:
            left.append((0, trouble))
        else:
            answers = "" if head.exchange_ms is None else f", answers in {head.exchange_ms:.3g} ms"
            left += [(2, Text(visible(context.url), "dim")), (1, Text(visible(head.server or "") + answers, "dim"))]
        right = Text(context.clock)
        if self._controller.frozen:
            right = Text.assemble(("frozen", "yellow"), "  ", context.clock)
        line = _joined(left, width - cell_len(right.plain) - 2)
        line.truncate(max(0, width - cell_len(right.plain) - 2), pad=True)
        return Text.assemble(line, "  ", right)

    def _trouble(self, context: Context) -> Text | None:
        model = self._model
        if model.lost_since_at is not None:
            what = "Redis is away" if model.why_lost.is_away else "Redis refuses"
            lost_s = context.now_at - model.lost_since_at
            return Text(f"{what} since {_span(round(lost_s))}: {_one_line(model.why_lost.why)}", STYLES[Tone.ALARM])
        snapshot = model.snapshot
        if snapshot is None or self._controller.frozen or context.now_at - snapshot.at < 3 * context.every_s + 2:
            return None
        return Text(f"no answer from Redis for {_span(round(context.now_at - snapshot.at))}", STYLES[Tone.NOTICE])

    def _figures(self, head: Totals, width: int) -> Text:
        supervisors = f"{head.supervisors} supervisor{'' if head.supervisors == 1 else 's'}"
        parts: list[tuple[int, Text]] = [(4, Text(supervisors))]
        if head.silent:
            parts.append((0, Text(f"{head.silent} silent", STYLES[Tone.ALARM])))
        parts.append((0, Text(f"{head.busy}/{head.processes} busy")))
        parts.append((5, Text(self._bar(head.busy, head.processes))))
        parts.append((0, Text(f"{_rate(head.completed_per_s)} jobs/s")))
        if self._glyphs.sparks and len(head.rates) > 1:
            parts.append((6, Text(_sparks(head.rates[-_SPARKS:], self._glyphs.sparks), "dim")))
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

    def _reasons(self, head: Totals, width: int) -> Text:
        """Return the main reasons of failures and deaths so far."""
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
        return self._glyphs.full * full + self._glyphs.empty * (_BAR - full)

    # panes

    def _rooms(self, room: int) -> dict[Pane, int]:
        """Return the visible panes, and the rows that each gets."""
        wanted = {pane: max(1, len(self._controller.rows(pane))) for pane in self._controller.panes}
        for pane in _FALLING:
            least = sum(2 + min(count, _LEAST_ROWS) for count in wanted.values())
            if least > room and pane is not self._controller.pane:
                wanted.pop(pane, None)
        rooms = {pane: min(count, _LEAST_ROWS) for pane, count in wanted.items()}
        left = room - sum(2 + count for count in rooms.values())
        while left > 0 and rooms != wanted:
            for pane, count in wanted.items():
                if rooms[pane] < count and left > 0:
                    rooms[pane] += 1
                    left -= 1
        return rooms

    def _window(self, pane: Pane, count: int) -> list[Row]:
        """Return the rows that fit, with the chosen one in the middle."""
        rows = self._controller.rows(pane)
        chosen = self._controller.row(pane)
        at = next((at for at, row in enumerate(rows) if chosen is not None and row.key == chosen.key), 0)
        first = max(0, min(at - count // 2, len(rows) - count))
        return rows[first : first + count]

    def _rule(self, pane: Pane, shown: int, width: int) -> Text:
        controller, glyphs = self._controller, self._glyphs
        is_chosen = pane is controller.pane
        title = pane.value
        if pane is Pane.CHILDREN and controller.worker:
            title += f" of {visible(controller.worker)}"
        total = len(controller.rows(pane))
        if shown < total:
            title += f", {shown} of {_count(total)}"
        text = controller.filters[pane]
        if text or (is_chosen and controller.typing is not None):
            title += f", only: {visible(text)}" + ("_" if is_chosen and controller.typing is not None else "")
        title = _cut(title, max(0, width - 6), glyphs)
        rule, styles = (glyphs.chosen_rule, ("", "bold")) if is_chosen else (glyphs.rule, ("dim", ""))
        line = Text.assemble((f"{rule * 2} ", styles[0]), (title, styles[1]), " ")
        return line.append(rule * max(0, width - cell_len(line.plain)), styles[0])

    def _table(self, pane: Pane, rows: Sequence[Row], width: int, chosen: Row | None = None) -> list[Text]:
        columns = fitted(pane, width - 2)
        heads = [_aligned(column.name, column, size, self._glyphs) for column, size in columns]
        lines = [Text("  " + " ".join(heads).rstrip(), "dim")]
        if not rows:
            return [*lines, Text(f"  {self._nothing(pane)}", "dim")]
        return lines + [self._line(pane, row, columns, chosen is not None and row.key == chosen.key) for row in rows]

    def _line(self, pane: Pane, row: Row, columns: Sequence[tuple[Column, int]], is_chosen: bool) -> Text:
        cells = self._cells(pane, row)
        line = Text(f"{self._glyphs.chosen} " if is_chosen and pane is not Pane.ENDS else "  ")
        for at, (column, size) in enumerate(columns):
            text = _aligned(cells.get(column.name, ""), column, size, self._glyphs)
            tone = row.tones.get(column.name, Tone.PLAIN) if text.strip() else Tone.PLAIN
            quiet = "dim" if text.strip() in ("0", "-") else ""
            line.append((" " if at else "") + text, STYLES[tone] or quiet)
        if is_chosen and pane is self._controller.pane:
            line.stylize("reverse")
        return line

    def _nothing(self, pane: Pane) -> str:
        if self._controller.filters[pane]:
            return "nothing contains that; Escape shows all"
        match pane:
            case Pane.QUEUES:
                return "no job was ever put here"
            case Pane.BATCHES:
                return "none that has not ended"
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
            case Pane.BATCHES:
                return {name: _plain_cell(value) for name, value in values.items()}
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

    def _page(self, page: TextPage, width: int, room: int) -> list[Text]:
        # The keys scroll these lines.
        page.lines = _wrapped(page.text, width - 4) if page.row is None else self._details(page.row, width - 4)
        shown = page.lines[page.first :][: max(0, room - 1)]
        words = visible(page.title if page.row is None else _title(*page.row))
        if len(shown) < len(page.lines):
            words += f", lines {page.first + 1:,} to {page.first + len(shown):,} of {len(page.lines):,}"
        title = Text.assemble((f"{self._glyphs.rule * 2} ", "dim"), (words, "bold"), " ")
        title.append(self._glyphs.rule * max(0, width - cell_len(title.plain)), "dim")
        return [title, *(Text(f"  {_one_line(line)}") for line in shown)]

    def _details(self, row: tuple[Pane, Row], width: int) -> list[str]:
        """Return all values of a row, also those that its line cuts or drops."""
        cells = self._cells(*row)
        lines = []
        for column in COLUMNS[row[0]]:
            words = textwrap.wrap(cells.get(column.name, ""), max(10, width - _DETAIL)) if column.name else []
            heads = [column.name] + [""] * (len(words) - 1)
            lines += [f"{head.ljust(_DETAIL)}{line}" for head, line in zip(heads, words, strict=False)]
        return lines

    def _foot(self, width: int) -> Text:
        controller = self._controller
        if controller.confirmation is not None:
            return Text(f"{_cut(_one_line(controller.confirmation.text), width - 4, self._glyphs)} y/n", "bold")
        if controller.typing is not None:
            return Text(f"only what contains: {visible(controller.typing)}_   Enter: done, Escape: all")
        if controller.page is not None:
            return Text("Escape or q goes back", "dim")
        text, tone = controller.said
        if text:
            return Text(_one_line(text), STYLES[tone])
        return _joined([(at, Text(hint, "dim")) for at, hint in enumerate(_HINTS)], width)


def _worst(found: Sequence[Complaint], width: int, glyphs: Glyphs) -> Text:
    """Return the worst trouble, and how many more there are."""
    more = f"   w: {len(found) - 1:,} more" if len(found) > 1 else ""
    worst = _cut(_one_line(found[0].words), max(0, width - cell_len(more)), glyphs)
    return Text.assemble((worst, STYLES[found[0].tone]), (more, "dim"))


def _wrapped(text: Sequence[str], width: int) -> list[str]:
    """Wrap lines. Continuations keep an indent: the end of a stack's line, the function, says most."""
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


def _queue_cell(name: str, value: Any) -> str:
    if name in ("oldest", "wait", "run"):
        return _span(value)
    if name in ("in/s", "out/s"):
        return _rate(value)
    return _plain_cell(value)


def _plain_cell(value: Any) -> str:
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
    """Return 12,345; from a million on three digits with a unit."""
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
    """Return a duration in two digits, enough for a value that changes every second."""
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


def _cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Cut a text to `width` cells. A wide character takes two."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + glyphs.more if width > 0 else ""


def _aligned(text: str, column: Column, width: int, glyphs: Glyphs) -> str:
    text = _cut(text, width, glyphs)
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.right else text + blanks


def _joined(parts: Sequence[tuple[int, Text]], width: int) -> Text:
    """Join parts by three blanks. Where they do not fit, the highest number is dropped first."""
    left = [part for part in parts if part[1].plain]
    while sum(cell_len(text.plain) for _, text in left) + 3 * (len(left) - 1) > width:
        last = max(left, key=lambda part: part[0])
        if not last[0]:
            break
        left.remove(last)
    return Text("   ").join(text for _, text in left)


def _sparks(rates: Sequence[float], glyphs: str) -> str:
    most = max(rates)
    return "".join(
        glyphs[min(len(glyphs) - 1, int(rate / most * len(glyphs)))] if most else glyphs[0] for rate in rates
    )
