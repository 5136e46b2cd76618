"""Tables fit any terminal, and are never cut in a pipe."""

import json
import os
import subprocess
import sys

import pytest

from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import _width, say_json, table
from tests.cli.lib.test_command_line import ROOT

JID = "fJ3vO0TvQ2-FbM3kzqYx0w"
QUEUES = ("queue", "waiting", "running", "stalled", "scheduled", "depends", "parked", "recurring", "paused")


@pytest.fixture
def drawn(monkeypatch, capsys):
    """Return the lines of a table on a terminal of so many columns, or in a pipe for None."""

    def draw(columns, heads, *rows, **environ):
        if columns is not None:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            monkeypatch.setenv("COLUMNS", str(columns))
        for name, value in {"TERM": "dumb", **environ}.items():
            monkeypatch.setenv(name, value)
        table(heads, rows)
        return capsys.readouterr().out.splitlines()

    return draw


def test_a_narrow_terminal_drops_empty_columns_and_cuts_no_number(drawn):
    queue = "a-queue-whose-name-is-as-long-as-names-may-be-which-is-64-bytes-"
    lines = drawn(80, QUEUES, (queue, 10_000, 2, 0, 0, 1, 0, 0, None), ("q", 0, 0, 0, 0, 0, 0, 0, None))
    assert [_width(line) for line in lines[:2]] == [80, 80] and max(map(_width, lines)) <= 80
    assert lines[0].split() == ["queue", "waiting", "running", "depends"]
    assert lines[2].endswith("…   10,000        2        1") and lines[3].endswith("       0        0        0")


def test_columns_are_dropped_only_without_room(drawn):
    assert drawn(120, QUEUES, ("q", 0, 0, 0, 0, 0, 0, 0, None))[0].split() == list(QUEUES)


def test_columns_that_name_a_job_are_cut_last(drawn):
    heads = ("jid", "klass", "queue", "priority", "put", "state")
    row = (JID, "module.that.is.long", "a-queue-of-a-name", 0, "5m10s ago", "failed: ValueError: " + "x" * 300)
    lines = drawn(80, heads, row)
    assert lines[2].startswith(f"{JID}  ") and _width(lines[2]) == 80 and lines[2].endswith("…")


def test_in_a_pipe_nothing_is_cut_or_padded(drawn):
    lines = drawn(None, ("jid", "message"), ("j" * 64, "x" * 5000 + "\nsecond"), ("b", "short"))
    assert lines == [f"jid{' ' * 63}message", f"{'j' * 64}  {'x' * 5000} second", f"b{' ' * 65}short"]


def test_a_tab_does_not_shift_columns(drawn):
    assert drawn(None, ("message", "klass"), ("a\tb", "x"))[1] == f"a b{' ' * 6}x"


def test_wide_and_zero_width_characters_stay_aligned(drawn):
    lines = drawn(40, ("queue", "jobs"), ("漢字漢字", 1), ("e\u0301te\u0301", 22), ("plain\x1b[31m", 333))
    assert {_width(line) for line in lines} == {_width("plain\\x1b[31m") + 2 + 4}
    cut = drawn(30, ("queue", "jobs"), ("漢字" * 20, 1))
    assert _width(cut[2]) == 30 and "…" in cut[2]


def test_headings_are_bold_unless_no_color_is_set(drawn):
    rows = ("tag", "jobs"), ("red", 1)
    assert drawn(80, *rows, TERM="xterm")[0] == "\x1b[1mtag  jobs\x1b[0m"
    assert drawn(80, *rows, TERM="xterm", NO_COLOR="1")[0] == "tag  jobs"
    assert drawn(80, *rows, TERM="dumb")[0] == "tag  jobs"


def test_characters_outside_the_encoding_are_escaped(server, namespace, jobs):
    jobs.queue("q").put("k", "漢", jid="j", tags=["é漢"])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LEASEHOLD_REDIS_URL": server.url, "PYTHONIOENCODING": "ascii"}
    for words, text in ((["tag"], b"\\xe9\\u6f22  "), (["job", "j"], b'"\\u6f22"'), (["tag", "nobody é"], b"\\xe9")):
        command = [sys.executable, "-m", "supervisor", *words, "--namespace", namespace]
        done = subprocess.run(command, env=environ, capture_output=True, timeout=60)
        assert text in done.stdout + done.stderr and b"internal error" not in done.stderr


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"), (0.00042, "0.42ms"), (0.35, "350ms"), (1, "1s"), (12.34, "12.3s"), (59.94, "59.9s"), (59.96, "1m"),
        (60, "1m"), (310, "5m10s"), (3600, "1h"), (7500, "2h5m"), (86400, "1d"), (273_600, "3d4h"), (1e7, "115d17h"),
    ],
)  # fmt: skip
def test_durations_have_the_units_of_flags(seconds, words):
    assert span(seconds) == words


def test_json_on_a_terminal_has_no_control_characters(monkeypatch, capsys):
    wicked = "\x9b31m \x7f \u202egnp.exe \U000e0041 é 😀"
    say_json({"message": wicked})
    assert wicked.partition(" ")[0] in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    say_json({"message": wicked})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable() and json.loads(line) == {"message": wicked} and "é 😀" in line
