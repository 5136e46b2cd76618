"""The matrix is green only if each of its rows has run tests, and none has failed."""

import sys

import pytest

from tests.matrix import __main__ as matrix
from tests.matrix import fetching
from tests.matrix.rows import CROSS, ROWS, WITH_TLS

GOOD = matrix.Cell(passed=1, skipped=1)


@pytest.fixture
def exit_code(monkeypatch, tmp_path):
    """Run the matrix, of which each row gives what `end(row)` returns or raises. Return the exit code."""

    def run(end, *words):
        monkeypatch.setattr(fetching, "TOOLS", tmp_path)
        monkeypatch.setattr(matrix, "_run", lambda row, columns: [end(row) for _ in columns])
        monkeypatch.setattr(sys, "argv", ["matrix", *words])
        return matrix.main()

    return run


def not_had(row):
    raise fetching.NotHad("no network")


def test_rows_that_have_all_passed_are_green(exit_code):
    assert exit_code(lambda row: GOOD) == 0
    assert exit_code(lambda row: None if row.way != "alone" else GOOD, "--cross") == 0


@pytest.mark.parametrize("bad", [matrix.Cell(passed=9, failed=1), matrix.Cell(), matrix.Cell(skipped=3)])
def test_row_that_has_failed_or_run_no_test_fails_the_matrix(exit_code, bad):
    assert exit_code(lambda row: bad if row is ROWS[-1] else GOOD) == 1


def test_server_that_cannot_be_had_fails_the_matrix(exit_code, capsys):
    assert exit_code(not_had) == 1
    assert exit_code(lambda row: not_had(row) if row is ROWS[1] else GOOD) == 1
    said = capsys.readouterr().out.splitlines()
    assert f"{ROWS[1]!s:32} not run: no network" in said
    assert said[-1] == f"1 of {len(ROWS)} rows have failed or were not run"


def test_choice_without_a_row_fails_the_matrix(exit_code):
    assert exit_code(lambda row: GOOD, "--only", "nonsense") == 1


def test_cross_has_no_row_that_cannot_be():
    assert {row.server for row in CROSS if row.way == "tls"} == set(WITH_TLS)
