"""What `leasehold doctor` finds, as values, in the command's process. Must not look at anything, nor print."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from supervisor.config import Exit

Level = Literal["ok", "warning", "problem"]

#: What `run` would stumble over first comes first.
_GRAVEST = (Exit.CONFIG, Exit.UNREACHABLE, Exit.HANDLERS, Exit.REFUSED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: which check, how bad, and in words what is so, with the value, and what to do."""

    check: str
    level: Level
    message: str
    #: Of a problem: what `run` would end with.
    code: Exit = Exit.OK


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", _on_a_line(message))


def warning(check: str, message: str) -> Finding:
    """`run` starts, and something is not as it should be."""
    return Finding(check, "warning", _on_a_line(message))


def problem(check: str, message: str, code: Exit = Exit.REFUSED) -> Finding:
    """`run` does not start, or loses jobs."""
    return Finding(check, "problem", _on_a_line(message), code)


def exit_code(findings: Iterable[Finding]) -> Exit:
    """What `run` would end with; 1 for a problem that does not end it."""
    codes = {finding.code for finding in findings}
    return next((code for code in _GRAVEST if code in codes), Exit.OK)


def _on_a_line(text: str) -> str:
    return " ".join(text.split())
