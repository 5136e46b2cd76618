"""The progress of a command: on a terminal only, and only for long runs."""

import sys

import pytest

from supervisor.cli.lib.progress import ProgressLine


@pytest.fixture
def on_terminal(monkeypatch):
    """Make stderr a terminal, and return a progress on it."""

    def begin(total, patience_s=0.0):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        return ProgressLine(total, patience_s)

    return begin


def test_progress_is_not_drawn_without_a_terminal(capsys):
    with ProgressLine(10, patience_s=0) as progress:
        progress.show(5, "five")
    assert capsys.readouterr().err == ""


def test_a_short_run_draws_nothing(on_terminal, capsys):
    with on_terminal(10, 60) as progress:
        progress.show(5, "five")
        progress.show(10, "ten")
    assert capsys.readouterr().err == ""


def test_an_unknown_total_is_a_plain_line(on_terminal, capsys):
    with on_terminal(None) as progress:
        progress.show(5, "five [jobs]\x1b[31m")
    assert capsys.readouterr().err == "\rfive [jobs]\\x1b[31m\x1b[K\n"


def test_progress_without_rich_is_one_line(on_terminal, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with on_terminal(10) as progress:
        progress.show(5, "five")
    assert capsys.readouterr().err == "\rfive\x1b[K\n"


def test_progress_with_rich_is_a_bar_that_ends_full(on_terminal, capsys):
    pytest.importorskip("rich")
    with on_terminal(10) as progress:
        progress.show(5, "five [jobs]")
        progress.show(10, "all ten")
    said = capsys.readouterr().err
    assert "five [jobs]" in said and "all ten" in said
