"""Draws the course of a period as paths of SVG, one panel for each kind of figure. Runs in the web server's process.

The panels share one time axis. They have no text inside, because they are stretched to the width of the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.cli.lib.shown import span

WIDTH, HEIGHT = 600, 56
_STEP_S: Final = {"hour": 60, "day": 600, "month": 86400}
_STEP_WORDS: Final = {"hour": "a minute", "day": "ten minutes", "month": "a day"}
_KINDS: Final = ("deploy", "scale", "death")

Row = Mapping[str, Any]
#: The begin and the end of a part of the period, and its value; None: there is none.
Part = tuple[float, float, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `name` is also its class in the style sheet, `most` its greatest value in words, if any."""

    name: str
    path: str
    most: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A drawing of one or two figures."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Chart:
    """All panels, the path of the marks of each kind, and the times below: of the begin, the middle and the end."""

    panels: Sequence[Panel]
    marks: Mapping[str, str]
    times_unix: Sequence[float]


def chart(over: str, course: Sequence[Row], latencies: Sequence[Row], marks: Iterable[Row]) -> Chart:
    """Return the drawing of what the overview has read."""
    step_s = _STEP_S[over]
    begin = course[0]["since_unix"]
    axis = _Axis(begin, course[-1]["since_unix"] + step_s)

    def of_course(name: str) -> list[Part]:
        return [(each["since_unix"], each["since_unix"] + step_s, each[name]) for each in course]

    def of_latencies(kind: str, name: str) -> list[Part]:
        return [(each["since_unix"], each["until_unix"], each[kind][name]) for each in latencies]

    panels = [
        axis.bars(f"Jobs in {_STEP_WORDS[over]}", _number, started=of_course("started"), failed=of_course("failures")),
        axis.steps("Waiting jobs", _number, waiting=of_course("waiting")),
        axis.steps("How long jobs waited", span, p50=of_latencies("wait", "p50"), p95=of_latencies("wait", "p95")),
        axis.steps("How long jobs ran", span, p50=of_latencies("run", "p50"), p95=of_latencies("run", "p95")),
    ]
    ticks = {kind: axis.ticks(each["at_unix"] for each in marks if each["kind"] == kind) for kind in _KINDS}
    return Chart(panels, ticks, (axis.begin, (axis.begin + axis.end) / 2, axis.end))


class _Axis:
    """The time axis."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end

    def bars(self, title: str, words: Callable[[float], str], **figures: Sequence[Part]) -> Panel:
        """Return bars from the bottom, the later figure before the earlier one."""
        return self._panel(title, words, figures, self._bars)

    def steps(self, title: str, words: Callable[[float], str], **figures: Sequence[Part]) -> Panel:
        """Return lines that are level for each part."""
        return self._panel(title, words, figures, self._levels)

    def ticks(self, times_unix: Iterable[float]) -> str:
        """Return lines from top to bottom."""
        return "".join(f"M{x:.1f} 0V{HEIGHT}" for x in sorted({self._x(each) for each in times_unix}))

    def _panel(
        self,
        title: str,
        words: Callable[[float], str],
        figures: Mapping[str, Sequence[Part]],
        draw: Callable[[Sequence[Part], float], Iterator[str]],
    ) -> Panel:
        values = {name: [value for _, _, value in parts if value is not None] for name, parts in figures.items()}
        most = max((value for found in values.values() for value in found), default=0) or 1
        lines = [
            Line(name, "".join(draw(parts, most)), words(max(values[name])) if values[name] else "")
            for name, parts in figures.items()
        ]
        return Panel(title, lines)

    def _bars(self, parts: Sequence[Part], most: float) -> Iterator[str]:
        for begin, end, value in parts:
            if value:
                left, right = self._x(begin), self._x(end)
                yield f"M{left:.1f} {HEIGHT}V{_y(value, most)}H{max(right - 1, left + 0.5):.1f}V{HEIGHT}z"

    def _levels(self, parts: Sequence[Part], most: float) -> Iterator[str]:
        drawn_until = None
        for begin, end, value in parts:
            if value is None:
                continue
            left, right, y = self._x(begin), self._x(end), _y(value, most)
            yield f"V{y}H{right:.1f}" if drawn_until == begin else f"M{left:.1f} {y}H{right:.1f}"
            drawn_until = end

    def _x(self, unix: float) -> float:
        share = (unix - self.begin) / (self.end - self.begin)
        return round(WIDTH * min(max(share, 0.0), 1.0), 1)


def _y(value: float, most: float) -> str:
    """Return how far from the top a value lies; the line of the greatest one is not cut."""
    return f"{HEIGHT - 1 - (HEIGHT - 2) * value / most:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
