"""Runs the matrix of `tests/matrix/rows.py` and prints a table: `python -m tests.matrix [--cross] [--only TEXT]`.

The output of the tests lies in `.tools/matrix/*.log`. Exits 1 if a test has failed, or if a row has run none, also
because its server could not be had.
"""

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as Xml
from dataclasses import dataclass
from pathlib import Path

from tests.matrix import fetching
from tests.matrix.rows import COLUMNS, CROSS, ROWS, Row


@dataclass(frozen=True)
class Cell:
    """The results of the tests of one column in one row."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        more = f", {self.failed} FAILED" if self.failed else ""
        return f"{self.passed}{more}" + (f" ({self.skipped})" if self.skipped else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--cross", action="store_true", help="each server in each way")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--columns", default=",".join(COLUMNS), help=f"some of {', '.join(COLUMNS)}")
    given = parser.parse_args()
    columns = given.columns.split(",")
    fetching.TOOLS.mkdir(parents=True, exist_ok=True)
    rows = [row for row in (CROSS if given.cross else ROWS) if given.only in str(row)]
    lines, failed = [], []
    for row in rows:
        try:
            cells = _run(row, columns)
        except fetching.NotHad as why:
            lines.append(f"{row!s:32} not run: {why}")
            failed.append(row)
        else:
            lines.append(f"{row!s:32} " + "".join(f"{cell!s:>18}" for cell in cells))
            if any(cell.failed or not cell.passed for cell in cells if cell is not None):
                failed.append(row)
        print(lines[-1], flush=True)  # noqa: T201
    print(f"\n{'tests that passed (skipped)':32} " + "".join(f"{name:>18}" for name in columns), *lines, sep="\n")  # noqa: T201
    print(f"{len(failed)} of {len(rows)} rows have failed or were not run")  # noqa: T201
    return int(bool(failed) or not rows)


def _run(row: Row, columns: list[str]) -> "list[Cell | None]":
    """Run the tests of these columns. None: a column has none for the row. Raises NotHad."""
    interpreter, version = fetching.python(row.redis_py)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI_FULL"},
        "PYTHONPATH": str(fetching.ROOT),
        "TEST_REDIS_SERVER": fetching.program(row.server),
        "TEST_SERVER": row.way,
        "TEST_SERVER_VERSION": row.server,
        "TEST_REDIS_PY": version,
    }
    return [_column(row, name, interpreter, environment) for name in columns]


def _column(row: Row, name: str, interpreter: str, environment: dict[str, str]) -> "Cell | None":
    if name == "outages" and row.way != "alone":
        return None
    stem = fetching.TOOLS / re.sub(r"\W+", "-", f"{row} {name}")
    report, log = stem.with_suffix(".xml"), stem.with_suffix(".log")
    report.unlink(missing_ok=True)
    command = [interpreter, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *COLUMNS[name]]
    with log.open("w") as written:
        code = subprocess.run(
            command, cwd=fetching.ROOT, env=environment, stdout=written, stderr=subprocess.STDOUT, check=False
        ).returncode
    cell = _cell(report)
    if code and not cell.failed:
        cell = Cell(failed=1)  # pytest itself
    if cell.failed:
        shown = [line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        print(f"{row}, {name}: exit code {code}", *shown, sep="\n  ", flush=True)  # noqa: T201
    return cell


def _cell(report: Path) -> Cell:
    if not report.exists():
        return Cell()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for test in Xml.parse(report).iter("testcase"):
        ends = {child.tag for child in test}
        counts["failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"] += 1
    return Cell(**counts)


if __name__ == "__main__":
    sys.exit(main())
