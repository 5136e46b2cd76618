"""Recorded screens of `leasehold top` from made-up snapshots. TEST_RECORD=1 records them anew."""

import os
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("rich")

from rich.cells import cell_len

from supervisor.cli.top.model import NoSnapshot, Pane
from supervisor.cli.top.terminal import drawn
from supervisor.cli.top.view import ASCII, UNICODE
from tests.cli.top.parts import NOW_AT, Shown, batch, busy_shop, child, counts, end, model_of, snapshot, stats, status

SCREENS = Path(__file__).parent / "screens"


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def is_as_recorded(name, text):
    path = SCREENS / f"{name}.txt"
    if os.environ.get("TEST_RECORD"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_a_busy_shop_looks_as_recorded(width, height):
    is_as_recorded(f"busy-{width}x{height}", Shown(busy_shop()).text(width, height))


def test_an_empty_namespace_looks_as_recorded():
    is_as_recorded("empty-80x24", Shown(model_of(snapshot())).text(80, 24))


def test_the_keys_look_as_recorded():
    shown = Shown(busy_shop())
    shown.press("?")
    is_as_recorded("keys-80x24", shown.text(80, 24))


def test_all_on_end_looks_as_recorded():
    shown = Shown(busy_shop())
    is_as_recorded("sheet", "".join(f"{line.plain.rstrip()}\n" for line in shown.view.sheet(shown.context, 160)))


def test_without_unicode_all_marks_are_ascii():
    shown = Shown(busy_shop(), ASCII)
    for size in ((80, 24), (200, 60)):
        assert shown.text(*size).isascii()


@pytest.mark.parametrize("width", [1, 7, 40, 80, 133, 300])
@pytest.mark.parametrize("height", [1, 2, 5, 9, 14, 24, 70])
def test_every_size_is_filled_and_never_exceeded(width, height):
    shown = Shown(busy_shop())
    for key in ("", "d", "n", "?", "escape", "f", "x"):
        shown.press(*([key] if key else []))
        lines = shown.lines(width, height)
        assert max(cell_len(line) for line in lines) <= width


def test_wide_and_hostile_names_keep_columns_and_are_escaped():
    names = ["注文処理キュー" * 4, "\x1b[31mred\x07", "a\nb", "😀" * 40, "é" * 60]
    queues = {name: counts(1) for name in names}
    shown = Shown(
        model_of(snapshot(queues=queues, supervisors={"w\x1b]0;t\x07": status(children=[child(1, "k\x1b[2J")])}))
    )
    shown.controller.pane = Pane.QUEUES
    lines = shown.lines(80, 40)
    heads, *rows = lines[4:10]
    ends_at = heads.index("waiting") + len("waiting")
    assert [cell_len(line.partition(" 1 ")[0]) + 2 for line in rows] == [ends_at] * 5
    assert all(cell_len(line) <= 80 for line in lines)
    assert "\x1b" not in shown.text(80, 40) and "\x07" not in shown.text(80, 40)


def test_panes_are_dropped_in_order_except_the_chosen_one():
    shown = Shown(busy_shop())

    def panes(height):
        text = shown.text(100, height)
        return [pane.value for pane in Pane if re.search(f"(──|━━) {pane.value}", text)]

    assert panes(24) == ["queues", "supervisors", "children", "ends"]
    assert panes(16) == ["queues", "supervisors", "children"]
    assert panes(12) == ["queues", "supervisors"]
    assert panes(8) == ["supervisors"]
    shown.controller.pane = Pane.ENDS
    assert panes(12) == ["supervisors", "ends"]


def test_batches_fit_a_terminal_of_80_columns():
    records = [
        batch("import-7", total=1_000_000, pending=999_998, complete=1, failed=1, description="July " * 30),
        batch("b" * 64, total=3, pending=3, paused_by="kim@web-1", parent="import-7"),
    ]
    shown = Shown(model_of(snapshot(batches=records)))
    lines = shown.lines(80, 24)
    assert all(cell_len(line) <= 80 for line in lines)
    [heads] = [line.split() for line in lines if "pending" in line]
    assert heads == ["batch", "state", "jobs", "pending", "complete", "failed", "cancelled", "description"]
    [first] = [line.split()[2:8] for line in lines if "import-7" in line]
    assert first == ["running", "1M", "999,998", "1", "1", "0"]
    assert any("paused" in line for line in lines)
    assert "paused by" in shown.text(200, 24) and "kim@web-1" in shown.text(200, 24)
    assert "batches" not in Shown(model_of(snapshot())).text(80, 24)


def test_columns_are_dropped_in_order_on_a_narrow_terminal():
    shown = Shown(busy_shop())

    def heads(width):
        lines = shown.lines(width, 40)
        return next(line for line in lines if line.startswith("  queue ")).split()

    assert heads(200) == [
        "queue", "waiting", "oldest", "running", "stalled", "scheduled", "depends", "parked", "failed", "in/s", "out/s",
        "wait", "run", "state", "paused", "by",
    ]  # fmt: skip
    fallen = []
    for width in range(200, 40, -1):
        fallen += sorted(set(heads(200)) - set(heads(width)) - set(fallen))
    assert fallen == [
        "by", "paused", "depends", "parked", "scheduled", "run", "failed", "in/s", "wait", "stalled", "oldest", "out/s",
    ]  # fmt: skip


def test_colour_is_only_where_something_is_wrong():
    shown = Shown(busy_shop())
    shown.controller.pane = Pane.ENDS
    colours = ("yellow", "bold red")

    def wrong(containing):
        return {text: style for text, style in shown.styles(containing).items() if style in colours}

    assert wrong("▸ emails") == {"4m10s": "yellow"}
    assert wrong("  images") == {"2": "bold red"}
    assert wrong("  payments") == {"10": "yellow"}
    assert wrong("  reports") == {"2h1m": "yellow", "paused": "yellow"}
    assert wrong("  web-2") == {"draining 22s": "yellow", "failed": "bold red"}
    assert wrong("  web-3") == {"no answer 6s": "bold red"}
    assert wrong("died     SIGSEGV") == {"died": "bold red"}
    assert wrong("  2    4002") == {"3": "yellow"}
    assert wrong("  3    4003") == {}


def test_a_quiet_pool_has_no_colour_at_all():
    model = model_of(
        *(
            snapshot(
                NOW_AT - ago,
                queues={"emails": counts(3, 1, oldest_s=1.0)},
                stats={"emails": stats("emails", 100 - ago, 0.1, 0.1)},
                supervisors={"w-1": status(children=[child(1, "email.send", 1.0), child(2)], completed=100 - ago)},
            )
            for ago in (5, 0)
        )
    )
    lines = Shown(model).view.screen(Shown(model).context, 200, 30).lines
    assert {str(span.style) for line in lines for span in line.spans} <= {"", "dim", "bold", "reverse"}


def test_colours_depend_on_the_terminal(monkeypatch):
    lines = Shown(busy_shop()).view.screen(Shown(busy_shop()).context, 120, 40).lines
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in drawn(lines, 120)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in drawn(lines, 120) and "31m" not in drawn(lines, 120)


def test_the_last_screen_stays_during_an_outage():
    model = busy_shop()
    before = Shown(model).lines()
    lost = NoSnapshot("Redis at redis:6379 cannot be reached:\nconnection refused", is_away=True)
    model.poll_failed(NOW_AT - 3.8, lost)
    model.poll_failed(NOW_AT - 1.0, lost)
    first, *others = Shown(model).lines()
    assert first.startswith(
        "leasehold   shop   Redis is away since 4s: Redis at redis:6379 cannot be reached: connection"
    )
    assert first.endswith("03:12:07")
    assert others == before[1:]
    model.poll_failed(NOW_AT, NoSnapshot("NOPERM", is_away=False))
    assert "Redis refuses since 4s: NOPERM" in Shown(model).text()
    model.take(snapshot(NOW_AT + 1))
    assert "away" not in Shown(model).text()


def test_a_hanging_poll_is_reported_before_its_failure():
    assert "no answer from Redis for 9s" in Shown(busy_shop(), after_s=9.0).text()
    assert "no answer from Redis" not in Shown(busy_shop(), after_s=2.0).text()


def test_rows_around_the_chosen_one_are_shown():
    queues = {f"queue-{number:03}": counts(1) for number in range(200)}
    shown = Shown(model_of(snapshot(queues=queues)))
    shown.controller.pane = Pane.QUEUES
    shown.press(*["down"] * 100)
    text = shown.text(80, 24)
    assert "▸ queue-100" in text and "  queue-000" not in text
    assert "queues, 9 of 200" in text
    shown.press("end")
    assert "▸ queue-199" in shown.text(80, 24)
    assert shown.view.screen(shown.context, 80, 24).queues[-1] == "queue-199"


def test_an_end_whose_words_are_long_is_cut_at_the_edge():
    model = model_of(snapshot(supervisors={"w-1": status(ends=[end("failed", "ValueError", "k", 1, "x" * 500)])}))
    (line,) = [line for line in Shown(model).lines(120) if "ValueError" in line]
    assert line.endswith("…") and cell_len(line) <= 120


def test_the_chosen_pane_is_known_without_colour():
    for glyphs, rule in ((UNICODE, "━━"), (ASCII, "==")):
        shown = Shown(busy_shop(), glyphs)
        for pane in Pane:
            shown.controller.pane = pane
            assert [line.split()[1] for line in shown.lines() if line.startswith(rule)] == [pane.value]
