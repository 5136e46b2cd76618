"""The line that says how far a command is: on a terminal only, and only for what takes its time."""

import sys

import pytest

from supervisor.cli.lib.progress import Progress


@pytest.fixture
def on_terminal(monkeypatch):
    """Makes a terminal of what stderr is by then, and one's progress on it."""

    def begin(total, patience_s=0.0):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        return Progress(total, patience_s)

    return begin


def test_nothing_is_drawn_where_nobody_looks(capsys):
    with Progress(10, patience_s=0) as progress:
        progress.show(5, "five")
    assert capsys.readouterr().err == ""


def test_what_is_over_soon_needs_no_bar(on_terminal, capsys):
    with on_terminal(10, 60) as progress:
        progress.show(5, "five")
        progress.show(10, "ten")
    assert capsys.readouterr().err == ""


def test_where_nobody_knows_how_much_there_is_it_is_one_plain_line(on_terminal, capsys):
    with on_terminal(None) as progress:
        progress.show(5, "five [jobs]\x1b[31m")
    assert capsys.readouterr().err == "\rfive [jobs]\\x1b[31m\x1b[K\n"


def test_without_rich_it_is_that_line_too(on_terminal, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with on_terminal(10) as progress:
        progress.show(5, "five")
    assert capsys.readouterr().err == "\rfive\x1b[K\n"


def test_with_rich_it_is_a_bar_that_ends_full(on_terminal, capsys):
    pytest.importorskip("rich")
    with on_terminal(10) as progress:
        progress.show(5, "five [jobs]")
        progress.show(10, "all ten")
    said = capsys.readouterr().err
    assert "five [jobs]" in said and "all ten" in said
