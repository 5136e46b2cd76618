"""Findings of `leasehold doctor`, as values. Used in the command's process. Must not look at anything, nor print."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from supervisor.exit_codes import Exit

Level = Literal["ok", "warning", "problem"]

#: The first thing that stops `run` comes first.
_GRAVEST = (Exit.CONFIG, Exit.UNREACHABLE, Exit.HANDLERS, Exit.REFUSED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the check, the level, and a message with the value and the remedy."""

    check: str
    level: Level
    message: str
    #: For a problem: the exit code of `run`.
    code: Exit = Exit.OK


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", _on_a_line(message))


def warning(check: str, message: str) -> Finding:
    """Return a finding with which `run` starts, although something is wrong."""
    return Finding(check, "warning", _on_a_line(message))


def problem(check: str, message: str, code: Exit = Exit.REFUSED) -> Finding:
    """Return a finding with which `run` does not start, or loses jobs."""
    return Finding(check, "problem", _on_a_line(message), code)


def exit_code(findings: Iterable[Finding]) -> Exit:
    """Return the exit code of `run`, or 1 for a problem that does not end `run`."""
    codes = {finding.code for finding in findings}
    return next((code for code in _GRAVEST if code in codes), Exit.OK)


def _on_a_line(text: str) -> str:
    return " ".join(text.split())
